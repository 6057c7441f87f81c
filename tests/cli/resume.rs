//! The same bits after any stop, at any world size, with any number of threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::{Signal, kill_process, kill_process_group};

use crate::experiments::{BASE, SLOW};
use crate::lab::{Lab, flip_a_bit};
use crate::running::{Running, is_alive, pid_of, spawn, until};

/// What a run leaves of its training.
#[derive(PartialEq)]
pub(crate) struct Bits {
    model: Vec<u8>,
    optimizer: Vec<u8>,
    state: String,
    history: String,
    /// `metrics.csv` without the speed.
    metrics: Vec<Vec<String>>,
}

pub(crate) fn bits(lab: &Lab) -> Bits {
    let checkpoint = |name: &str| fs::read(lab.checkpoints().join("latest").join(name)).unwrap();
    Bits {
        model: checkpoint("model.safetensors"),
        optimizer: checkpoint("optimizer.safetensors"),
        state: String::from_utf8(checkpoint("state.json")).unwrap(),
        history: fs::read_to_string(lab.run_folder().join("training_history.json")).unwrap(),
        metrics: metrics(&lab.run_folder().join("metrics.csv")),
    }
}

/// Every checkpoint of a lab is what was written.
pub(crate) fn must_be_whole(lab: &Lab) {
    lab.run_to(0, &["checkpoint", "verify"]);
}

fn metrics(path: &Path) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(path).unwrap();
    let mut rows: Vec<Vec<String>> =
        reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
    let speed = rows[0].iter().position(|name| name == "samples_per_second").unwrap();
    for row in &mut rows {
        row.remove(speed);
    }
    rows
}

impl Bits {
    pub(crate) fn must_be(&self, other: &Self) {
        assert_eq!(self.history, other.history, "training_history.json");
        assert_eq!(self.metrics, other.metrics, "metrics.csv");
        assert!(self.model == other.model, "model.safetensors");
        assert!(self.optimizer == other.optimizer, "optimizer.safetensors");
        assert_eq!(self.state, other.state, "state.json");
    }
}

/// The undisturbed run of [`SLOW`], made once.
pub(crate) fn undisturbed() -> &'static Bits {
    static BITS: OnceLock<Bits> = OnceLock::new();
    BITS.get_or_init(|| {
        let lab = Lab::with(SLOW);
        lab.run_to(0, &["small.toml"]).says(&["completed after step 60"]);
        let bits = bits(&lab);
        assert_eq!(bits.metrics.len(), 1 + 60 + 5, "a header, 60 steps, 5 evaluations");
        bits
    })
}

/// Stops a run of [`SLOW`] after step 17, in the middle of its second epoch or later; its exit code
/// is `code`.
fn stopped(code: i32, stop: impl Fn(&Running)) -> Lab {
    // On a busy machine the run may be over before the signal comes.
    for _ in 0..5 {
        let lab = Lab::with(SLOW);
        let mut running = lab.start(&["small.toml"]);
        lab.wait_for_step_and_save(&mut running, 17);
        stop(&running);
        let ended = running.wait();
        let last = lab.last_step();
        if ended.code != 0 && last < 60 && !last.is_multiple_of(12) {
            ended.has_code(code);
            return lab;
        }
    }
    panic!("five runs were over before they could be stopped");
}

/// Resumes what was stopped, and compares with the undisturbed run.
fn goes_on_as_if_nothing_had_happened(lab: &Lab, changes: &[&str]) {
    let resumed = lab.run_to(0, &[&["resume"], changes].concat());
    resumed.says(&["resumed after step ", "completed after step 60"]);
    bits(lab).must_be(undisturbed());
    lab.is_clean();
}

#[test]
fn a_grace_that_ends_before_the_step_does_costs_the_steps_since_the_last_checkpoint() {
    let lab = Lab::with(SLOW);
    let mut command = lab.ddprun(&["small.toml"]);
    // However slow the disk is, each checkpoint is on it before the next step.
    command.env("DDPRUN_FP", "checkpoint.queued=wait@*,*,*; backward=hang@1,20");
    let mut running = spawn(command);
    lab.wait_for_step_and_save(&mut running, 19);
    running.signal(Signal::TERM);
    until("the request", || running.stderr().contains("stopping at the end of this step"));
    let group = pid_of(running.pid());
    kill_process_group(group, Signal::KILL).unwrap();
    running.wait().has_code(-9);
    until("the end of the ranks", || lab.processes().is_empty());
    assert!(lab.steps().pop().unwrap().ends_with("step-00000014"));
    goes_on_as_if_nothing_had_happened(&lab, &[]);
}

#[test]
fn a_run_stopped_by_sigterm_goes_on_as_if_nothing_had_happened() {
    let lab = stopped(75, |running| running.signal(Signal::TERM));
    lab.is_clean();
    goes_on_as_if_nothing_had_happened(&lab, &[]);
}

#[test]
fn a_run_stopped_by_ctrl_c_goes_on_as_if_nothing_had_happened() {
    let lab = stopped(130, |running| {
        kill_process_group(pid_of(running.pid()), Signal::INT).unwrap();
    });
    lab.is_clean();
    goes_on_as_if_nothing_had_happened(&lab, &[]);
}

#[test]
fn a_run_whose_processes_were_all_killed_goes_on_as_if_nothing_had_happened() {
    let lab = stopped(-9, |running| {
        kill_process_group(pid_of(running.pid()), Signal::KILL).unwrap();
    });
    goes_on_as_if_nothing_had_happened(&lab, &[]);
}

#[test]
fn a_run_that_lost_a_rank_goes_on_with_the_other_alone() {
    let lab = stopped(5, |running| {
        if let Some(&rank) = running.ranks().get(1) {
            // It may be gone already.
            let _ = kill_process(pid_of(rank), Signal::KILL);
        }
    });
    goes_on_as_if_nothing_had_happened(&lab, &["distributed.devices=1"]);
}

#[test]
fn a_run_whose_ranks_are_killed_again_and_again_ends_as_if_nothing_had_happened() {
    let lab = Lab::with(SLOW);
    let mut running = lab.start(&["small.toml", "--max-restarts", "9"]);
    let mut kills = 0;
    for (step, rank) in [(10, 1), (23, 0), (36, 1), (49, 0)] {
        lab.wait_for_step_and_save(&mut running, step);
        let ranks = running.ranks();
        if let (false, Some(&pid)) = (running.is_over(), ranks.get(rank)) {
            kills += usize::from(kill_process(pid_of(pid), Signal::KILL).is_ok());
            until("the end of the rank", || !is_alive(pid));
        }
    }
    let ended = running.wait();
    ended.has_code(0);
    bits(&lab).must_be(undisturbed());
    lab.is_clean();
    assert!(kills >= 2, "{kills} ranks were killed; the others were too fast");
    let restarts = ended.stderr.matches(" of 9, from the newest checkpoint: rank ").count();
    assert!((1..=kills).contains(&restarts), "{kills} kills: {}", ended.stderr);
    let last = lab.events().into_iter().rfind(|event| event["event"] == "started");
    let causes = last.unwrap()["restarts"].clone();
    assert_eq!(causes.as_array().map(Vec::len), Some(restarts), "{causes}");
    assert!(causes[0].as_str().unwrap().ends_with("was killed by SIGKILL"), "{causes}");
    // Of this start alone.
    let told = lab.rank_stats();
    assert_eq!(told["memory"].as_array().map(Vec::len), Some(2), "{told}");
    assert_eq!(told["step"], lab.last_step());
}

#[test]
fn a_run_that_is_stopped_twice_goes_on_with_more_ranks_and_threads() {
    let lab = stopped(75, |running| running.signal(Signal::TERM));
    let mut running = lab.start(&["resume", "distributed.devices=4", "data.num_workers=3"]);
    let step = lab.last_step();
    lab.wait_for_step(&mut running, step + 5);
    kill_process_group(pid_of(running.pid()), Signal::KILL).unwrap();
    running.wait();
    goes_on_as_if_nothing_had_happened(&lab, &["distributed.devices=2"]);
}

#[test]
fn a_run_that_was_killed_before_its_first_checkpoint_starts_again() {
    let lab = Lab::with(SLOW);
    let mut running =
        lab.start(&["small.toml", "checkpoint.every=never", "checkpoint.keep_best=0"]);
    lab.wait_for_step(&mut running, 3);
    kill_process_group(pid_of(running.pid()), Signal::KILL).unwrap();
    running.wait();
    assert!(lab.steps().is_empty());
    lab.run_to(0, &["resume", "checkpoint.every=60 steps", "checkpoint.keep_best=1"]);
    bits(&lab).must_be(undisturbed());
    lab.is_clean();
}

#[test]
fn resuming_a_finished_run_changes_nothing_and_says_so() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let before = bits(&lab);
    let again = lab.run_to(0, &["resume"]);
    again.says(&["resumed after step 12", "already complete: all 12 steps are done"]);
    bits(&lab).must_be(&before);
    lab.is_clean();
}

#[test]
fn every_world_size_and_number_of_threads_gives_the_same_bits() {
    for [devices, workers, threads] in [[1, 0, 2], [1, 3, 1], [2, 0, 1], [4, 1, 1], [4, 3, 2]] {
        let lab = Lab::with(SLOW);
        let changes = [
            format!("distributed.devices={devices}"),
            format!("data.num_workers={workers}"),
            format!("distributed.threads_per_rank={threads}"),
        ];
        let args: Vec<&str> =
            ["small.toml"].into_iter().chain(changes.iter().map(String::as_str)).collect();
        lab.run_to(0, &args);
        bits(&lab).must_be(undisturbed());
        lab.is_clean();
    }
}

#[test]
fn half_precision_trains_to_the_end_and_resumes_to_the_bit() {
    for precision in ["bf16", "fp16"] {
        let precision = format!("train.precision={precision}");
        let [whole, parts] = [(); 2].map(|()| Lab::with(SLOW));
        whole.run_to(0, &["small.toml", &precision, "train.epochs=2", "scheduler.warmup=never"]);
        // Two steps before the end of the first epoch, and from there with another world.
        let length = ["train.steps=10", "~train.epochs", "scheduler.name=constant"];
        let first = [&["small.toml", &precision, "scheduler.warmup=never"][..], &length].concat();
        parts.run_to(0, &first);
        let last = bits(&parts).metrics.pop().unwrap();
        assert!(last.iter().all(|cell| !cell.contains("NaN")), "{last:?}");
        parts.run_to(0, &["resume", "train.steps=24", "distributed.devices=1"]);
        let straight = Lab::with(SLOW);
        let length = ["train.steps=24", "~train.epochs", "scheduler.name=constant"];
        straight.run_to(
            0,
            &[&["small.toml", &precision, "scheduler.warmup=never"][..], &length].concat(),
        );
        assert!(bits(&parts).model == bits(&straight).model, "{precision}");
        assert!(bits(&whole).model != bits(&straight).model, "another schedule, other weights");
        parts.is_clean();
    }
}

#[test]
fn mixed_images_have_the_same_bits_on_one_rank_and_after_a_resume() {
    let run = |changes: &[&str]| {
        let lab = Lab::new();
        let mixup = ["data.mixup.mixup_alpha=0.8", "data.mixup.cutmix_alpha=1"];
        let file = ["small.toml", "distributed.shards=2", "data.drop_last=false"];
        lab.run_to(0, &[&file[..], &mixup, changes].concat());
        lab
    };
    let whole = bits(&run(&[]));
    assert!(bits(&run(&["data.mixup.mode=pair"])).model != whole.model);
    assert!(bits(&run(&["distributed.devices=1"])).model == whole.model);
    let parts = run(&["train.steps=5", "~train.epochs"]);
    parts.run_to(0, &["resume", "train.epochs=2", "~train.steps"]);
    assert!(bits(&parts).model == whole.model);
    parts.is_clean();
}

#[test]
fn a_run_stays_in_its_folders_which_may_be_moved() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    for key in ["checkpoint.dir", "logging.dir"] {
        let elsewhere = format!("{key}=elsewhere");
        let refused = lab.run_to(2, &["resume", "small", "train.epochs=4", &elsewhere]);
        refused.says(&[
            "cannot change on resume",
            &format!("`{key}`"),
            "a run stays in its folders",
        ]);
        assert!(!lab.path("elsewhere").exists());
    }
    for folder in ["checkpoints", "logs"] {
        let moved = lab.path(&format!("other-{folder}"));
        fs::rename(lab.path(folder), &moved).unwrap();
        std::os::unix::fs::symlink(&moved, lab.path(folder)).unwrap();
    }
    lab.run_to(0, &["resume", "small", "train.epochs=4"]).says(&["resumed after step 12"]);
    lab.run_to(0, &["checkpoint", "verify"]);
    lab.is_clean();
}

#[test]
fn a_run_of_one_shard_is_refused_more_ranks_with_what_would_admit_them() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "distributed.devices=1"]);
    let refused = lab.run_to(2, &["resume", "small", "train.epochs=4", "distributed.devices=2"]);
    refused.says(&["1 shard cannot be divided over 2 ranks", "start a run with", "shards = 2"]);
    lab.is_clean();
}

/// A finished run with checkpoints of step 6 and step 12.
fn with_two_checkpoints() -> (Lab, [PathBuf; 2]) {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let steps = lab.steps();
    let [older, newer] = &steps[..] else { panic!("{steps:?}") };
    let checkpoints = [older.clone(), newer.clone()];
    (lab, checkpoints)
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_is_used() {
    let (lab, [_, newer]) = with_two_checkpoints();
    let before = bits(&lab);
    flip_a_bit(&newer.join("model.safetensors"));
    let resumed = lab.run_to(0, &["resume"]);
    resumed.says(&["warning: ", "step-00000012", "is damaged: `model.safetensors`"]);
    resumed.says(&["; using the one of step 6, 6 steps older", "resumed after step 6\n"]);
    bits(&lab).must_be(&before);
    lab.is_clean();
}

#[test]
fn a_damaged_checkpoint_that_is_asked_for_by_name_is_refused_with_the_name_of_an_intact_one() {
    let (lab, [older, newer]) = with_two_checkpoints();
    flip_a_bit(&newer.join("model.safetensors"));
    let refused = lab.run_to(7, &["checkpoint", "export", newer.to_str().unwrap(), "m.onnx"]);
    let name = older.file_name().unwrap().to_str().unwrap();
    refused.says(&["is damaged", "do: use `", &format!("{name}`, which is intact")]);
    flip_a_bit(&older.join("model.safetensors"));
    let refused = lab.run_to(7, &["checkpoint", "export", newer.to_str().unwrap(), "m.onnx"]);
    assert!(!refused.stderr.contains("intact"), "{}", refused.stderr);
}

#[test]
fn a_damaged_newest_checkpoint_is_named_by_all_that_take_the_one_before_it() {
    let (lab, [_, newer]) = with_two_checkpoints();
    flip_a_bit(&newer.join("model.safetensors"));
    let said = ["step-00000012", "is damaged", "; using the one of step 6, 6 steps older"];
    for words in [
        &["eval", "small", "--latest"][..],
        &["checkpoint", "export", "small", "m.safetensors", "--latest"],
        &["plan", "small.toml", "experiment.name=next", "model.pretrained=run:small/latest"],
    ] {
        lab.run_to(0, words).says(&said);
    }
    for words in [
        &["eval", "small", "--latest", "--strict"][..],
        &["checkpoint", "export", "small", "n.safetensors", "--latest", "--strict"],
        &["resume", "small", "--strict"],
    ] {
        let refused = lab.run_to(7, words);
        refused.says(&["step-00000012", "is damaged", "omit `--strict` to use the one of step 6"]);
    }
    lab.is_clean();
}

#[test]
fn a_run_that_saves_only_when_it_is_stopped_ends_with_a_checkpoint_once_it_was() {
    let lab = Lab::with(SLOW);
    let never = ["small.toml", "checkpoint.every=never"];
    let mut running = lab.start(&never);
    lab.wait_for_step(&mut running, 3);
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.run_to(0, &["resume"]);
    assert!(lab.steps().last().unwrap().ends_with("step-00000060"), "{:?}", lab.steps());
    lab.run_to(0, &["resume"]).says(&["already complete: all 60 steps are done"]);

    let lab = Lab::new();
    let ended = lab.run_to(0, &never);
    ended.says(&["no checkpoint was saved, as `checkpoint.every` is \"never\""]);
    assert!(lab.run_to(0, &["ls"]).stdout.contains("completed, no checkpoint"));
    let again = lab.run_to(0, &["resume"]);
    again.says(&["already complete: all 12 steps are done, and none was saved"]);
    let more = lab.run_to(7, &["resume", "train.epochs=3"]);
    more.says(&["error: cannot continue: all 12 steps are done", "--from-scratch"]);
    lab.run_to(7, &["eval", "small"]).says(&["no usable checkpoint"]);
    lab.is_clean();
}

#[test]
fn a_run_without_a_whole_checkpoint_is_refused_with_the_damage_of_each() {
    let (lab, [older, newer]) = with_two_checkpoints();
    flip_a_bit(&older.join("optimizer.safetensors"));
    fs::remove_file(newer.join("state.json")).unwrap();
    let refused = lab.run_to(7, &["resume"]);
    refused.says(&["no usable checkpoint", "step-00000006", "step-00000012"]);
    refused.says(&["`optimizer.safetensors`", "`state.json`"]);
    lab.is_clean();
}

#[test]
fn verify_finds_a_bit_that_was_turned_in_any_file() {
    let (lab, [older, _]) = with_two_checkpoints();
    let folder = lab.checkpoints();
    let folder = folder.to_str().unwrap();
    let whole = lab.run_to(0, &["checkpoint", "verify", folder]);
    assert_eq!(whole.stdout.matches(": intact\n").count(), 2, "{}", whole.stdout);
    let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
    // A manifest that is not what it was cannot be read, or has another seal.
    for (name, named) in files.map(|name| (name, name)).into_iter().chain([("MANIFEST.json", "")]) {
        let path = older.join(name);
        let intact = fs::read(&path).unwrap();
        flip_a_bit(&path);
        let damaged = lab.run_to(7, &["checkpoint", "verify", folder]);
        damaged.says(&["step-00000006` is damaged", named]);
        assert_eq!(damaged.stdout.matches(": intact\n").count(), 1, "{name}: {}", damaged.stdout);
        fs::write(&path, intact).unwrap();
    }
    for words in [&["small"][..], &[]] {
        let again = lab.run_to(0, &[&["checkpoint", "verify"], words].concat());
        assert_eq!(again.stdout.matches(": intact\n").count(), 2, "{}", again.stdout);
    }
    lab.is_clean();
}

#[test]
fn show_says_what_is_in_a_checkpoint_and_what_is_not_there_is_refused() {
    let (lab, [older, newer]) = with_two_checkpoints();
    let page = lab.run_to(0, &["checkpoint", "show"]).stdout;
    for words in ["step-00000006\n  step 6, 6 updates, ", "\n  step 12, 12 updates, ", "val/loss "]
    {
        assert!(page.contains(words), "`{words}` is not in\n{page}");
    }
    assert!(!page.contains("F32"), "{page}");
    let page = lab.run_to(0, &["checkpoint", "show", newer.to_str().unwrap()]).stdout;
    let tensor = page.lines().find(|line| line.contains("F32 [16, 768]"));
    assert!(tensor.is_some_and(|line| line.contains(".weight")), "{page}");
    fs::remove_file(older.join("MANIFEST.json")).unwrap();
    let damaged = lab.run_to(7, &["checkpoint", "show", older.to_str().unwrap()]);
    damaged.says(&["step-00000006` is damaged: `MANIFEST.json` cannot be read"]);
    lab.run_to(7, &["checkpoint", "verify", older.to_str().unwrap()]).says(&["`MANIFEST.json`"]);
    lab.run_to(7, &["checkpoint", "verify", "data"]).says(&["there is no checkpoint in `data`"]);
    lab.run_to(2, &["checkpoint", "verify", "absent"]).says(&["absent", "do: "]);
}

#[test]
fn a_change_that_makes_another_experiment_is_refused_by_name_and_a_safe_one_is_not() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let before = fs::read(lab.run_folder().join("resolved.toml")).unwrap();
    let refused = lab.run_to(2, &["resume", "optimizer.lr=0.5", "train.epochs=3"]);
    refused.says(&["`optimizer.lr`: 0.001 -> 0.5", "do: ", "`train.epochs`"]);
    assert!(fs::read(lab.run_folder().join("resolved.toml")).unwrap() == before);
    let passed = lab.run_to(0, &["resume", "train.epochs=3"]);
    passed.says(&["changed: `train.epochs`: 2 -> 3", "completed after step 18"]);
    let longer = Lab::with(&BASE.replace("epochs = 2", "epochs = 3"));
    longer.run_to(0, &["small.toml"]);
    bits(&lab).must_be(&bits(&longer));
    lab.is_clean();
}

#[test]
fn a_length_that_a_run_is_past_is_refused_and_its_end_is_not() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml", "train.epochs=3", "scheduler.name=cosine"]);
    let before = bits(&lab);
    let refused = lab.run_to(2, &["resume", "train.epochs=2"]);
    refused.says(&["past `train.epochs` already: 18 steps (3 epochs) are done"]);
    refused.says(&["do: set `train.epochs` to at least 3, or leave it out"]);
    assert!(!refused.stderr.contains("changed: "), "{}", refused.stderr);
    lab.run_to(2, &["resume", "train.steps=17"]).says(&["`train.steps` to at least 18"]);
    assert!(!lab.run_folder().join("resolved.2.toml").exists());
    lab.run_to(0, &["resume", "train.steps=18"]).says(&["all 18 steps are done"]);
    bits(&lab).must_be(&before);
    // The half cosine to step 24 is higher there than that to step 18.
    let longer = lab.run_to(0, &["resume", "train.epochs=4", "~train.steps"]);
    longer.says(&["changed: the learning rate at step 18: ", "`cosine` now spans 24 steps"]);
    longer.says(&["completed after step 24"]);
    lab.is_clean();
}

#[test]
fn a_run_in_use_is_not_resumed_by_a_second_process() {
    let lab = Lab::new();
    let mut running = lab.start(&["small.toml", "train.epochs=1000000", "logging.every=10 steps"]);
    lab.wait_for_step(&mut running, 20);
    let second = lab.run_to(2, &["resume"]);
    second.says(&["is in use by", &format!("pid {} on", running.pid()), "do: "]);
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.is_clean();
}
