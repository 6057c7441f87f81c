//! Jobs of a real Slurm: its controller and two nodes, as processes of this machine.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use test_support::skipped::skipped;

use crate::clusters::{PAUSE, slowly, wait_for_a_save};
use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::SLOW;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Ended, pid_of, spawn, until};
use crate::shared_sweeps::{self, RANDOM, experiment, steps};
use crate::sweeps::{self, told};

/// A cluster of two nodes with four cores each.
struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Slurm {
    /// Starts it with these lines of its configuration, where Slurm is installed.
    fn start(more: &str) -> Option<Self> {
        let is_there = |program: &str| Command::new(program).arg("-V").output().is_ok();
        if !["slurmctld", "slurmd", "sbatch", "squeue"].into_iter().all(is_there) {
            skipped("no Slurm (slurmctld, slurmd, slurm-client)");
            return None;
        }
        let mut slurm = Self { folder: tempfile::tempdir().unwrap(), daemons: Vec::new() };
        fs::write(slurm.configuration(), slurm.text() + more).unwrap();
        for folder in ["state", "spool-a", "spool-b"] {
            fs::create_dir(slurm.folder.path().join(folder)).unwrap();
        }
        slurm.daemon("slurmctld", &[]);
        slurm.daemon("slurmd", &["-N", "a"]);
        slurm.daemon("slurmd", &["-N", "b"]);
        until("two idle nodes", || slurm.ask("sinfo", &["-h", "-o", "%D %t"]) == "2 idle\n");
        Some(slurm)
    }

    fn configuration(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn text(&self) -> String {
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            (listener, port)
        };
        let (_held, ports): (Vec<_>, Vec<u16>) = (0..3).map(|_| free()).unzip();
        let user = Command::new("id").arg("-un").output().unwrap();
        let (user, folder) = (String::from_utf8(user.stdout).unwrap(), self.folder.path());
        let (user, folder) = (user.trim(), folder.display());
        let node = |name: &str, port: u16| {
            format!(
                "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4\n"
            )
        };
        format!(
            "ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={0}
# No other cluster of this machine has a job of the same number.
FirstJobId=1{0}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
{1}{2}PartitionName=main Nodes=a,b Default=YES MaxTime=INFINITE State=UP GraceTime=30
PartitionName=urgent Nodes=a,b MaxTime=INFINITE State=UP PriorityTier=10
",
            ports[0],
            node("a", ports[1]),
            node("b", ports[2]),
        )
    }

    fn daemon(&mut self, program: &str, args: &[&str]) {
        let log = format!("{program}-{}.log", self.daemons.len());
        let log = fs::File::create(self.folder.path().join(log));
        let child = Command::new(program)
            .arg("-D")
            .args(args)
            .env("SLURM_CONF", self.configuration())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn();
        self.daemons.push(child.unwrap());
    }

    /// A command of Slurm; what it prints.
    fn ask(&self, program: &str, args: &[&str]) -> String {
        let asked =
            Command::new(program).args(args).env("SLURM_CONF", self.configuration()).output();
        String::from_utf8(asked.unwrap().stdout).unwrap()
    }

    /// ddprun in a lab, on this cluster.
    fn ddprun(&self, lab: &Lab, args: &[&str]) -> Ended {
        let mut command = lab.ddprun(args);
        command.env("SLURM_CONF", self.configuration());
        spawn(command).wait()
    }

    fn submit(&self, lab: &Lab) -> String {
        self.submit_file(lab, &["small.toml"])
    }

    fn submit_file(&self, lab: &Lab, words: &[&str]) -> String {
        let ended = self.ddprun(lab, &[&["submit", "--on", "lab"], words].concat());
        ended.has_code(0);
        ended.stdout.trim().to_owned()
    }

    fn state(&self, lab: &Lab) -> String {
        let lines = self.ddprun(lab, &["jobs", "--json"]).stdout;
        let job: Value = serde_json::from_str(&lines).unwrap();
        job["state"].as_str().unwrap().to_owned()
    }

    /// Kills a node with all that a job has there, as if its power had gone.
    fn kill_node(&mut self, node: &str, id: &str) {
        let daemon = if node == "a" { 1 } else { 2 };
        let daemon = &mut self.daemons[daemon];
        daemon.kill().unwrap();
        let _ = daemon.wait();
        for pid in processes_of(id) {
            let _ = kill_process(pid_of(pid), Signal::KILL);
        }
    }

    /// Lets a job that went back into the queue start soon, and not in two minutes; in the second
    /// of its first end it would be refused, as its credential of that second was revoked.
    fn start_again(&self, lab: &Lab, id: &str, changes: &[&str]) {
        until("the queue", || self.state(lab).starts_with("PENDING"));
        // What is left of its first turn must not be taken for the end of the second.
        until("idle nodes", || self.ask("sinfo", &["-h", "-o", "%D %t"]) == "2 idle\n");
        let job = format!("JobId={id}");
        self.ask("scontrol", &[&["update", &job, "StartTime=now+3"], changes].concat());
    }

    /// Follows the job to its end.
    fn ends_well(&self, lab: &Lab, id: &str) {
        let followed = self.ddprun(lab, &["logs", "-f", id]);
        followed.has_code(0);
        let Ended { stdout, stderr, .. } = &followed;
        let log = fs::read_to_string(self.folder.path().join("slurmctld-0.log"));
        let log = log.unwrap_or_default();
        assert!(stdout.contains("completed after step 60"), "{stdout}\n{stderr}\n{log}");
        assert!(stdout.contains("started the ranks again (restart 1): continuing run"), "{stdout}");
        assert_eq!(self.state(lab), "COMPLETED", "{stdout}");
        assert_eq!(children(&lab.path("logs/small")).len(), 1, "one run");
        bits(lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.ask("scancel", &["--me"]);
        // What runs a job would outlive the daemons.
        let began = Instant::now();
        let is_busy = || !self.ask("squeue", &["-h", "--states=RUNNING,COMPLETING"]).is_empty();
        while is_busy() && began.elapsed() < Duration::from_secs(20) {}
        for daemon in self.daemons.iter_mut().rev() {
            let _ = kill_process(pid_of(daemon.id()), Signal::TERM);
            let _ = daemon.wait();
        }
    }
}

/// Processes of a job: its script, its steps, and what watches over them.
fn processes_of(id: &str) -> Vec<u32> {
    let (variable, watcher) = (format!("SLURM_JOB_ID={id}"), format!("slurmstepd: [{id}."));
    let is_of_it = |pid: &u32| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let environ = read("environ");
        environ.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
            || read("cmdline").starts_with(watcher.as_bytes())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_of_it).collect()
}

fn lab(cluster: &str) -> Lab {
    lab_with(PAUSE, cluster)
}

fn lab_with(environment: &str, cluster: &str) -> Lab {
    let lab = Lab::with(SLOW);
    lab.write("ddprun.toml", format!("[cluster.lab]\nkind = 'slurm'\n{environment}{cluster}"));
    lab
}

/// Told before its time is over, as `--signal` has Slurm do it.
fn the_end_of_its_time_sends_a_job_back_into_the_queue(slurm: &Slurm) {
    let lab = lab("");
    let id = slurm.submit(&lab);
    wait_for_a_save(&lab);
    slurm.ask("scancel", &["--batch", "--signal=USR1", &id]);
    slurm.start_again(&lab, &id, &[]);
    slurm.ends_well(&lab, &id);
    lab.is_clean();
}

fn two_nodes_may_become_one(slurm: &Slurm) {
    let lab = lab("nodes = 2\nranks_per_node = 1\n");
    let id = slurm.submit(&lab);
    wait_for_a_save(&lab);
    assert_eq!(slurm.ask("squeue", &["-h", "-j", &id, "-o", "%D"]), "2\n");
    slurm.ask("scontrol", &["requeue", &id]);
    slurm.start_again(&lab, &id, &["NumNodes=1-1", "NumTasks=1"]);
    slurm.ends_well(&lab, &id);
    lab.is_clean();
}

/// One of two workers is told that its time is over, and comes back.
fn workers_of_a_sweep_are_an_array_of_which_one_may_go_and_come_back(slurm: &Slurm) {
    let lab = sweeps::lab(&experiment(), RANDOM);
    lab.write("ddprun.toml", format!("[cluster.lab]\nkind = 'slurm'\n{}", slowly()));
    let id = slurm.submit_file(&lab, &["tune.toml", "--workers", "2"]);
    until("two trials", || steps(&lab, 1) > 3 && steps(&lab, 2) > 3);
    assert_eq!(slurm.state(&lab), "2 RUNNING");
    // The last task of an array has the id of the array as its own.
    let last = format!("{id}_2");
    slurm.ask("scancel", &["--batch", "--signal=USR1", &last]);
    until("the queue", || slurm.state(&lab).contains("1 PENDING"));
    assert!(slurm.state(&lab).contains("1 RUNNING"), "{}", slurm.state(&lab));
    slurm.ask("scontrol", &["update", &format!("JobId={last}"), "StartTime=now+3"]);
    let followed = slurm.ddprun(&lab, &["logs", "-f", &id]);
    followed.has_code(0);
    let Ended { stdout, stderr, .. } = &followed;
    assert!(stdout.contains("interrupted; it resumes") && stdout.contains("[4 of 4]"), "{stdout}");
    assert!(stderr.contains("==> output-2 <=="), "{stderr}");
    assert_eq!(slurm.state(&lab), "2 COMPLETED", "{stdout}");
    assert_eq!(told(&lab), shared_sweeps::undisturbed());
    lab.is_clean();
}

fn a_cancelled_job_saves_and_stays_away(slurm: &Slurm) {
    let lab = lab("");
    let id = slurm.submit(&lab);
    wait_for_a_save(&lab);
    slurm.ddprun(&lab, &["cancel", &id]).has_code(0);
    until("the end", || slurm.state(&lab) == "CANCELLED");
    let output = children(&lab.path("logs/.jobs"))[0].join("output.log");
    let output = fs::read_to_string(output).unwrap();
    assert!(output.contains("ddprun resume"), "{output}");
    lab.is_clean();
}

fn an_unknown_partition_is_drawn_on_the_clusters_file(slurm: &Slurm) {
    let lab = lab("partition = 'mian'\n");
    let ended = slurm.ddprun(&lab, &["submit", "small.toml", "--on", "lab"]);
    ended.has_code(2);
    ended.says(&[
        "`cluster.lab.partition`: the cluster has no `mian`; its partitions: main, urgent",
    ]);
    assert!(!lab.path("logs").exists());
}

#[test]
fn a_real_slurm_runs_interrupts_and_continues_jobs() {
    let Some(slurm) = Slurm::start("") else { return };
    an_unknown_partition_is_drawn_on_the_clusters_file(&slurm);
    the_end_of_its_time_sends_a_job_back_into_the_queue(&slurm);
    workers_of_a_sweep_are_an_array_of_which_one_may_go_and_come_back(&slurm);
    two_nodes_may_become_one(&slurm);
    a_cancelled_job_saves_and_stays_away(&slurm);
}

/// Others need its nodes, and have to wait until it has saved.
#[test]
fn a_preempted_job_saves_in_its_grace_time_and_continues() {
    let preempt = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n";
    let Some(slurm) = Slurm::start(preempt) else { return };
    let lab = lab("");
    let id = slurm.submit(&lab);
    wait_for_a_save(&lab);
    let urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"];
    let other = slurm.ask("sbatch", &[&urgent[..], &["--parsable", "--wrap=sleep 1"]].concat());
    let state_of = |job: &str| slurm.ask("squeue", &["-h", "--states=all", "-j", job, "-o", "%T"]);
    until("the urgent job", || state_of(other.trim()) == "COMPLETED\n");
    let saved = lab.events().into_iter().rfind(|event| event["event"] == "saved").unwrap();
    assert_eq!(saved["step"], lab.last_step(), "it was told, and saved its last step");
    slurm.start_again(&lab, &id, &[]);
    slurm.ends_well(&lab, &id);
    lab.is_clean();
}

/// Nothing is saved then: the newest checkpoint counts.
#[test]
fn a_job_whose_node_dies_continues_on_another() {
    let Some(mut slurm) = Slurm::start("SlurmdTimeout=10\n") else { return };
    let lab = lab("");
    let id = slurm.submit(&lab);
    wait_for_a_save(&lab);
    let node = slurm.ask("squeue", &["-h", "-j", &id, "-o", "%N"]);
    slurm.kill_node(node.trim(), &id);
    until("the queue", || slurm.state(&lab).starts_with("PENDING"));
    let other = if node.trim() == "a" { "b" } else { "a" };
    slurm.ask("scontrol", &["update", &format!("JobId={id}"), "StartTime=now+3"]);
    slurm.ends_well(&lab, &id);
    let nodes = slurm.ask("squeue", &["-h", "--states=all", "-j", &id, "-o", "%N"]);
    assert_eq!(nodes.trim(), other);
    lab.is_clean();
}

/// Slurm's shortest limit is a minute, and its warning may come a minute too early. In `just soak`.
#[test]
#[ignore = "takes three minutes: `just soak`"]
fn a_job_that_takes_longer_than_its_time_limit_ends_in_several_turns() {
    let Some(slurm) = Slurm::start("") else { return };
    let slowly = "environment = { DDPRUN_FP = 'backward=sleep(700)@0,*,*' }\n";
    let lab = lab_with(slowly, "time = '1m'\nstop_before = '30s'\n");
    let id = slurm.submit(&lab);
    let is_over = |state: &str| ["COMPLETED", "FAILED", "TIMEOUT"].contains(&state);
    loop {
        let mut state = String::new();
        let mut is = |wanted: &str| {
            state = slurm.state(&lab);
            state.starts_with(wanted) || is_over(&state)
        };
        until("a turn", || is("RUNNING"));
        until("the end of a turn", || is("PENDING"));
        if is_over(&state) {
            break;
        }
        slurm.start_again(&lab, &id, &[]);
    }
    slurm.ends_well(&lab, &id);
    lab.is_clean();
}
