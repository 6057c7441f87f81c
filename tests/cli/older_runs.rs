//! Folders of runs of earlier versions: whatever can be asked of a run can be asked of them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::lab::Lab;

/// A run of SGD, whose plan and `resolved.toml` have an earlier form.
const RUN: &str = "20261123-083003-058f";
/// Two epochs of four: `AdamW` with moments, dropout, groups of parameters, averages, two passes a
/// step. Its checkpoint has format 2.
const ADAMW_RUN: &str = "20261123-183638-5f96";
/// The losses of the other two epochs, as the version that wrote it went on without a stop.
const ADAMW_LOSSES: [f64; 6] = [
    6.252_129_882_574_081,
    4.626_436_769_962_311,
    4.441_952_913_999_557_5,
    3.642_984_837_293_625,
    4.302_303_224_802_017,
    4.968_126_654_624_939,
];

/// A lab with the files below `tests/samples/<folder>`.
fn lab_with(folder: &str) -> Lab {
    let lab = Lab::new();
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    copy(&samples.join(folder), &lab.path("."));
    lab
}

/// Copies the files below `from` to `to`.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_run_of_an_earlier_version_is_shown_evaluated_and_continued() {
    let lab = lab_with("run");
    let report = lab.run_to(0, &["report", RUN]);
    assert!(report.stdout.contains("val/loss"), "{}", report.stdout);
    let evaluated = lab.run_to(0, &["eval", RUN]);
    assert!(evaluated.stdout.contains("0.641"), "{}", evaluated.stdout);
    lab.run_to(0, &["resume", RUN, "train.epochs=3"]).says(&["completed after step 12"]);
    lab.run_to(0, &["eval", RUN]);
}

#[test]
fn a_kept_run_with_an_optimizers_state_goes_on_with_the_losses_that_it_would_have_had() {
    let lab = lab_with("adamw_run");
    lab.run_to(0, &["checkpoint", "verify", ADAMW_RUN]);
    lab.run_to(0, &["resume", ADAMW_RUN, "train.epochs=4"]).says(&["completed after step 12"]);
    let events = lab.path(&format!("logs/adamw/{ADAMW_RUN}/events.jsonl"));
    let events = fs::read_to_string(events).unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let losses: Vec<f64> = events
        .filter(|event| event["event"] == "step_done" && event["step"].as_u64() > Some(6))
        .map(|event| event["loss"].as_f64().unwrap())
        .collect();
    assert_eq!(losses.len(), ADAMW_LOSSES.len());
    for (loss, expected) in losses.iter().zip(ADAMW_LOSSES) {
        assert!((loss - expected).abs() < 1e-5 * expected, "{losses:?}");
    }
}
