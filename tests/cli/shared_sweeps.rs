//! Sweeps that several processes share, as machines with one folder do.

use std::fs;
use std::sync::OnceLock;

use rustix::process::{Signal, kill_process};

use crate::harness::experiments::{SLOW, saving};
use crate::harness::lab::Lab;
use crate::harness::running::{Running, pid_of, spawn, until};
use crate::sweeps::{Told, ended, lab, told};

/// Values that do not depend on who trained what.
pub(crate) const RANDOM: &str = "method = \"random\"\ntrials = 4\nconcurrent_trials = 1\n\
    [sweep.parameters.\"optimizer.lr\"]\ndistribution = \"log_uniform\"\nmin = 1e-3\nmax = 0.1\n";

/// What a sweep of [`experiment`] on one machine tells. It runs once.
pub(crate) fn undisturbed() -> &'static [Told] {
    static TOLD: OnceLock<Vec<Told>> = OnceLock::new();
    TOLD.get_or_init(|| {
        let lab = lab(&experiment(), RANDOM);
        lab.run_to(0, &["sweep", "tune.toml"]);
        told(&lab)
    })
}

/// Trials of 30 steps.
pub(crate) fn experiment() -> String {
    saving(5)
}

/// The steps of a worker take so long that others can join.
pub(crate) const SLOWLY: &str = "backward=sleep(70)@*,*,*";

/// A worker of a slow sweep.
fn share(lab: &Lab) -> Running {
    let mut command = lab.ddprun(&["sweep", "tune.toml", "--share"]);
    command.env("DDPRUN_FP", SLOWLY);
    spawn(command)
}

/// Two trials run, each in a process of its own; returns the leader and the other.
fn two_at_work(lab: &Lab) -> [Running; 2] {
    let leader = share(lab);
    until("the first trial", || steps(lab, 1) > 3);
    let other = share(lab);
    until("the second trial", || steps(lab, 2) > 3);
    [leader, other]
}

/// Steps that a trial has recorded.
pub(crate) fn steps(lab: &Lab, trial: u32) -> usize {
    let path = lab.path(&format!("logs/tune/trial-{trial:04}/metrics.csv"));
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn a_worker_that_is_stopped_saves_and_the_others_end_the_sweep_as_one_machine_would() {
    let lab = lab(&experiment(), RANDOM);
    let [leader, other] = two_at_work(&lab);
    let status = lab.run_to(0, &["sweep", "--status", "tune"]).stdout;
    assert!(status.contains(&format!("led by pid {} on ", leader.pid())), "{status}");
    assert!(status.contains(", 2 workers\n"), "{status}");
    other.signal(Signal::TERM);
    let left = other.wait();
    left.has_code(75);
    left.says(&["of sweep `logs/tune`, led by pid ", "trial 2 interrupted; it resumes"]);
    left.says(&["other workers continue the sweep"]);
    let end = leader.wait();
    end.has_code(0);
    end.says(&["2 concurrent trials now", "trial 2 has lost its worker", "[4 of 4]"]);
    assert_eq!(told(&lab), undisturbed());
    assert!(!lab.path("logs/tune/workers").exists());
    lab.run_to(0, &["sweep", "tune.toml", "--share"]);
    assert_eq!(ended(&lab).len(), 4);
    lab.is_clean();
}

#[test]
fn a_leader_that_is_killed_is_followed_by_another_worker_which_resumes_its_trials() {
    let lab = lab(&experiment(), RANDOM);
    let [leader, other] = two_at_work(&lab);
    kill_process(pid_of(leader.pid()), Signal::KILL).unwrap();
    leader.wait();
    let end = other.wait();
    end.has_code(0);
    end.says(&["0 done, 2 under way", "trial 1 has lost its worker", "trial 1 continues"]);
    end.says(&["[4 of 4]"]);
    assert_eq!(told(&lab), undisturbed());
    lab.is_clean();
}

#[test]
fn what_cannot_be_shared_is_refused_in_words() {
    let one = lab(SLOW, "method = \"lr_range\"\n");
    one.run_to(2, &["sweep", "tune.toml", "--share"]).says(&["is one run", "without `--share`"]);
    let other = lab(SLOW, RANDOM);
    other.run_to(0, &["sweep", "tune.toml", "sweep.trials=1"]);
    let refused = other.run_to(2, &["sweep", "tune.toml", "sweep.seed=9", "--share"]);
    refused.says(&["holds another sweep", "`sweep.seed`: "]);
    assert!(!other.path("logs/tune/workers").exists());
    let mut command = other.ddprun(&["sweep", "tune.toml"]);
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]);
    command.envs([("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")]);
    spawn(command).wait().says(&["started 2 processes", "--share"]);
}
