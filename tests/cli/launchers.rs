//! Ranks that another program starts on this machine, and starts again: torchrun, or a job of
//! Slurm. None of them is needed: what they do is to start processes with some variables.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use rustix::process::Signal;

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, Running, spawn};
use crate::machines::end;

/// A launch of torchrun, whose run id is "none" as long as its user gives no other.
pub(crate) struct Torchrun {
    /// The folder that it makes for itself; its name is random.
    folder: Option<&'static str>,
    port: String,
}

impl Torchrun {
    pub(crate) fn new(folder: Option<&'static str>) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { folder, port: free.to_string() }
    }

    /// Two ranks, after so many restarts.
    pub(crate) fn start(&self, lab: &Lab, restarts: u32, args: &[&str]) -> Vec<Running> {
        self.start_ranks(2, lab, restarts, args)
    }

    pub(crate) fn start_ranks(
        &self,
        ranks: u32,
        lab: &Lab,
        restarts: u32,
        args: &[&str],
    ) -> Vec<Running> {
        let world = ranks.to_string();
        let start = |rank: u32| {
            let mut command = lab.ddprun(args);
            let (rank, restarts) = (rank.to_string(), restarts.to_string());
            let file = self.folder.map_or(String::new(), |folder| {
                format!("/tmp/torchelastic_0/{folder}/attempt_{restarts}/{rank}/error.json")
            });
            command.envs([("RANK", rank.as_str()), ("LOCAL_RANK", &rank)]);
            command.envs([("WORLD_SIZE", &world), ("LOCAL_WORLD_SIZE", &world)]);
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &self.port)]);
            command.envs([("TORCHELASTIC_RUN_ID", "none"), ("TORCHELASTIC_ERROR_FILE", &file)]);
            command.env("TORCHELASTIC_RESTART_COUNT", &restarts);
            spawn(command)
        };
        (0..ranks).map(start).collect()
    }
}

/// `ddprun small.toml` in the script of a job that was started again so often.
fn in_a_job(lab: &Lab, restarts: &str) -> Running {
    let mut command = lab.ddprun(&["small.toml"]);
    command.envs([("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", restarts)]);
    spawn(command)
}

/// A network whose first sum of two tensors is large enough for Candle to use threads of its own.
const LARGE: &str = r#"
[experiment]
name = "small"
[model]
name = "gpt"
n_layers = 1
n_heads = 1
d_model = 64
[data]
name = "tokens"
file = "text.txt"
seq_len = 64
num_workers = 0
[train]
steps = 100000
batch_size = 16
[optimizer]
lr = 1e-3
[distributed]
threads_per_rank = 1
[validation]
every = "never"
[logging]
every = "1 step"
sinks = ["jsonl"]
"#;

fn all_have_code(code: i32, ended: &[Ended]) {
    for ended in ended {
        ended.has_code(code);
    }
}

fn runs(lab: &Lab) -> usize {
    children(&lab.path("logs/small")).len()
}

#[test]
fn a_rank_waits_for_the_others_of_its_machine_as_long_as_the_experiment_says() {
    let lab = Lab::with(BASE);
    // Each is alone in a launch of its own.
    let start = |rank: &str| {
        let mut command = lab.ddprun(&["small.toml", "distributed.timeout=3s"]);
        command.envs([("RANK", rank), ("LOCAL_RANK", rank), ("TORCHELASTIC_RUN_ID", rank)]);
        command.envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("GROUP_RANK", "0")]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")]);
        spawn(command)
    };
    for (rank, ended) in end(["0", "1"].map(start).into()).iter().enumerate() {
        let other = 1 - rank;
        ended.has_code(5);
        ended.says(&[&format!("rank {rank} waits for rank {other}, for 3 s at most")]);
        let missing = format!("rank {rank} waited 3 s, but rank {other} of 2 ranks did not come");
        ended.says(&[&missing, "do: "]);
    }
}

#[test]
fn ranks_that_torchrun_starts_again_continue_their_run_to_the_same_bits() {
    let lab = Lab::with(SLOW);
    let launch = Torchrun::new(Some("none_a1"));
    // Long enough that it is not over when this test gets its turn again.
    let args = ["small.toml", "train.epochs=20"];
    let mut all = launch.start(&lab, 0, &args);
    lab.wait_for_step_and_save(&mut all[0], 17);
    all[1].signal(Signal::KILL);
    let ended = end(all);
    assert_eq!((ended[0].code, ended[1].code), (5, -9), "{}", ended[0].stderr);
    // At once, and not at the deadline: that would say "timed out waiting for rank 1".
    ended[0].says(&["error: rank 0: rank 1 (pid ", ") died", "do: see the end of `rank-1.log`"]);
    let again = end(launch.start(&lab, 1, &args));
    all_have_code(0, &again);
    again[0].says(&["torchrun has started the ranks again (restart 1): continuing run "]);
    assert_eq!(runs(&lab), 1);
    assert_eq!(lab.rank_stats()["cpu_seconds"].as_array().map(Vec::len), Some(2));
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &args[1..]));
    lab.is_clean();
}

/// The experiment leaves the shards to the number of ranks, which is another one after the restart.
#[test]
fn a_restart_on_fewer_ranks_continues_the_run_with_its_own_shards() {
    let shards = ["small.toml", "distributed.shards=auto"];
    let whole = Lab::with(SLOW);
    all_have_code(0, &end(Torchrun::new(Some("none_a1")).start(&whole, 0, &shards)));
    let lab = Lab::with(SLOW);
    let launch = Torchrun::new(Some("none_b2"));
    let mut all = launch.start(&lab, 0, &shards);
    lab.wait_for_step_and_save(&mut all[0], 17);
    all[1].signal(Signal::KILL);
    end(all);
    let again = end(launch.start_ranks(1, &lab, 1, &shards));
    all_have_code(0, &again);
    again[0].says(&["(restart 1): continuing run "]);
    assert_eq!(runs(&lab), 1);
    bits(&lab).must_be(&bits(&whole));
    lab.is_clean();
}

#[test]
fn another_launch_of_torchrun_with_the_same_run_id_begins_a_run_of_its_own() {
    let lab = Lab::with(BASE);
    let first = Torchrun::new(Some("none_a1"));
    for restarts in [0, 0] {
        all_have_code(0, &end(first.start(&lab, restarts, &["small.toml"])));
    }
    assert_eq!(runs(&lab), 2, "its first attempt never continues a run");
    // Its first attempt died before it had a run.
    let ended = end(Torchrun::new(Some("none_b2")).start(&lab, 1, &["small.toml"]));
    all_have_code(0, &ended);
    ended[0].says(&["(restart 1): no earlier run found in `logs/small`; starting a new one"]);
    assert_eq!(runs(&lab), 3);
    // Without its folder no rank can tell; rank 0 says so for all.
    let ended = end(Torchrun::new(None).start(&lab, 1, &["small.toml"]));
    all_have_code(2, &ended);
    ended[0].says(&["cannot tell which run of `none` to continue:", "do: ", "`ddprun resume RUN`"]);
    assert_eq!(ended[1].stderr, "");
    assert_eq!(runs(&lab), 3);
    lab.is_clean();
}

#[test]
fn a_job_that_slurm_starts_again_continues_its_run_to_the_same_bits() {
    let lab = Lab::with(SLOW);
    let mut running = in_a_job(&lab, "0");
    lab.wait_for_step_and_save(&mut running, 17);
    running.signal(Signal::KILL);
    running.wait().has_code(-9);
    let again = in_a_job(&lab, "1").wait();
    again.has_code(0);
    again.says(&["Slurm has started the ranks again (restart 1): continuing run "]);
    assert_eq!(runs(&lab), 1);
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    lab.is_clean();
}

#[test]
fn the_number_of_ranks_is_the_launchers_and_rank_0_says_so() {
    let lab = Lab::with(BASE);
    let launch = Torchrun::new(Some("none_a1"));
    let ended = end(launch.start(&lab, 0, &["small.toml", "distributed.devices=1"]));
    all_have_code(0, &ended);
    let line = "the launcher started 2 ranks, which overrides `distributed.devices = 1`";
    ended[0].says(&[line]);
    assert!(!ended[1].stderr.contains("overrides"), "{}", ended[1].stderr);
    lab.is_clean();
}

#[test]
fn ranks_of_a_launcher_start_no_threads_that_wait_actively_beside_those_that_compute() {
    let lab = Lab::with(LARGE);
    lab.write("text.txt", "the quick brown fox jumps over the lazy dog\n".repeat(200));
    let mut command = lab.ddprun(&["small.toml"]);
    command.envs([("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")]);
    // As many as a machine with four cores has; Candle starts one less.
    command.env_remove("CANDLE_NUM_THREADS").env("RAYON_NUM_THREADS", "4");
    let mut running = spawn(command);
    lab.wait_for_step(&mut running, 1);
    let names: Vec<String> = children(Path::new(&format!("/proc/{}/task", running.pid())))
        .iter()
        .filter_map(|thread| fs::read_to_string(thread.join("comm")).ok())
        .collect();
    running.signal(Signal::KILL);
    running.wait().has_code(-9);
    assert!(names.iter().any(|name| name.starts_with("training")), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("candle")), "{names:?}");
}

#[test]
fn what_all_ranks_refuse_is_said_once() {
    let lab = Lab::with(BASE);
    for (args, words) in [
        (&["small.toml", "train.batch_size=0"][..], "`train.batch_size`"),
        (&["small.toml", "--no-such-flag"], "--no-such-flag"),
        (&["missing.toml"], "missing.toml"),
    ] {
        let ended = end(Torchrun::new(Some("none_a1")).start(&lab, 0, args));
        all_have_code(2, &ended);
        ended[0].says(&[words]);
        assert_eq!(ended[1].stderr, "", "{words}");
    }
    assert!(!lab.path("logs").exists());
    lab.is_clean();
}

#[test]
fn all_ranks_of_a_run_with_nothing_to_do_or_nothing_to_read_end_alike() {
    let lab = Lab::with(BASE);
    let launch = Torchrun::new(None);
    let never = ["small.toml", "checkpoint.every=never", "checkpoint.keep_best=0"];
    all_have_code(0, &end(launch.start(&lab, 0, &never)));
    let again = end(launch.start(&lab, 0, &["resume"]));
    all_have_code(0, &again);
    again[0].says(&["already complete: all ", "and none was saved"]);
    assert!(!again[1].stderr.contains("error"), "{}", again[1].stderr);
    // A file where the data should be generated.
    let no_folder = end(launch.start(&lab, 0, &["small.toml", "data.dir=small.toml"]));
    assert!(![0, 2].contains(&no_folder[0].code), "{}", no_folder[0].stderr);
    all_have_code(no_folder[0].code, &no_folder);
}
