//! The folder of a run of an earlier version: whatever can be asked of a run can be asked of it.

use std::fs;
use std::path::Path;

use crate::lab::Lab;

/// Its id.
const RUN: &str = "20261123-083003-058f";

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
    let lab = Lab::new();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/run"), &lab.path("."));
    let report = lab.run_to(0, &["report", RUN]);
    assert!(report.stdout.contains("val/loss"), "{}", report.stdout);
    let evaluated = lab.run_to(0, &["eval", RUN]);
    assert!(evaluated.stdout.contains("0.641"), "{}", evaluated.stdout);
    lab.run_to(0, &["resume", RUN, "train.epochs=3"]).says(&["completed after step 12"]);
    lab.run_to(0, &["eval", RUN]);
}
