//! Jobs of `SkyPilot`, for which a shell script stands in: this machine is its only cloud.

use std::fs;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::clusters::{PAUSE, wait_for_a_save};
use crate::experiments::SLOW;
use crate::lab::{BINARY, Lab, children};
use crate::resume::{bits, undisturbed};
use crate::running::{Ended, pid_of, spawn, until};

/// Runs the `run` of a task with its `envs`, and again after exit 75, as the task asks for.
const SKY: &str = r#"#!/bin/bash
case "$1 $2" in
"--version ") echo "skypilot, a stand-in" ;;
"jobs launch")
    task=${*: -1}
    sed -n 's/^name: //p' "$task" >sky/name
    sed -n '/^envs:/,/^[a-z]/s/^  \([A-Z_]*\): "\?\([^"]*\)"\?$/export \1="\2"/p' "$task" >sky/run.sh
    sed '1,/^run: |/d; s/^  //' "$task" >>sky/run.sh
    grep -A 1 'recover_on_exit_codes:' "$task" | grep -q -- '- 75$' || exit 1
    {
        while :; do
            HOME=$PWD/sky bash sky/run.sh >>sky/log 2>&1 &
            echo $! >sky/pid
            wait $!
            code=$?
            [ "$code" = 75 ] || break
            echo RECOVERING >>sky/log
        done
        echo "$code" >sky/code
    } </dev/null >/dev/null 2>&1 &
    ;;
"jobs queue")
    case $(cat sky/code 2>/dev/null) in
    "") status=RUNNING ;;
    0) status=SUCCEEDED ;;
    *) status=FAILED ;;
    esac
    printf '[\n  {"job_id": 1, "job_name": "%s", "status": "%s"}\n]\n' "$(cat sky/name)" $status
    ;;
"jobs logs")
    while [ ! -e sky/code ]; do sleep 0.1; done
    cat sky/log
    ;;
"jobs cancel") echo "$@" >sky/cancelled ;;
*) exit 2 ;;
esac
"#;

/// ddprun in a lab whose `sky` is the stand-in.
fn ddprun(lab: &Lab, args: &[&str]) -> Ended {
    let mut command = lab.ddprun(args);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", lab.path("bin").display()));
    spawn(command).wait()
}

fn lab(cluster: &str) -> Lab {
    let lab = Lab::with(SLOW);
    let folder = lab.path("").display().to_string();
    let table = format!("kind = 'skypilot'\nfolder = '{folder}'\nprogram = '{BINARY}'\n");
    lab.write("ddprun.toml", format!("[cluster.lab]\n{table}{cluster}"));
    let sky = lab.write("bin/sky", SKY);
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(sky, executable).unwrap();
    fs::create_dir(lab.path("sky")).unwrap();
    lab
}

#[test]
fn a_job_that_was_stopped_and_saved_goes_on_where_skypilot_starts_it_again() {
    let lab = lab(PAUSE);
    let submitted = ddprun(&lab, &["submit", "small.toml", "--on", "lab"]);
    submitted.has_code(0);
    let id = submitted.stdout.trim();
    wait_for_a_save(&lab);
    let pid = fs::read_to_string(lab.path("sky/pid")).unwrap();
    kill_process(pid_of(pid.trim().parse().unwrap()), Signal::TERM).unwrap();
    let followed = ddprun(&lab, &["logs", "-f", id]);
    followed.has_code(0);
    assert!(followed.stdout.contains("\nRECOVERING\n"), "{}", followed.stdout);
    assert!(followed.stdout.contains("completed after step 60"), "{}", followed.stdout);
    let lines = ddprun(&lab, &["jobs", "--json"]).stdout;
    let job: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!((&job["state"], &job["job"]), (&"SUCCEEDED".into(), &id.into()));
    assert_eq!(children(&lab.path("logs/small")).len(), 1, "one run");
    bits(&lab).must_be(undisturbed());
    let cancelled = ddprun(&lab, &["cancel", id]);
    cancelled.has_code(0);
    cancelled.says(&["is stopped without saving: its newest checkpoint remains"]);
    let cancelled = fs::read_to_string(lab.path("sky/cancelled")).unwrap();
    assert_eq!(cancelled, format!("jobs cancel --yes --name {id}\n"));
    until("the end of the stand-in", || lab.path("sky/code").exists());
    lab.is_clean();
}

#[test]
fn print_shows_the_task_and_without_sky_nothing_is_submitted() {
    let lab = lab("gpus_per_node = 8\ngpu = 'A100'\nnodes = 2\n");
    let args = ["submit", "small.toml", "--on", "lab"];
    let task = lab.run_to(0, &[&args[..], &["--print"]].concat()).stdout;
    assert!(task.contains("\n  accelerators: A100:8\n"), "{task}");
    assert!(task.contains(" --node-rank \"$SKYPILOT_NODE_RANK\""), "{task}");
    let mut command = lab.ddprun(&args);
    command.env("PATH", "/nonexistent");
    let ended = spawn(command).wait();
    ended.has_code(2);
    ended.says(&["cluster `lab`: `sky` cannot be run"]);
    assert!(!lab.path("logs").exists());
}
