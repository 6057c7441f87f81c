//! `ddprun submit`, `jobs`, `logs` and `cancel`: with a cluster that is this machine, and what is
//! refused before anything is submitted.

use std::fs;

use serde_json::Value;

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Ended, spawn, until};
use crate::shared_sweeps::{self, RANDOM, SLOWLY, experiment, steps};
use crate::sweeps::{self, told};

/// Holds a run of [`SLOW`] up in the middle, so that a signal meets it.
pub(crate) const PAUSE: &str = "environment = { DDPRUN_FP = 'backward=sleep(1000)@0,20' }\n";

/// Has the steps of a sweep's trials take so long that several workers meet.
pub(crate) fn slowly() -> String {
    format!("environment = {{ DDPRUN_FP = '{SLOWLY}' }}\n")
}

/// A lab with this experiment and these clusters.
fn lab(experiment: &str, clusters: &str) -> Lab {
    let lab = Lab::with(experiment);
    lab.write("ddprun.toml", clusters);
    lab
}

/// Submits `small.toml` with these words, and gives the job's id.
pub(crate) fn submit(lab: &Lab, words: &[&str]) -> String {
    submit_file(lab, "small.toml", words)
}

fn submit_file(lab: &Lab, file: &str, words: &[&str]) -> String {
    let ended = lab.run_to(0, &[&["submit", file, "--on", "lab"], words].concat());
    ended.stdout.trim().to_owned()
}

/// What `ddprun jobs` knows of the only job.
pub(crate) fn job(lab: &Lab) -> Value {
    let lines = lab.run_to(0, &["jobs", "--json"]).stdout;
    assert_eq!(lines.lines().count(), 1, "{lines}");
    serde_json::from_str(&lines).unwrap()
}

/// Waits until a step is recorded and saved, or no run will ever record one.
pub(crate) fn wait_for_a_save(lab: &Lab) {
    until("a checkpoint", || {
        lab.last_step() >= 17 && lab.events().iter().any(|event| event["event"] == "saved")
    });
}

fn refused(lab: &Lab, args: &[&str], words: &[&str]) -> Ended {
    let ended = lab.run_to(2, args);
    ended.says(words);
    assert!(!lab.path("logs").exists(), "something was left");
    ended
}

#[test]
fn a_job_of_this_machine_goes_on_without_the_terminal_and_is_found_with_its_run() {
    let lab = lab(BASE, "[cluster.lab]\nkind = 'local'\nsetup = ['echo ready']\n");
    let id = submit(&lab, &["train.epochs=3"]);
    // The job has what was submitted.
    lab.write("small.toml", "changed");
    let followed = lab.run_to(0, &["logs", "-f", &id]);
    assert!(followed.stdout.starts_with("ready\n"), "{}", followed.stdout);
    assert!(followed.stdout.contains("completed after step 18"), "{}", followed.stdout);
    let job = job(&lab);
    assert_eq!((&job["state"], &job["is_over"]), (&"ended (exit 0)".into(), &true.into()));
    assert_eq!(job["run"].as_str(), lab.run_folder().strip_prefix(lab.path("")).unwrap().to_str());
    let table = lab.run_to(0, &["jobs"]).stdout;
    assert!(table.contains(&id) && table.contains("ended (exit 0)"), "{table}");
    assert_eq!(lab.run_to(0, &["ls"]).stdout.lines().count(), 2, "a job is no run");
    lab.is_clean();
}

/// A folder of logs may come from someone else.
#[test]
fn a_received_job_runs_no_command() {
    let lab = lab(BASE, "");
    let host = "-oProxyCommand=touch begun";
    let job = |host: &str| {
        serde_json::json!({
            "format": 1, "id": "7", "cluster": "lab", "name": "x", "time": "2026-01-01T00:00:00Z",
            "kind": {"name": "ssh", "options": {"host": host, "folder": "x"}},
        })
    };
    lab.write("logs/.jobs/1/job.json", job(host).to_string());
    let why = ["job 7: `host` of cluster `lab` in its job.json", "is not a host"];
    lab.run_to(0, &["jobs"]).says(&why);
    for verb in ["cancel", "logs"] {
        lab.run_to(2, &[verb, "7"]).says(&why);
    }
    assert!(!lab.path("begun").exists());
}

#[test]
fn no_script_is_written_for_a_folder_with_a_line_break() {
    let lab = lab(BASE, "");
    let folder = lab.path("a\ntouch begun");
    fs::create_dir(&folder).unwrap();
    for name in ["small.toml", "ddprun.toml"] {
        fs::copy(lab.path(name), folder.join(name)).unwrap();
    }
    fs::write(folder.join("ddprun.toml"), "[cluster.lab]\nkind = 'slurm'\n").unwrap();
    let mut command = lab.command(BINARY, &["submit", "small.toml", "--on", "lab", "--print"]);
    command.current_dir(&folder);
    let ended = spawn(command).wait();
    ended.has_code(2);
    ended.says(&["has a line break or another control character in its path", "rename the folder"]);
}

#[test]
fn a_cancelled_job_saves_and_the_same_job_continues_its_run() {
    let lab = lab(SLOW, &format!("[cluster.lab]\nkind = 'local'\n{PAUSE}"));
    let id = submit(&lab, &[]);
    wait_for_a_save(&lab);
    lab.run_to(0, &["cancel", &id]).says(&["was told to save and to end"]);
    lab.run_to(0, &["logs", "-f", &id]);
    assert_eq!(job(&lab)["state"], "ended (exit 75)");
    let output = again(&lab);
    assert!(output.contains("has started job "), "{output}");
    assert_eq!(children(&lab.path("logs/small")).len(), 1, "one run");
    bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    lab.is_clean();
}

/// Starts the only job again, as an engine does; its output.
fn again(lab: &Lab) -> String {
    let script = children(&lab.path("logs/.jobs"))[0].join("job.sh");
    let ended = spawn(lab.command("bash", &[script.to_str().unwrap()])).wait();
    ended.has_code(0);
    fs::read_to_string(script.with_file_name("output.log")).unwrap()
}

#[test]
fn workers_of_a_sweep_save_when_they_are_told_and_the_same_job_ends_it_as_one_machine_would() {
    let lab = sweeps::lab(&experiment(), RANDOM);
    lab.write("ddprun.toml", format!("[cluster.lab]\nkind = 'local'\n{}", slowly()));
    let id = submit_file(&lab, "tune.toml", &["--workers", "2"]);
    until("two trials", || steps(&lab, 1) > 3 && steps(&lab, 2) > 3);
    let status = lab.run_to(0, &["sweep", "--status", "tune"]).stdout;
    assert!(status.contains(", 2 workers\n"), "{status}");
    lab.run_to(0, &["cancel", &id]).says(&["was told to save and to end"]);
    lab.run_to(0, &["logs", "-f", &id]);
    let stopped = job(&lab);
    assert_eq!((&stopped["state"], &stopped["workers"]), (&"ended (exit 75)".into(), &2.into()));
    assert_eq!(stopped["run"], "logs/tune");
    let output = again(&lab);
    assert!(output.contains("trial 1 continues") && output.contains("[4 of 4]"), "{output}");
    assert_eq!(job(&lab)["state"], "ended (exit 0)");
    assert_eq!(told(&lab), shared_sweeps::undisturbed());
    lab.is_clean();
}

#[test]
fn a_sweep_becomes_as_many_workers_as_its_cluster_has_machines_or_as_are_asked_for() {
    let clusters = "[cluster.lab]\nkind = 'slurm'\nnodes = 4\nranks_per_node = 2\n\
                    [cluster.k8s]\nkind = 'kubernetes'\nimage = 'x'\nfolder = '/p'\n\
                    volumes = { claim = '/p' }\n";
    let lab = lab(BASE, clusters);
    let print = |words: &[&str]| lab.run_to(0, &[&["submit"], words, &["--print"]].concat()).stdout;
    // A search space makes it a sweep.
    let script = print(&["small.toml", "optimizer.lr=0.1,0.01", "--on", "lab"]);
    for line in ["--array=1-4", "--nodes=1", "--ntasks-per-node=2", "--job-name=small-sweep"] {
        assert!(script.contains(&format!("#SBATCH {line}\n")), "{line} is not in {script}");
    }
    assert!(script.contains(" sweep small.toml optimizer.lr=0.1,0.01 --share"), "{script}");
    lab.write("tune.toml", format!("schema = 1\nbase = 'small.toml'\n[sweep]\n{RANDOM}"));
    let manifest = print(&["tune.toml", "--on", "k8s", "--workers", "3"]);
    assert!(manifest.contains("completions: 3\n"), "{manifest}");
    refused(
        &lab,
        &["submit", "small.toml", "--on", "lab", "--workers", "2"],
        &["is an experiment"],
    );
    lab.write("range.toml", "schema = 1\nbase = 'small.toml'\n[sweep]\nmethod = 'lr_range'\n");
    refused(&lab, &["submit", "range.toml", "--on", "lab"], &["is one run"]);
}

#[test]
fn print_shows_the_script_and_submits_nothing() {
    let clusters = "[cluster.lab]\nkind = 'slurm'\npartition = 'gpu'\nnodes = 2\n\
                    ranks_per_node = 4\n";
    let lab = lab(BASE, clusters);
    let args = ["submit", "small.toml", "train.batch_size=1", "--on", "lab", "--print"];
    let script = lab.run_to(0, &args).stdout;
    for line in ["#SBATCH --partition=gpu", "#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4"] {
        assert!(script.contains(line), "{line} is not in {script}");
    }
    assert!(!lab.path("logs").exists());
    // What the cluster's ranks cannot do is drawn on the experiment.
    let args = ["submit", "small.toml", "train.batch_size=4", "--on", "lab", "--print"];
    lab.run_to(2, &args).says(&["global_batch_size"]);
}

/// What an earlier run of the experiment took to save decides how long the next one gets.
#[test]
fn a_job_gets_as_long_to_save_as_an_earlier_run_needed_and_says_so() {
    let lab = lab(BASE, "[cluster.lab]\nkind = 'slurm'\ntime = '1h'\n");
    lab.run_to(0, &["small.toml"]);
    let args = ["submit", "small.toml", "--on", "lab", "--print"];
    let usual = lab.run_to(0, &args);
    assert!(usual.stdout.contains("#SBATCH --signal=B:USR1@120\n"), "{}", usual.stdout);
    assert!(!usual.stderr.contains("stop_before"), "{}", usual.stderr);
    // Its disk was slow.
    let events = lab.run_folder().join("events.jsonl");
    let slow = |mut event: Value| {
        if event["event"] == "saved" {
            event["seconds"] = 41.into();
        }
        format!("{event}\n")
    };
    fs::write(events, lab.events().into_iter().map(slow).collect::<String>()).unwrap();
    let longer = lab.run_to(0, &args);
    assert!(longer.stdout.contains("#SBATCH --signal=B:USR1@180\n"), "{}", longer.stdout);
    longer.says(&["stop_before = 3m: a save of run ", " took 41.0 s"]);
    lab.write("ddprun.toml", "[cluster.lab]\nkind = 'slurm'\ntime = '3m'\n");
    let short = lab.run_to(2, &args);
    short
        .says(&["ddprun.toml:", "`cluster.lab.time`: is 3m: it must be longer than `stop_before`"]);
}

#[test]
fn a_training_runtime_makes_it_a_train_job() {
    let table = "kind = 'kubernetes'\nimage = 'x'\nfolder = '/p'\ntraining_runtime = 'ddprun'\n";
    let lab = lab(BASE, &format!("[cluster.lab]\n{table}"));
    let manifest = lab.run_to(0, &["submit", "small.toml", "--on", "lab", "--print"]).stdout;
    assert!(manifest.contains("kind: TrainJob\n"), "{manifest}");
    lab.write("ddprun.toml", format!("[cluster.lab]\n{table}max_restarts = 5\n"));
    refused(
        &lab,
        &["submit", "small.toml", "--on", "lab"],
        &["is decided by the training runtime"],
    );
}

#[test]
fn what_cannot_be_submitted_is_refused_before_anything_is_written() {
    let missing = Lab::new();
    let args = &["submit", "small.toml", "--on", "lab"][..];
    let example = "[cluster.lab] kind = \"slurm\" partition = \"gpu\"";
    refused(&missing, args, &["no cluster is called `lab`", "`ddprun.toml`", example]);
    let lab = lab(BASE, "[cluster.lab]\nkind = 'slurm'\n[cluster.k8s]\nkind = 'kubernetes'\n");
    let to = |name| ["submit", "small.toml", "--on", name];
    refused(&lab, &to("labb"), &["no cluster is called `labb`", "did you mean `lab`?"]);
    refused(&lab, &to("k8s"), &["`kubernetes` needs `image`", "`kubernetes` needs `folder`"]);
    let wrong = ["submit", "small.toml", "train.epochs=0", "--on", "lab"];
    refused(&lab, &wrong, &["`train.epochs`"]);
    lab.write("sweep.toml", "schema = 1\nbase = 'small.toml'\n[sweep]\n");
    refused(&lab, &["submit", "sweep.toml", "--on", "lab"], &["there is nothing to try"]);
    let mut command = lab.ddprun(args);
    command.env("PATH", "/nonexistent");
    let ended = spawn(command).wait();
    ended.has_code(2);
    ended.says(&["cluster `lab`: `sinfo` cannot be run", "login node"]);
    assert!(!lab.path("logs").exists());
    lab.run_to(2, &["cancel", "7"]).says(&["there is no job `7`"]);
}

#[test]
fn a_wrong_table_of_a_cluster_is_drawn_on_its_file() {
    for (table, words) in [
        ("kind = 'slurm'\npartitoin = 'gpu'", &["partitoin", "did you mean `partition`?"][..]),
        ("kind = 'slurm'\nnodes = 0", &["`cluster.lab.nodes`: must be from 1 to 1024, not 0"]),
        ("kind = 'slurm'\nnodes = 'two'", &["`cluster.lab.nodes`", "whole number"]),
        ("kind = 'slurm'\ntime = '1m'", &["must be longer than `stop_before`"]),
        ("kind = 'slurm'\nimage = 'x'", &["belongs to `kubernetes`, but `kind` is"]),
        (
            "kind = 'kubernetes'\nimage = 'x'\nfolder = '/p'",
            &["`cluster.lab.volumes`: is missing: runs would be lost", "name a claim"],
        ),
        ("kind = 'slrum'", &["did you mean `slurm`?"]),
        ("partition = 'gpu'", &["has no `kind`"]),
    ] {
        let lab = lab(BASE, &format!("[cluster.lab]\n{table}\n"));
        let ended = refused(&lab, &["submit", "small.toml", "--on", "lab"], words);
        ended.says(&["ddprun.toml:"]);
    }
    let lab = lab(BASE, "[clutser.lab]\nkind = 'slurm'\n");
    refused(&lab, &["submit", "small.toml", "--on", "lab"], &["did you mean `cluster`?"]);
}
