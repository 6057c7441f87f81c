//! A folder in which the binary runs: experiments, data, runs, and what is left of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longest wait for what must happen.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// Carries the lab's folder into every process of it.
const MARK: &str = "LAB_FOLDER";

/// Two ranks train a small network on 48 generated images of 3 classes: 6 steps in each of 2 epochs.
pub(crate) const BASE: &str = r#"schema = 1

[experiment]
name = "small"
seed = 7

[model]
name = "mlp"
hidden = [16]

[data]
name = "shapes"
dir = "data/shapes"
classes = 3
train_per_class = 16
val_per_class = 5
image_size = 16
num_workers = 1

[train]
epochs = 2
batch_size = 4
global_batch_size = 8

[optimizer]
name = "adamw"
lr = 1e-3

[distributed]
devices = 2
threads_per_rank = 1
timeout = "60s"

[logging]
every = "1 step"
sinks = ["jsonl", "csv"]
"#;

/// A small ResNet on augmented images, 60 steps of some milliseconds: long enough to be stopped in the middle
/// of an epoch, every random number and every kind of state in use.
pub(crate) const SLOW: &str = r#"schema = 1

[experiment]
name = "small"
seed = 11

[model]
name = "resnet8"

[data]
name = "shapes"
dir = "data/shapes"
classes = 3
train_per_class = 64
val_per_class = 7
image_size = 16
num_workers = 1
transforms.train = [
    { name = "random_crop", size = 16, padding = 2 },
    { name = "random_horizontal_flip" },
    { name = "color_jitter", brightness = 0.2, hue = 0.1 },
]

[train]
epochs = 5
batch_size = 4
global_batch_size = 16
clip_grad_norm = 1.0

[optimizer]
name = "sgd"
lr = 0.05
momentum = 0.9
nesterov = true
weight_decay = 5e-4

[scheduler]
name = "cosine"
interval = "step"
warmup = "5 steps"

[distributed]
devices = 2
shards = 4
threads_per_rank = 1
timeout = "60s"

[checkpoint]
every = "7 steps"

[logging]
every = "1 step"
sinks = ["jsonl", "csv"]
"#;

/// A folder of its own for one test.
pub(crate) struct Lab {
    folder: tempfile::TempDir,
}

/// A process of the lab that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; -n for signal n.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A process of the lab that runs; it is the leader of a process group.
pub(crate) struct Running {
    child: Child,
    /// Without end, for its outputs.
    outputs: [PathBuf; 2],
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

    /// An image of one colour, so that the classes `red`, `green` ... can be told apart.
    pub(crate) fn write_image(&self, name: &str, color: [u8; 3]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_pixel(16, 16, image::Rgb(color)).save(&path).unwrap();
        path
    }

    /// `data/train` and `data/val` with 8 and 4 images of two classes, and `photos.toml` that trains on them.
    pub(crate) fn write_photos(&self) {
        for (split, n) in [("train", 8), ("val", 4)] {
            for (class, color) in [("blue", [0, 0, 200]), ("red", [200, 0, 0])] {
                for index in 0..n {
                    self.write_image(&format!("data/{split}/{class}/{index}.png"), color);
                }
            }
        }
        let shapes = BASE.lines().filter(|line| {
            !["dir =", "classes", "train_per", "val_per", "image_size"]
                .iter()
                .any(|key| line.starts_with(key))
        });
        let photos: Vec<&str> = shapes.collect();
        let folders = "name = \"image_folder\"\ntrain_dir = \"data/train\"\nval_dir = \"data/val\"\n\
            transforms.train = [{ name = \"resize\", size = [16, 16] }]\n\
            transforms.val = [{ name = \"resize\", size = [16, 16] }]";
        self.write("photos.toml", photos.join("\n").replace("name = \"shapes\"", folders));
    }

    /// The binary in this folder, with none of a launcher's variables.
    pub(crate) fn ddprun(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ddprun"));
        command.args(args).current_dir(self.folder.path()).env(MARK, self.folder.path());
        let foreign = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID"];
        for name in foreign.into_iter().chain(["OMPI_COMM_WORLD_RANK"]) {
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

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        self.spawn(self.ddprun(args))
    }

    /// Starts `command` in a process group of its own, as a shell would.
    pub(crate) fn spawn(&self, mut command: Command) -> Running {
        let outputs = ["out", "err"].map(|kind| {
            let unique = tempfile::Builder::new().prefix(kind).tempfile().unwrap();
            unique.into_temp_path().keep().unwrap()
        });
        let [stdout, stderr] = outputs.each_ref().map(|path| fs::File::create(path).unwrap());
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
        Running { child: command.spawn().unwrap(), outputs }
    }

    /// The only run of this lab: `logs/<name>/<id>`.
    pub(crate) fn run_folder(&self) -> PathBuf {
        only(&self.path("logs/small"))
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

    /// Steps that have been recorded.
    pub(crate) fn last_step(&self) -> u64 {
        let steps = self.events().into_iter().filter(|event| event["event"] == "step_done");
        steps.filter_map(|event| event["step"].as_u64()).max().unwrap_or(0)
    }

    /// Waits until `step` is recorded, or the run is over.
    pub(crate) fn wait_for_step(&self, running: &mut Running, step: u64) {
        until("a step", || running.is_over() || self.last_step() >= step);
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
    fn temporaries(&self) -> Vec<PathBuf> {
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

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processes of the ranks, in rank order.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        let text = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap();
        let mut ranks: Vec<(u32, u32)> = text
            .split_whitespace()
            .map(|pid| {
                let environ = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
                let rank = environ.split('\0').find_map(|entry| entry.strip_prefix("RANK="));
                (rank.unwrap().parse().unwrap(), pid.parse().unwrap())
            })
            .collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, pid)| pid).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid_of(self.pid()), signal).unwrap();
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(&self.outputs[1]).unwrap()
    }

    /// Waits for the end.
    pub(crate) fn wait(mut self) -> Ended {
        let began = Instant::now();
        while !self.is_over() {
            if began.elapsed() > LONG {
                let _ = self.child.kill();
                panic!("still running after {LONG:?}; stderr:\n{}", self.stderr());
            }
            std::thread::sleep(LOOK);
        }
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        let [stdout, stderr] =
            self.outputs.each_ref().map(|path| String::from_utf8(fs::read(path).unwrap()).unwrap());
        Ended { code, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.outputs.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

impl Ended {
    pub(crate) fn has_code(&self, code: i32) {
        let Self { stdout, stderr, .. } = self;
        assert_eq!(self.code, code, "exit code; stdout:\n{stdout}\nstderr:\n{stderr}");
    }

    /// Each of `words` is in what was said to the user.
    pub(crate) fn says(&self, words: &[&str]) {
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not in:\n{}", self.stderr);
        }
    }
}

pub(crate) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid as i32).unwrap()
}

/// Whether a process runs or is stopped; one that nobody has asked about since its end does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits for `happened`.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < LONG, "waited {LONG:?} in vain for {what}");
        std::thread::sleep(LOOK);
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
