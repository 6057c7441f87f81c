//! Ranks that another launcher started.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use test_support::processes::is_stopped;

use crate::{FOLDER, SCENARIO, signal_to, until};

/// Ranks of a launch, and the folder of their run.
struct Launch {
    ranks: Vec<Child>,
    _folder: tempfile::TempDir,
}

impl Launch {
    /// Starts `ranks` of a world of `world`, of which `local` are on this machine, as torchrun
    /// does.
    fn start(scenario: &str, ranks: &[u32], (world, local): (u32, u32)) -> Self {
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
        Self { ranks: ranks.iter().map(start).collect(), _folder: folder }
    }

    /// Waits until the process that was started as the `at`-th has mapped the memory: it has joined
    /// then, and listens to signals.
    fn wait_until_joined(&self, at: usize) {
        let pid = self.ranks[at].id();
        let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        until(|| maps().contains("memfd:ddprun").then_some(()));
    }

    /// Exit codes and output.
    fn end(self) -> Vec<(Option<i32>, String)> {
        let wait = |child: Child| {
            let output = child.wait_with_output().unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        self.ranks.into_iter().map(wait).collect()
    }
}

#[test]
fn under_torchrun_rank_0_hands_plan_and_memory_to_the_others() {
    // The others come first, and wait.
    for (code, output) in Launch::start("fine", &[2, 1, 0], (3, 3)).end() {
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("of 3"), "{output}");
    }
}

#[test]
fn under_torchrun_a_signal_to_one_rank_stops_all() {
    let launch = Launch::start("foreign_stop", &[0, 1, 2], (3, 3));
    launch.wait_until_joined(1);
    signal_to(launch.ranks[1].id(), Signal::TERM);
    for (code, output) in launch.end() {
        assert_eq!(code, Some(75), "{output}");
    }
}

#[test]
fn under_torchrun_the_others_end_at_once_and_name_a_rank_that_was_killed() {
    for (scenario, dead) in [("die", 1), ("die_first", 0)] {
        let ended = Launch::start(scenario, &[0, 1, 2], (3, 3)).end();
        for (rank, (code, output)) in ended.iter().enumerate() {
            if rank == dead {
                assert_eq!(*code, None, "{output}");
            } else {
                assert_eq!(*code, Some(5), "{output}");
                // Not "timed out waiting for rank 1 after 30.0 s", which is what the deadline says.
                assert!(output.contains(") died"), "{output}");
                assert!(output.contains(&format!("rank {dead} (pid ")), "{output}");
            }
        }
    }
}

#[test]
fn under_torchrun_a_second_sigterm_ends_the_wait_for_a_rank_that_is_stopped() {
    let mut launch = Launch::start("freeze", &[0, 1, 2], (3, 3));
    let [first, stopped] = [0, 1].map(|at| launch.ranks[at].id());
    launch.wait_until_joined(0);
    until(|| is_stopped(stopped).then_some(()));
    // One signal often comes twice at once, which ends nothing; later ones do.
    until(|| {
        signal_to(first, Signal::TERM);
        launch.ranks[0].try_wait().unwrap()
    });
    signal_to(stopped, Signal::KILL);
    let ended = launch.end();
    let codes: Vec<Option<i32>> = ended.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [Some(5), None, Some(5)], "{ended:?}");
    assert!(ended[0].1.contains("timed out waiting for rank 1 "), "{}", ended[0].1);
    assert!(!ended[0].1.contains(" after 30.0 s"), "that is the deadline: {}", ended[0].1);
}

#[test]
fn under_torchrun_a_bad_experiment_is_told_to_all_ranks() {
    let ended = Launch::start("refuse", &[0, 1, 2], (3, 3)).end();
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
    let (_, output) = &Launch::start("fine", &[0], (4, 2)).end()[0];
    assert!(output.contains("the launcher started 4 ranks, 2 of them on this machine"), "{output}");
    for (_, output) in Launch::start("fine", &[0, 1], (2, 2)).end() {
        assert!(
            output.contains("the world size of the plan is 3, but the launcher started 2"),
            "{output}"
        );
    }
}
