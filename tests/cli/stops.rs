//! Ranks and runs that are killed, stopped, interrupted and left: who is named, what is saved, who
//! is left.

use std::fs;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Signal, kill_process, kill_process_group};
use test_support::processes::{is_alive, is_killed};

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::saving;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, Running, pid_of, until};

/// A run that ends only when it is stopped.
const ENDLESS: [&str; 6] = [
    "small.toml",
    "train.epochs=1000000",
    "validation.every=never",
    "checkpoint.every=20 steps",
    "logging.every=10 steps",
    "logging.sinks=[jsonl]",
];

/// An endless run in the middle of its steps, with at least one checkpoint.
fn endless(lab: &Lab, changes: &[&str]) -> Running {
    let mut running = lab.start(&[&ENDLESS[..], changes].concat());
    if changes.contains(&"checkpoint.every=never") {
        lab.wait_for_step(&mut running, 40);
    } else {
        lab.wait_for_step_and_save(&mut running, 40);
    }
    assert!(!running.is_over(), "{}", running.stderr());
    running
}

/// The number after `label` in what was said.
fn number_after(ended: &Ended, label: &str) -> u64 {
    let rest = ended.stderr.split(label).nth(1).unwrap_or_else(|| panic!("{}", ended.stderr));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn a_killed_rank_is_named_with_its_step_its_log_and_what_is_saved() {
    let lab = Lab::new();
    let running = endless(&lab, &[]);
    let rank = running.ranks()[1];
    kill_process(pid_of(rank), Signal::KILL).unwrap();
    let ended = running.wait();
    ended.has_code(5);
    ended.says(&["error: rank 1 was killed by SIGKILL\n", "where: rank 1 on "]);
    ended.says(&[&format!(", pid {rank}, "), "why:   not by ddprun", "then:  rank 0 ("]);
    ended.says(&["rank-1.log\n", "do:    fix the cause, then run `ddprun resume "]);
    let (failed, saved) = (number_after(&ended, ", step "), number_after(&ended, "saved: step "));
    assert!(failed >= 40 && saved >= 20 && saved <= failed, "step {failed}, saved {saved}");
    assert!(saved.is_multiple_of(20), "{saved}");
    let written = fs::read_to_string(lab.run_folder().join("failure.json")).unwrap();
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!((written["rank"].as_u64(), written["step"].as_u64()), (Some(1), Some(failed)));
    lab.is_clean();
}

/// Slurm and systemd send SIGTERM to all processes of a job, and a terminal that ends SIGHUP; what
/// is to be done the parent says.
#[test]
fn a_signal_does_not_kill_a_rank_that_does_not_listen_to_it_yet() {
    for signal in ["term", "hup"] {
        let lab = Lab::new();
        lab.run_with(&format!("join={signal}@1,*"), &["small.toml"]).has_code(0);
        lab.is_clean();
    }
}

#[test]
fn a_killed_rank_0_is_named_and_the_run_can_be_resumed() {
    let lab = Lab::new();
    let running = endless(&lab, &[]);
    kill_process(pid_of(running.ranks()[0]), Signal::KILL).unwrap();
    let ended = running.wait();
    ended.has_code(5);
    ended.says(&["error: rank 0 was killed by SIGKILL\n", "saved: step "]);
    assert!(lab.processes().is_empty());
    let steps = lab.last_step();
    let resumed = lab.run_to(0, &["resume", &format!("train.epochs={}", steps / 6 + 10)]);
    resumed.says(&["resumed after step ", "completed after step "]);
    lab.is_clean();
}

#[test]
fn a_stopped_rank_is_named_as_stopped_when_the_deadline_is_over() {
    let lab = Lab::new();
    let running = endless(&lab, &["distributed.timeout=3s"]);
    let rank = running.ranks()[1];
    kill_process(pid_of(rank), Signal::STOP).unwrap();
    let ended = running.wait();
    ended.has_code(5);
    ended.says(&[&format!("error: rank 1 (pid {rank}) is stopped (SIGSTOP)"), "where: rank 1 on "]);
    ended.says(&["warning: rank 1", "the others wait for it", "saved: step ", "do:    "]);
    lab.is_clean();
}

#[test]
fn a_stopped_rank_is_named_and_replaced_within_its_patience() {
    let lab = Lab::new();
    let changes = ["fault.stall_timeout=1s", "fault.max_restarts=1"];
    let mut running = endless(&lab, &changes);
    let rank = running.ranks()[1];
    kill_process(pid_of(rank), Signal::STOP).unwrap();
    until("the restart", || {
        running.stderr().contains("restart 1 of 1, from the newest checkpoint")
    });
    let step = lab.last_step();
    lab.wait_for_step(&mut running, step + 20);
    running.signal(Signal::TERM);
    let ended = running.wait();
    ended.has_code(75);
    ended.says(&[&format!("newest checkpoint: rank 1 (pid {rank}) is stopped (SIGSTOP)")]);
    saved_and_resumable(&lab, &ended);
}

#[test]
fn a_rank_that_is_stopped_for_less_than_the_deadline_goes_on() {
    let lab = Lab::new();
    let mut running = endless(&lab, &[]);
    let rank = pid_of(running.ranks()[1]);
    kill_process(rank, Signal::STOP).unwrap();
    until("the warning", || running.stderr().contains("is stopped; the others wait for it"));
    let step = lab.last_step();
    kill_process(rank, Signal::CONT).unwrap();
    lab.wait_for_step(&mut running, step + 20);
    until("the news", || running.stderr().contains("rank 1 is running again"));
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.is_clean();
}

/// Stopped by request: the newest checkpoint is that of the last step, and the run goes on from
/// there.
fn saved_and_resumable(lab: &Lab, ended: &Ended) {
    let step = number_after(ended, "(state saved) after step ");
    let newest = lab.steps().pop().unwrap();
    assert!(newest.ends_with(format!("step-{step:08}")), "{} is newest", newest.display());
    lab.is_clean();
    let epochs = format!("train.epochs={}", step / 6 + 2);
    let resumed = lab.run_to(0, &["resume", &epochs]);
    resumed.says(&[&format!("resumed after step {step}\n"), "completed after step "]);
    lab.is_clean();
}

#[test]
fn a_run_that_is_asked_to_end_saves_and_leaves_with_75() {
    let lab = Lab::new();
    let running = endless(&lab, &["checkpoint.every=never"]);
    running.signal(Signal::TERM);
    let ended = running.wait();
    ended.has_code(75);
    ended.says(&["stopping at the end of this step"]);
    saved_and_resumable(&lab, &ended);
}

#[test]
fn a_rank_that_is_asked_to_end_takes_the_others_with_it() {
    let lab = Lab::new();
    let running = endless(&lab, &[]);
    kill_process(pid_of(running.ranks()[1]), Signal::TERM).unwrap();
    let ended = running.wait();
    ended.has_code(75);
    saved_and_resumable(&lab, &ended);
}

#[test]
fn ctrl_c_reaches_all_processes_at_once_and_saves_once() {
    let lab = Lab::new();
    let running = endless(&lab, &[]);
    kill_process_group(pid_of(running.pid()), Signal::INT).unwrap();
    let ended = running.wait();
    ended.has_code(130);
    assert_eq!(ended.stderr.matches("(state saved) after step ").count(), 1, "{}", ended.stderr);
    saved_and_resumable(&lab, &ended);
}

#[test]
fn ctrl_c_twice_leaves_without_saving() {
    // A rank may vote before it has heard the second.
    for _ in 0..5 {
        let lab = Lab::new();
        let running = endless(&lab, &["checkpoint.every=never"]);
        let rank = pid_of(running.ranks()[1]);
        kill_process(rank, Signal::STOP).unwrap();
        for words in ["at the end of this step ...", "at the end of this step, without saving"] {
            // Several at once are one.
            until(words, || {
                running.signal(Signal::INT);
                running.stderr().contains(words)
            });
        }
        kill_process(rank, Signal::CONT).unwrap();
        let ended = running.wait();
        ended.has_code(130);
        lab.is_clean();
        if !ended.stderr.contains("(state saved)") {
            ended.says(&["(state not saved) after step "]);
            assert!(lab.steps().is_empty());
            return;
        }
    }
    panic!("five runs had voted before the second Ctrl-C");
}

/// GNU `timeout -s INT` sends it to the program, and to the group in which the program is.
#[test]
fn ctrl_c_that_is_sent_twice_at_once_counts_once() {
    let lab = Lab::new();
    let running = endless(&lab, &[]);
    running.signal(Signal::INT);
    kill_process_group(pid_of(running.pid()), Signal::INT).unwrap();
    let ended = running.wait();
    ended.has_code(130);
    ended.says(&["(state saved)"]);
    lab.is_clean();
}

#[test]
fn a_signal_before_the_first_step_ends_with_its_code_and_leaves_no_run() {
    let lab = Lab::new();
    for (signal, code) in [("term", 75), ("hup", 75)] {
        let ended = lab.run_with(&format!("parse={signal}@parent,*"), &["small.toml"]);
        ended.has_code(code);
        ended.says(&["stopped before the first step"]);
        assert!(children(&lab.path("logs/small")).is_empty(), "nothing was begun");
    }
    // Half-made data are made anew.
    lab.run_to(0, &["small.toml"]);
    lab.is_clean();
}

#[test]
fn ranks_do_not_outlive_their_parent() {
    let lab = Lab::new();
    let mut running = endless(&lab, &[]);
    let ranks = running.ranks();
    assert_eq!((lab.processes().len(), ranks.len()), (3, 2));
    running.signal(Signal::KILL);
    until("the end of the parent", || running.is_over());
    assert!(ranks.into_iter().all(is_killed), "a rank outlives its parent");
    lab.wait_for_all();
    let step = lab.last_step();
    assert_eq!(running.wait().code, -9);
    // The next owner of the run sweeps what was half-written.
    lab.run_to(0, &["resume", &format!("train.epochs={}", step / 6 + 2)]);
    lab.is_clean();
}

/// A checkpoint of 28 MiB at every second step: one is always being written.
fn large() -> String {
    saving(2).replace("hidden = [16]", "hidden = [3072]") + "keep_last = 2\n"
}

/// Kills by `kill`, which says whether a half-written checkpoint was left, and goes on.
fn killed_in_the_middle_of_a_write(code: i32, kill: impl Fn(&Lab, &mut Running) -> bool) {
    let expected = undisturbed(&Lab::with(&large()), &[]);
    // The write may be over before the signal comes.
    for _ in 0..10 {
        let lab = Lab::with(&large());
        let mut running = lab.start(&["small.toml"]);
        lab.wait_for_step_and_save(&mut running, 2);
        let was_writing = kill(&lab, &mut running);
        let ended = running.wait();
        if !was_writing {
            continue;
        }
        ended.has_code(code);
        let whole = lab.run_to(0, &["checkpoint", "verify"]);
        assert_eq!(whole.stdout.matches(": intact\n").count(), lab.steps().len());
        lab.run_to(0, &["resume"]).says(&["resumed after step ", "completed after step 12"]);
        bits(&lab).must_be(&expected);
        lab.is_clean();
        return;
    }
    panic!("ten checkpoints were written before their process was killed");
}

/// Waits until a checkpoint is being written, or the run is over.
fn wait_for_a_write(lab: &Lab, running: &mut Running) {
    until("a half-written checkpoint", || running.is_over() || !lab.temporaries().is_empty());
}

#[test]
fn a_run_killed_while_a_checkpoint_is_written_goes_on_from_the_one_before() {
    killed_in_the_middle_of_a_write(-9, |lab, running| {
        wait_for_a_write(lab, running);
        if running.is_over() {
            return false;
        }
        kill_process_group(pid_of(running.pid()), Signal::KILL).unwrap();
        until("the end", || lab.processes().keys().all(|pid| *pid == running.pid()));
        !lab.temporaries().is_empty()
    });
}

#[test]
fn a_rank_0_killed_while_it_writes_a_checkpoint_leaves_the_one_before() {
    killed_in_the_middle_of_a_write(5, |lab, running| {
        let Some(&rank) = running.ranks().first() else { return false };
        wait_for_a_write(lab, running);
        if running.is_over() {
            return false;
        }
        // The parent removes what a killed rank leaves: it shall do so after we have looked.
        running.signal(Signal::STOP);
        // It may be gone already.
        let _ = kill_process(pid_of(rank), Signal::KILL);
        until("the end of rank 0", || !is_alive(rank));
        let was_writing = !lab.temporaries().is_empty();
        running.signal(Signal::CONT);
        was_writing
    });
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_the_run_and_is_named() {
    let lab = Lab::new();
    let mut running = endless(&lab, &[]);
    let (folder, aside) = (lab.checkpoints(), lab.path("aside"));
    fs::write(&aside, "no folder").unwrap();
    // In one step: a save in between would make the folder again.
    renameat_with(CWD, &folder, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
    until("the end", || running.is_over());
    let ended = running.wait();
    ended.has_code(6);
    ended.says(&["error: cannot ", "checkpoints/small/", ", saving, step ", "why:   "]);
    ended.says(&["do:    make room, or move the folder and leave a link"]);
    assert_eq!(ended.stderr.matches("error: ").count(), 1, "{}", ended.stderr);
    fs::remove_file(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    lab.run_to(0, &["checkpoint", "verify"]);
    assert!(lab.processes().is_empty());
}
