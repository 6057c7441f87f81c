//! Sweeps: trials that are runs of their own, killed and gone on with.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;

use rustix::process::{Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::harness::experiments::{BASE, SLOW, saving};
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, Running, pid_of, spawn, until};

/// A lab with `small.toml` and a sweep of it.
pub(crate) fn lab(experiment: &str, sweep: &str) -> Lab {
    let lab = Lab::with(experiment);
    lab.write("tune.toml", format!("schema = 1\nbase = \"small.toml\"\n[sweep]\n{sweep}"));
    lab
}

pub(crate) const GRID: &str = "metric = \"val/loss\"\ndevices_per_trial = 2\nconcurrent_trials = 1\n\
    [sweep.parameters]\n\"optimizer.lr\" = [1e-3, 1e-2]\n\"model.hidden\" = [[8], [16, 8]]\n";

const RANDOM: &str = "method = \"tpe\"\ntrials = 3\ndevices_per_trial = 2\nconcurrent_trials = 1\n\
    [sweep.parameters.\"optimizer.lr\"]\ndistribution = \"log_uniform\"\nmin = 1e-3\nmax = 0.1\n";

pub(crate) fn journal(lab: &Lab) -> Vec<Value> {
    let text = fs::read_to_string(lab.path("logs/tune/journal.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

pub(crate) fn ended(lab: &Lab) -> Vec<Value> {
    journal(lab).into_iter().filter(|line| line["record"] == "ended").collect()
}

/// What a trial was and reported, without times.
pub(crate) type Told = (Value, Value, Value, Value);

/// What each trial was and reported.
pub(crate) fn told(lab: &Lab) -> Vec<Told> {
    let values = |trial: &Value| {
        let lines = journal(lab);
        let is_it = |line: &&Value| line["record"] == "started" && line["trial"] == *trial;
        lines.iter().find(is_it).unwrap()["values"].clone()
    };
    let mut told: Vec<_> = ended(lab)
        .into_iter()
        .map(|line| {
            let trial = line["trial"].clone();
            (trial.clone(), values(&trial), line["state"].clone(), line["reports"].clone())
        })
        .collect();
    told.sort_by_key(|(trial, ..)| trial.as_u64());
    told
}

fn trial_folder(lab: &Lab, number: usize) -> PathBuf {
    lab.path(&format!("logs/tune/trial-{number:04}"))
}

fn stop_when(lab: &Lab, running: &mut Running, what: &str, is_there: impl Fn(&Lab) -> bool) {
    until(what, || running.is_over() || is_there(lab));
}

#[test]
fn a_grid_runs_every_point_as_a_run_of_its_own_and_ranks_them() {
    let lab = lab(BASE, GRID);
    let ended = lab.run_to(0, &["sweep", "tune.toml"]);
    ended.says(&["sweep `logs/tune`: 4 trials minimizing val/loss, 1 concurrent"]);
    ended.says(&[
        "trial 4 started: optimizer.lr=0.01 model.hidden=[16,8]",
        "[4 of 4]",
        "best.toml",
    ]);
    let rows: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(rows.len(), 5, "{}", ended.stdout);
    assert!(rows[0].contains("rank  trial  val/loss"), "{}", rows[0]);
    for number in 1..=4 {
        let names = ["resolved.toml", "run.json", "events.jsonl", "console.log", "rank-1.log"];
        for name in names {
            assert!(trial_folder(&lab, number).join(name).exists(), "{name}");
        }
        assert!(lab.path(&format!("checkpoints/tune/trial-{number:04}/best")).exists());
    }
    let json: Value =
        serde_json::from_slice(&fs::read(lab.path("logs/tune/sweep.json")).unwrap()).unwrap();
    let values: Vec<f64> =
        json["trials"].as_array().unwrap().iter().map(|t| t["value"].as_f64().unwrap()).collect();
    assert!(values.is_sorted(), "{values:?}");
    for name in ["history.png", "parallel.png", "importance.png", "slices.svg", "sweep.csv"] {
        assert!(lab.path("logs/tune").join(name).exists(), "{name}");
    }
    // The best is runnable as it is, and gives the same numbers.
    lab.run_to(0, &["logs/tune/best.toml", "experiment.name=again"]);
    let again = children(&lab.path("logs/again")).remove(0);
    let history = |folder: PathBuf| fs::read(folder.join("training_history.json")).unwrap();
    let best = json["best"]["trial"].as_u64().unwrap() as usize;
    assert!(history(again) == history(trial_folder(&lab, best)));
    // A trial is a run like any other.
    lab.run_to(0, &["report", "logs/tune/trial-0002"]);
    lab.run_to(0, &["sweep", "tune.toml"]).says(&["4 done, 0 interrupted"]);
    assert_eq!(self::ended(&lab).len(), 4);
    lab.is_clean();
}

/// What an undisturbed sweep of 60 steps in each trial tells. It runs once.
fn undisturbed() -> &'static [Told] {
    static TOLD: OnceLock<Vec<Told>> = OnceLock::new();
    TOLD.get_or_init(|| {
        let lab = lab(&saving(10), RANDOM);
        lab.run_to(0, &["sweep", "tune.toml"]);
        told(&lab)
    })
}

/// Starts the sweep, with steps that take so long that a signal meets them.
fn start_slowly(lab: &Lab, changes: &[&str]) -> Running {
    let mut command = lab.ddprun(&[&["sweep", "tune.toml"], changes].concat());
    command.env("DDPRUN_FP", "backward=sleep(30)@*,*,*");
    spawn(command)
}

#[test]
fn a_sweep_whose_parent_is_killed_leaves_no_process_and_goes_on_to_the_same_result() {
    let expected = undisturbed();
    let lab = lab(&saving(10), RANDOM);
    for (number, step) in [(1, 10), (2, 30)] {
        let mut running = start_slowly(&lab, &[]);
        let name = trial_folder(&lab, number).join("metrics.csv");
        let is_there =
            |_: &Lab| fs::read_to_string(&name).is_ok_and(|text| text.lines().count() > step);
        stop_when(&lab, &mut running, "a step", is_there);
        kill_process(pid_of(running.pid()), Signal::KILL).unwrap();
        running.wait();
        until("the ranks' end", || lab.processes().is_empty());
    }
    let last = lab.run_to(0, &["sweep", "tune.toml"]);
    last.says(&["resumed: optimizer.lr="]);
    assert_eq!(told(&lab), expected);
    lab.is_clean();
}

#[test]
fn ctrl_c_saves_every_trial_and_the_same_command_goes_on() {
    let expected = undisturbed();
    let lab = lab(&saving(10), RANDOM);
    let mut running = start_slowly(&lab, &[]);
    let name = trial_folder(&lab, 2).join("metrics.csv");
    let is_there = |_: &Lab| fs::read_to_string(&name).is_ok_and(|text| text.lines().count() > 12);
    stop_when(&lab, &mut running, "a step", is_there);
    kill_process_group(pid_of(running.pid()), Signal::INT).unwrap();
    let stopped = running.wait();
    if stopped.code != 0 {
        stopped.has_code(130);
        stopped.says(&["interrupted; it resumes", "run the same command to continue"]);
    }
    lab.is_clean();
    lab.run_to(0, &["sweep", "tune.toml"]);
    assert_eq!(told(&lab), expected);
    lab.is_clean();
}

/// Of five short trials, of which some are given up.
fn pruned_lab() -> Lab {
    let text = RANDOM
        .replace("trials = 3", "trials = 5")
        .replace("method = \"tpe\"", "method = \"random\"\npruner = \"asha\"");
    lab(BASE, &text.replace("min = 1e-3", "min = 1e-7"))
}

fn pruned(lab: &Lab) -> Vec<u64> {
    let lines = ended(lab).into_iter().filter(|line| line["state"] == "pruned");
    lines.map(|line| line["trial"].as_u64().unwrap()).collect()
}

#[test]
fn bad_trials_are_pruned_and_keep_their_checkpoints_if_that_is_asked_for() {
    let (plain, keeping) = (pruned_lab(), pruned_lab());
    let end = plain.run_to(0, &["sweep", "tune.toml"]);
    keeping.run_to(0, &["sweep", "tune.toml", "sweep.keep_pruned_checkpoints=true"]);
    assert!(!pruned(&plain).is_empty(), "{}", end.stderr);
    for number in pruned(&plain) {
        let folder = format!("checkpoints/tune/trial-{number:04}");
        assert!(!plain.path(&folder).exists(), "{folder}");
        keeping.run_to(0, &["checkpoint", "verify", keeping.path(&folder).to_str().unwrap()]);
    }
    let json: Value =
        serde_json::from_slice(&fs::read(plain.path("logs/tune/sweep.json")).unwrap()).unwrap();
    let best = format!("checkpoints/tune/{}/best", json["best"]["run"].as_str().unwrap());
    plain.run_to(0, &["checkpoint", "verify", plain.path(&best).to_str().unwrap()]);
    plain.is_clean();
    keeping.is_clean();
}

#[test]
fn a_trial_is_resumed_by_hand_only_as_what_it_is() {
    let lab = pruned_lab();
    lab.run_to(0, &["sweep", "tune.toml"]);
    let gone = trial_folder(&lab, pruned(&lab)[0] as usize);
    for flags in [&["--from-scratch"][..], &[]] {
        let refused = lab.run_to(2, &[&["resume", gone.to_str().unwrap()], flags].concat());
        refused.says(&["was pruned by the sweep `logs/tune`, and its checkpoints were removed"]);
        refused.says(&["resolved.toml experiment.name=NAME`"]);
    }
    let finished = ended(&lab).into_iter().find(|line| line["state"] == "finished").unwrap();
    let trial = format!("logs/tune/trial-{:04}", finished["trial"].as_u64().unwrap());
    let refused = lab.run_to(2, &["resume", &trial, "train.epochs=8"]);
    refused.says(&["the sweep `logs/tune`, and would not be comparable with `train.epochs=8`"]);
    lab.run_to(2, &["resume", &trial, "--accept-changed-data"]).says(&["`--accept-changed-data`"]);
    lab.run_to(0, &["resume", &trial]).says(&["already complete"]);
    // What is said to do works.
    let settings = format!("{trial}/resolved.toml");
    let weights = format!("model.pretrained=checkpoints/{}/latest", &trial["logs/".len()..]);
    lab.run_to(0, &[&settings, "experiment.name=own", &weights, "train.epochs=1"]);
    lab.is_clean();
}

#[test]
fn a_sweep_killed_before_or_after_any_decision_is_written_ends_as_an_undisturbed_one() {
    let undisturbed = pruned_lab();
    undisturbed.run_to(0, &["sweep", "tune.toml"]);
    let expected = told(&undisturbed);
    let first = pruned(&undisturbed)[0];
    for point in ["draw", "started", "prune", "pruned", "end", "ended"] {
        let lab = pruned_lab();
        let hit = if ["draw", "started"].contains(&point) { 2 } else { 1 };
        let points = format!("sweep.{point}=kill@parent,*,*,{hit}");
        assert_eq!(lab.run_with(&points, &["sweep", "tune.toml"]).code, -9, "{point}");
        lab.wait_for_all();
        // What is written down is not done again; what is not has not happened.
        if point.starts_with("prune") {
            assert_eq!(pruned(&lab).contains(&first), point == "pruned", "{point}");
        }
        let last = lab.run_to(0, &["sweep", "tune.toml"]);
        let again = format!("trial {first} resumed");
        assert!(point != "pruned" || !last.stderr.contains(&again), "{}", last.stderr);
        assert_eq!(told(&lab), expected, "{point}");
        for number in pruned(&lab) {
            assert!(!lab.path(&format!("checkpoints/tune/trial-{number:04}")).exists());
        }
        lab.is_clean();
    }
}

#[test]
fn a_terminal_without_a_reader_does_not_stop_a_sweep_nor_a_run() {
    for args in [&["sweep", "tune.toml", "sweep.trials=2"][..], &["small.toml"]] {
        let lab = lab(BASE, GRID);
        let (reader, writer) = std::io::pipe().unwrap();
        let room = rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        std::io::Write::write_all(&mut &writer, &vec![b'.'; room]).unwrap();
        let mut command = lab.ddprun(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
        let mut child = command.spawn().unwrap();
        let mut status = None;
        until("the end, although nothing reads", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{args:?}");
        drop(reader);
        lab.is_clean();
    }
}

#[test]
fn a_trial_that_cannot_write_is_tried_again_by_the_same_command() {
    let lab = lab(BASE, &RANDOM.replace("trials = 3", "trials = 2"));
    // A file where a folder should be stands for a disk that takes nothing.
    let file = lab.write("checkpoints/tune/trial-0002", "");
    let end = lab.run_to(9, &["sweep", "tune.toml"]);
    end.says(&["trial 2 failed: ", "the same command retries them"]);
    fs::remove_file(file).unwrap();
    let again = lab.run_to(0, &["sweep", "tune.toml"]);
    again.says(&["1 done, 0 interrupted, 1 failed and retried", "[2 of 2]"]);
    let states: Vec<Value> = ended(&lab).iter().map(|line| line["state"].clone()).collect();
    assert_eq!(states, ["finished", "failed", "finished"]);
    lab.is_clean();
}

#[test]
fn a_trial_that_failed_before_its_first_checkpoint_starts_over_on_the_repaired_data() {
    let lab = Lab::new();
    lab.write_photos();
    let image = lab.path("data/train/red/3.png");
    let whole = fs::read(&image).unwrap();
    fs::write(&image, b"").unwrap();
    let args = ["sweep", "photos.toml", "optimizer.lr=0.1,0.01", "sweep.name=tune"];
    let end = lab.run_to(9, &args);
    end.says(&["trial 2 failed: ", "data/train/red/3.png", "with `--retry-failed`"]);
    assert!(!end.stderr.contains("failed: error:"), "{}", end.stderr);
    fs::write(&image, whole).unwrap();
    let again = lab.run_to(0, &[&args[..], &["--retry-failed"]].concat());
    again.says(&["2 failed and retried", "[2 of 2]"]);
    lab.is_clean();
}

#[test]
fn eval_takes_the_best_trial_of_a_sweep_and_report_shows_all() {
    let lab = lab(BASE, GRID);
    lab.run_to(0, &["sweep", "tune.toml"]);
    let json: Value =
        serde_json::from_slice(&fs::read(lab.path("logs/tune/sweep.json")).unwrap()).unwrap();
    let (best, value) = (&json["best"]["run"], json["best"]["value"].as_f64().unwrap());
    for word in ["tune", "logs/tune"] {
        let eval = lab.run_to(0, &["eval", word]);
        eval.says(&[&format!("the best of 4 trials: `logs/tune/{}`", best.as_str().unwrap())]);
        let line = eval.stdout.lines().find(|line| line.starts_with("val/loss ")).unwrap();
        let loss: f64 = line["val/loss ".len()..].parse().unwrap();
        assert!((loss - value).abs() < 1e-4, "{loss} {value}");
        let report = lab.run_to(0, &["report", word]);
        assert!(report.stdout.contains("rank  trial  val/loss  epochs"), "{}", report.stdout);
        assert!(report.stdout.lines().all(|line| line.chars().count() <= 80));
        lab.run_to(2, &["resume", word]).says(&["is a sweep", "do: "]);
    }
    lab.run_to(2, &["report"]).says(&["see the newest sweep with `ddprun report logs/tune`"]);
    lab.is_clean();
}

#[test]
fn a_trial_whose_rank_dies_is_recorded_and_the_sweep_goes_on() {
    let lab = lab(&saving(10), &RANDOM.replace("trials = 3", "trials = 2"));
    let mut running = start_slowly(&lab, &["fault.max_restarts=0"]);
    let name = trial_folder(&lab, 1).join("metrics.csv");
    let is_there = |_: &Lab| fs::read_to_string(&name).is_ok_and(|text| text.lines().count() > 3);
    stop_when(&lab, &mut running, "a step", is_there);
    let rank = *lab.processes().iter().find(|(_, words)| words.contains("worker")).unwrap().0;
    kill_process(pid_of(rank), Signal::KILL).unwrap();
    let end = running.wait();
    end.has_code(9);
    end.says(&["trial 1 failed: rank ", "[2 of 2]"]);
    let states: Vec<Value> = ended(&lab).iter().map(|line| line["state"].clone()).collect();
    assert_eq!(states, ["failed", "finished"]);
    lab.is_clean();
}

#[test]
fn trials_run_side_by_side_and_status_tells_how_it_stands() {
    let text =
        RANDOM.replace("devices_per_trial = 2\nconcurrent_trials = 1", "concurrent_trials = 2");
    let lab = lab(&saving(10), &text);
    let mut running = start_slowly(&lab, &[]);
    let both =
        |lab: &Lab| [1, 2].iter().all(|&n| trial_folder(lab, n).join("events.jsonl").exists());
    stop_when(&lab, &mut running, "two trials", both);
    let status = lab.run_to(0, &["sweep", "--status", "logs/tune"]);
    assert!(
        status.stdout.contains(&format!("running as pid {}", running.pid())),
        "{}",
        status.stdout
    );
    assert!(status.stdout.contains("2 running"), "{}", status.stdout);
    let second = lab.run_to(2, &["sweep", "tune.toml"]);
    second.says(&["is in use by", "do: "]);
    running.wait().has_code(0);
    let after = lab.run_to(0, &["sweep", "--status", "tune"]);
    assert!(
        after.stdout.contains("not running\n3 of 3 trials done: 3 finished"),
        "{}",
        after.stdout
    );
    lab.is_clean();
}

#[test]
fn a_learning_rate_range_test_draws_its_curve_and_suggests_a_rate() {
    let lab =
        lab(BASE, "method = \"lr_range\"\n[sweep.lr_range]\nmin = 1e-5\nmax = 10.0\nsteps = 60\n");
    let end = lab.run_to(0, &["sweep", "tune.toml"]);
    assert!(end.stdout.contains("suggested optimizer.lr"), "{}{}", end.stdout, end.stderr);
    let csv = fs::read_to_string(lab.path("logs/tune/lr_range.csv")).unwrap();
    assert!(csv.lines().count() > 30, "{csv}");
    let last =
        csv.lines().nth(60).map(|line| line.split(',').next().unwrap().parse::<f64>().unwrap());
    assert!(last.is_none_or(|lr| (lr - 10.0).abs() < 1e-6), "{last:?}");
    assert!(lab.path("logs/tune/lr_range.png").exists());
    let listed = lab.run_to(0, &["ls"]).stdout;
    assert!(listed.contains("\ntune/trial-0001 "), "{listed}");
    lab.run_to(0, &["plan", "logs/tune/best.toml"]);
    for word in ["tune", "logs/tune"] {
        let status = lab.run_to(0, &["sweep", "--status", word]).stdout;
        let parts = ["holds a learning-rate range test", "suggested optimizer.lr", "lr_range.png"];
        assert!(parts.iter().all(|part| status.contains(part)), "{status}");
    }
    lab.run_to(2, &["resume", "tune"]).says(&["is a learning-rate range test", "`ddprun sweep`"]);
    let grid = ["sweep", "small.toml", "optimizer.lr=0.1,0.2", "sweep.name=tune"];
    lab.run_to(2, &grid).says(&["a sweep would write over", "another `sweep.name`"]);
    lab.run_to(0, &["rm", "tune"]);
    assert!(!lab.path("logs/tune").exists() && !lab.path("checkpoints/tune").exists());
    lab.is_clean();
}

#[test]
fn a_learning_rate_range_test_says_that_ctrl_c_stopped_it() {
    let lab = lab(SLOW, "method = \"lr_range\"\n[sweep.lr_range]\nsteps = 50000\n");
    let mut running = lab.start(&["sweep", "tune.toml"]);
    let events = trial_folder(&lab, 1).join("events.jsonl");
    stop_when(&lab, &mut running, "a run", |_| events.exists());
    kill_process_group(pid_of(running.pid()), Signal::INT).unwrap();
    let stopped = running.wait();
    stopped.has_code(130);
    stopped.says(&["stopped; the same command begins the range test again"]);
    let status = lab.run_to(0, &["sweep", "--status", "tune"]).stdout;
    assert!(status.contains("range test, which has not ended"), "{status}");
    lab.is_clean();
}

#[test]
fn spaces_on_the_command_line_make_a_sweep_of_an_experiment() {
    let lab = Lab::new();
    let words = ["sweep", "small.toml", "optimizer.lr=0.1,0.01", "train.epochs=1", "--json"];
    let end = lab.run_to(0, &words);
    let json: Value = serde_json::from_str(end.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(json["trials"].as_array().unwrap().len(), 2);
    assert_eq!(json["name"], "small-sweep");
    lab.is_clean();
}

/// Refused before anything was made.
fn refuses(lab: &Lab, args: &[&str]) -> Ended {
    let before = children(&lab.path(""));
    let ended = lab.run_to(2, args);
    assert_eq!(children(&lab.path("")), before, "a refused sweep leaves nothing on disk");
    ended
}

#[test]
fn a_sweep_that_makes_no_sense_is_refused_with_a_caret() {
    let lab = lab(BASE, &GRID.replace("optimizer.lr", "optimizer.lrr"));
    refuses(&lab, &["sweep", "tune.toml"]).says(&["tune.toml:8:", "did you mean `optimizer.lr`?"]);
    refuses(&lab, &["sweep", "small.toml"]).says(&["is empty: there is nothing to try"]);
    refuses(&lab, &["sweep", "small.toml", "train.batch_size=choice(4,3)"])
        .says(&["trial 2 (train.batch_size=3)", "do: "]);
    refuses(&lab, &["sweep", "--status", "logs/tune"]).says(&["there is no sweep in `logs/tune`"]);
    let trials = ["sweep", "small.toml", "sweep.method=random", "trials=3"];
    refuses(&lab, &trials).says(&["did you mean `sweep.trials=3`?", "1 problem;"]);
    for words in [&["tune.toml"][..], &["plan", "tune.toml"]] {
        refuses(&lab, words).says(&["run it with `ddprun sweep`", "1 problem;"]);
    }
    lab.is_clean();
}

#[test]
fn a_journal_of_another_space_or_a_newer_format_is_refused() {
    let lab = lab(BASE, GRID);
    lab.run_to(0, &["sweep", "tune.toml", "sweep.trials=1"]);
    let other = ["sweep", "tune.toml", "optimizer.lr=0.5,0.25"];
    let refused = lab.run_to(2, &other);
    let rates = "`sweep.parameters.\"optimizer.lr\"`: [0.001, 0.01] -> [0.5, 0.25]";
    refused.says(&["`logs/tune` holds another sweep", rates, "--extend"]);
    lab.run_to(2, &["sweep", "tune.toml", "train.epochs=3", "--extend"])
        .says(&["`train.epochs`: 2 -> 3", "another `sweep.name`"]);
    lab.run_to(0, &[&other[..], &["sweep.trials=2", "--extend"]].concat()).says(&["[2 of 2]"]);
    let path = lab.path("logs/tune/journal.jsonl");
    let newer = fs::read_to_string(&path).unwrap().replacen("\"format\":1", "\"format\":2", 1);
    fs::write(&path, newer).unwrap();
    lab.run_to(2, &["sweep", "tune.toml"])
        .says(&["has format 2, and this ddprun reads formats up to 1"]);
    lab.is_clean();
}

#[test]
fn trials_and_the_best_of_them_are_tagged_and_removed_by_name() {
    let lab = lab(BASE, GRID);
    lab.run_to(0, &["sweep", "tune.toml"]);
    let results: Value =
        serde_json::from_slice(&fs::read(lab.path("logs/tune/sweep.json")).unwrap()).unwrap();
    let best = results["best"]["trial"].as_u64().unwrap();
    let best = format!("tune/trial-{best:04}");
    let said = lab.run_to(0, &["tag", "tune", "+winner"]).stdout;
    assert_eq!(said, format!("{}: winner\n", &best[5..]));
    // Who holds the lock of a sweep runs it.
    let running = fs::OpenOptions::new().write(true).open(lab.path("logs/tune/.lock")).unwrap();
    running.lock().unwrap();
    lab.run_to(2, &["rm", &best]).says(&["`logs/tune` is in use by ", "do: "]);
    drop(running);
    lab.run_to(0, &["rm", &best]);
    for verb in [&["eval", "tune"][..], &["tag", "tune", "+x"], &["checkpoint", "verify", "tune"]] {
        let ended = lab.run_to(2, verb);
        ended.says(&[
            &format!("`logs/{best}`, the best trial"),
            "was removed",
            "the best that is left is `logs/tune/trial-",
        ]);
    }
    lab.is_clean();
}

#[test]
fn a_metric_without_a_meaning_is_one_problem_and_a_sweep_goes_with_its_trials() {
    let lab = lab(BASE, GRID);
    lab.run_to(0, &["sweep", "tune.toml"]);
    let dry = lab.run_to(0, &["rm", "tune", "--dry-run"]).stdout;
    assert!(lab.path("logs/tune/trial-0001").is_dir() && dry.contains("trial-0004"), "{dry}");
    lab.run_to(0, &["rm", "tune"]);
    assert!(!lab.path("logs/tune").exists() && !lab.path("checkpoints/tune").exists());
    lab.write(
        "tune.toml",
        fs::read_to_string(lab.path("tune.toml")).unwrap().replace("val/loss", "val/r2"),
    );
    let ended = lab.run_to(2, &["sweep", "tune.toml"]);
    ended.says(&["`sweep.metric`: `val/r2`", "tune.toml:4:", "^^^^", "1 problem;"]);
    lab.write(
        "tune.toml",
        fs::read_to_string(lab.path("tune.toml"))
            .unwrap()
            .replace("metric = \"val/r2\"", "method = \"bayes\""),
    );
    let ended = lab.run_to(2, &["sweep", "tune.toml"]);
    ended.says(&["did you mean `tpe`?", "1 problem;"]);
}
