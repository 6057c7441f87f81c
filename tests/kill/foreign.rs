//! Ranks that another launcher started.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::{FOLDER, SCENARIO, signal_to, until};

/// Starts `ranks` of a world of `world` as torchrun does, and returns their exit codes and output.
fn torchrun(
    scenario: &str,
    ranks: &[u32],
    world: u32,
    local: u32,
    stop: Option<usize>,
) -> Vec<(Option<i32>, String)> {
    let folder = tempfile::tempdir().unwrap();
    let id = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    let start = |rank: &u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_worker", "--nocapture"]);
        command.env(SCENARIO, scenario).env(FOLDER, folder.path());
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", world.to_string()).env("LOCAL_WORLD_SIZE", local.to_string());
        command
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29500")
            .env("TORCHELASTIC_RUN_ID", &id);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = ranks.iter().map(start).collect();
    if let Some(at) = stop {
        // Once a process has mapped the memory it has joined, so it listens to signals.
        let pid = children[at].id();
        until(|| {
            std::fs::read_to_string(format!("/proc/{pid}/maps"))
                .unwrap()
                .contains("memfd:ddprun")
                .then_some(())
        });
        signal_to(pid, Signal::TERM);
    }
    let wait = |child: Child| {
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    children.into_iter().map(wait).collect()
}

#[test]
fn under_torchrun_rank_0_hands_plan_and_memory_to_the_others() {
    // The others come first, and wait.
    for (code, output) in torchrun("fine", &[2, 1, 0], 3, 3, None) {
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("of 3"), "{output}");
    }
}

#[test]
fn under_torchrun_a_signal_to_one_rank_stops_all() {
    for (code, output) in torchrun("foreign_stop", &[0, 1, 2], 3, 3, Some(1)) {
        assert_eq!(code, Some(75), "{output}");
    }
}

#[test]
fn under_torchrun_a_bad_experiment_is_told_to_all_ranks() {
    let ended = torchrun("refuse", &[0, 1, 2], 3, 3, None);
    assert!(ended[0].1.contains("JOIN: `lr` must be positive"), "{}", ended[0].1);
    for (_, output) in &ended[1..] {
        assert!(
            output.contains("JOIN: rank 0 could not prepare the run: `lr` must be positive"),
            "{output}"
        );
    }
}

#[test]
fn several_machines_and_another_world_are_refused_in_words() {
    let (_, output) = &torchrun("fine", &[0], 4, 2, None)[0];
    assert!(output.contains("the launcher started 4 ranks, 2 of them on this machine"), "{output}");
    for (_, output) in torchrun("fine", &[0, 1], 2, 2, None) {
        assert!(output.contains("the plan is for 3 ranks, but the launcher started 2"), "{output}");
    }
}
