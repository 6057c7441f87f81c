//! A folder in which the binary runs: experiments, data, runs, and what is left of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use test_support::processes::is_alive;

use crate::harness::experiments::BASE;
use crate::harness::running::{Ended, Running, pid_of, spawn, until};

/// The program that is tested.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ddprun");

/// A fail point by which each checkpoint is on the disk before the next step, however slow that is.
pub(crate) const SAVED: &str = "checkpoint.queued=wait@*,*,*";

/// Carries the lab's folder into every process of it.
const MARK: &str = "LAB_FOLDER";

/// A folder of its own for one test.
pub(crate) struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    /// A folder with the experiment [`BASE`] in `small.toml`.
    pub(crate) fn new() -> Self {
        Self::with(BASE)
    }

    /// A folder with this experiment, named `small`, in `small.toml`.
    pub(crate) fn with(experiment: &str) -> Self {
        let lab = Self { folder: tempfile::tempdir().unwrap() };
        lab.write("small.toml", experiment);
        lab
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// The binary in this folder, with none of a launcher's variables.
    pub(crate) fn ddprun(&self, args: &[&str]) -> Command {
        self.command(BINARY, args)
    }

    /// As [`Lab::ddprun`], of another program.
    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.folder.path()).env(MARK, self.folder.path());
        // Names of the hub mean what the test has put into this cache.
        command.env("HF_HOME", self.path("hf")).env("HF_HUB_OFFLINE", "1");
        let foreign = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID"];
        let launches =
            ["OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "DDPRUN_JOB"];
        for name in foreign.into_iter().chain(launches) {
            command.env_remove(name);
        }
        command
    }

    /// Runs the binary to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.start(args).wait()
    }

    /// As [`Lab::run`]; shows the outputs if the exit code is another.
    pub(crate) fn run_to(&self, code: i32, args: &[&str]) -> Ended {
        let ended = self.run(args);
        ended.has_code(code);
        ended
    }

    /// As [`Lab::run`], with these fail points.
    pub(crate) fn run_with(&self, points: &str, args: &[&str]) -> Ended {
        let mut command = self.ddprun(args);
        command.env("DDPRUN_FP", points).env("RUST_BACKTRACE", "0");
        spawn(command).wait()
    }

    /// Waits until none of this lab's processes runs.
    pub(crate) fn wait_for_all(&self) {
        until("the end of the ranks", || self.processes().is_empty());
    }

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        spawn(self.ddprun(args))
    }

    /// The only run of this lab: `logs/<name>/<id>`.
    pub(crate) fn run_folder(&self) -> PathBuf {
        only(&self.path("logs/small"))
    }

    /// The only set of generated images.
    pub(crate) fn generated(&self) -> PathBuf {
        let sets = children(&self.path("data/shapes")).into_iter().filter(|path| path.is_dir());
        let mut sets: Vec<PathBuf> = sets.collect();
        assert_eq!(sets.len(), 1, "{sets:?}");
        sets.remove(0)
    }

    /// The checkpoints of the only run.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        only(&self.path("checkpoints/small"))
    }

    /// Folders of the checkpoints, oldest first.
    pub(crate) fn steps(&self) -> Vec<PathBuf> {
        let mut steps: Vec<PathBuf> = children(&self.checkpoints())
            .into_iter()
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("step-"))
            .collect();
        steps.sort();
        steps
    }

    /// Everything that the only run has said; nothing while there is no run yet.
    pub(crate) fn events(&self) -> Vec<Value> {
        let Some(run) = children(&self.path("logs/small")).pop() else { return Vec::new() };
        let text = fs::read_to_string(run.join("events.jsonl")).unwrap_or_default();
        // The last line may be in the middle of being written.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// What the ranks told of themselves last.
    pub(crate) fn rank_stats(&self) -> Value {
        let told = self.events().into_iter().rfind(|event| event["event"] == "rank_stats");
        told.unwrap_or_default()
    }

    /// Steps that have been recorded.
    pub(crate) fn last_step(&self) -> u64 {
        let steps = self.events().into_iter().filter(|event| event["event"] == "step_done");
        steps.filter_map(|event| event["step"].as_u64()).max().unwrap_or(0)
    }

    /// Waits until `step` is recorded, or the run is over.
    pub(crate) fn wait_for_step(&self, running: &mut Running, step: u64) {
        until("a step", || running.is_over() || self.last_step() >= step);
    }

    /// Waits until `step` is recorded and a checkpoint is on disk, or the run is over.
    pub(crate) fn wait_for_step_and_save(&self, running: &mut Running, step: u64) {
        self.wait_for_step(running, step);
        let is_saved = || self.events().iter().any(|event| event["event"] == "saved");
        until("a checkpoint", || running.is_over() || is_saved());
    }

    /// Process numbers of all processes of this lab, with their command lines.
    pub(crate) fn processes(&self) -> BTreeMap<u32, String> {
        let mark = format!("{MARK}={}", self.folder.path().display());
        let numbers = children(Path::new("/proc"));
        let numbers = numbers.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
        numbers
            .filter(|pid: &u32| {
                let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environ.split(|&byte| byte == 0).any(|entry| entry == mark.as_bytes())
            })
            .filter(|pid| is_alive(*pid))
            .map(|pid| {
                let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                (pid, String::from_utf8_lossy(&words).replace('\0', " "))
            })
            .collect()
    }

    /// Temporary files and folders of ddprun below this folder, and half-generated data.
    pub(crate) fn temporaries(&self) -> Vec<PathBuf> {
        let mut open = vec![self.folder.path().to_owned()];
        let mut found = Vec::new();
        while let Some(folder) = open.pop() {
            for path in children(&folder) {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if name.ends_with(".ddprun-tmp") || name.ends_with("partial") {
                    found.push(path.clone());
                }
                if path.is_dir() && !path.is_symlink() {
                    open.push(path);
                }
            }
        }
        found
    }

    /// Nothing of this lab runs any more, and nothing half-written is left.
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.processes(), BTreeMap::new(), "processes are left");
        assert_eq!(self.temporaries(), Vec::<PathBuf>::new(), "temporary files are left");
    }
}

impl Drop for Lab {
    /// A failed test must not leave processes either.
    fn drop(&mut self) {
        for pid in self.processes().into_keys() {
            let _ = kill_process(pid_of(pid), Signal::KILL);
        }
    }
}

/// What is in a folder; nothing if it cannot be read.
pub(crate) fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn only(folder: &Path) -> PathBuf {
    let mut found = children(folder);
    assert_eq!(found.len(), 1, "{}: {found:?}", folder.display());
    found.remove(0)
}

/// Turns one bit in the middle of a file.
pub(crate) fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}
