//! Who was given up, or comes too late, or cannot be ended.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Running, pid_of, spawn, until};
use crate::machines::{Machines, end};
use crate::skipped::skipped;

/// Runs the program beside a disk that is made for it, in a view of the file system that ends with
/// it.
const SCRIPT: &str = r#"
mount -o loop disk.img disk || exit 99
exec "$@"
"#;

/// A disk on which a process that writes waits and cannot be killed, until this is dropped. The
/// open folder outlives the processes that could name it.
struct Frozen(File);

impl Frozen {
    /// Freezes the disk that the process `pid` sees at `path`.
    fn of(pid: u32, path: &Path) -> Self {
        let frozen = Self(File::open(format!("/proc/{pid}/root{}", path.display())).unwrap());
        assert!(frozen.fsfreeze("-f"));
        frozen
    }

    fn fsfreeze(&self, flag: &str) -> bool {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        Command::new("fsfreeze").args([flag, &path]).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.fsfreeze("-u");
    }
}

/// A run whose checkpoints go to a disk of its own; `None` where none may be made.
fn on_own_disk(lab: &Lab, changes: &[&str]) -> Option<Running> {
    std::fs::create_dir(lab.path("disk")).unwrap();
    File::create(lab.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(lab.path("disk.img")).status();
    made.ok().filter(std::process::ExitStatus::success)?;
    let program = ["-m", "sh", "-c", SCRIPT, "sh", BINARY, "small.toml", "checkpoint.dir=disk"];
    let mut running = spawn(lab.command("unshare", &[&program[..], changes].concat()));
    let is_saved = || lab.events().iter().any(|event| event["event"] == "saved");
    until("a checkpoint", || is_saved() || running.is_over());
    (!running.is_over()).then_some(running)
}

#[test]
#[ignore = "waits for ten seconds, and makes a disk: `just soak`"]
fn a_rank_that_sigkill_does_not_end_is_given_up_and_named() {
    let lab = Lab::new();
    let endless = ["train.epochs=1000000", "validation.every=never", "checkpoint.every=20 steps"];
    let Some(running) = on_own_disk(&lab, &endless) else {
        skipped("no disk of its own (root, `unshare`, `mkfs.ext4`, a loop device)");
        return;
    };
    let [writer, other] = running.ranks()[..] else { panic!("two ranks") };
    let frozen = Frozen::of(writer, &lab.path("disk"));
    let waits = |pid: u32| {
        let threads = children(format!("/proc/{pid}/task").as_ref());
        let status = |path: std::path::PathBuf| std::fs::read_to_string(path.join("status"));
        threads
            .into_iter()
            .filter_map(|path| status(path).ok())
            .any(|text| text.contains("D (disk"))
    };
    until("a thread that waits for the disk", || waits(writer));
    kill_process(pid_of(other), Signal::KILL).unwrap();
    let ended = running.wait();
    ended.has_code(5);
    let words = format!("cannot be killed (pid {writer}); the machine may need a restart");
    ended.says(&["rank 1 was killed by SIGKILL", &words]);
    assert!(waits(writer), "it is there as long as its disk is frozen");
    drop(frozen);
    until("its end", || !waits(writer) && lab.processes().is_empty());
}

#[test]
fn a_machine_that_comes_while_the_others_train_finds_no_door_and_they_do_not_notice() {
    let machines = Machines::new(2);
    let mut all = machines.endless(&[]);
    for node in [0, 1] {
        // With all that a member of the run has: its number, its token, its experiment.
        let lab = Lab::new();
        std::fs::copy(machines.labs[0].path("run.token"), lab.path("run.token")).unwrap();
        let verb = ["small.toml", "--nproc-per-node", "1"];
        let late = machines.command(&lab, node, &verb, &["distributed.timeout=1s"]);
        let late = spawn(late).wait();
        late.has_code(5);
        late.says(&["did not come", "do: "]);
        lab.is_clean();
    }
    assert!(all.iter_mut().all(|running| !running.is_over()));
    let step = machines.labs[0].last_step();
    machines.labs[0].wait_for_step(&mut all[0], step + 20);
    all[0].signal(Signal::TERM);
    for ended in end(all) {
        ended.has_code(75);
        assert!(!ended.stderr.contains("refused"), "{}", ended.stderr);
    }
    machines.are_clean();
}
