//! A network that is cut while a run of two machines trains: in a network namespace, whose only
//! cable goes from the machine to itself.

use std::fs;
use std::io::Write;

use crate::harness::experiments::BASE;
use crate::harness::lab::{BINARY, Lab};
use crate::harness::running::{spawn, until};
use crate::skipped::skipped;

/// Two machines on the loopback device, which goes down when a line comes through `cut`:
/// connections stay, and nothing goes through them, in both directions.
const SCRIPT: &str = r#"
ip link set lo up || exit 99
echo made >network
program=$1; shift
where="--nnodes 2 --master-addr 127.0.0.1 --token-file ../run.token --nproc-per-node 1"
(cd first; "$program" small.toml --node-rank 0 $where "$@" 2>../first.err; echo $? >../first.code) &
(cd second; "$program" small.toml --node-rank 1 $where "$@" 2>../second.err; echo $? >../second.code) &
read _ <cut
ip link set lo down
wait
"#;

fn said(lab: &Lab, machine: &str) -> (String, String) {
    let read = |kind: &str| fs::read_to_string(lab.path(&format!("{machine}.{kind}"))).unwrap();
    (read("code").trim().to_owned(), read("err"))
}

#[test]
#[ignore = "waits for a deadline: `just soak`"]
fn a_network_that_is_cut_ends_both_machines_with_the_name_of_the_other() {
    let lab = Lab::new();
    lab.run_to(0, &["token", "run.token"]);
    for machine in ["first", "second"] {
        lab.write(&format!("{machine}/small.toml"), BASE);
    }
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, lab.path("cut"), mode).unwrap();
    let changes = ["train.epochs=1000000", "checkpoint.every=20 steps", "distributed.timeout=10s"];
    let args = [&["-Urn", "sh", "-c", SCRIPT, "sh", BINARY][..], &changes].concat();
    let mut running = spawn(lab.command("unshare", &args));
    let is_saved = || {
        let log = fs::read_to_string(lab.path("first.err")).unwrap_or_default();
        log.contains("saved")
    };
    until("a checkpoint", || is_saved() || running.is_over());
    if running.is_over() && !lab.path("network").exists() {
        skipped("no network of its own (`unshare -Urn`, `ip`)");
        return;
    }
    assert!(!running.is_over(), "{}", running.stderr());
    fs::File::options().write(true).open(lab.path("cut")).unwrap().write_all(b"\n").unwrap();
    running.wait().has_code(0);
    for (machine, other) in [("first", "node 1 ("), ("second", "node 0 (")] {
        let (code, stderr) = said(&lab, machine);
        assert_eq!(code, "5", "{machine}: {stderr}");
        assert!(stderr.contains(&format!("error: {other}")), "{machine}: {stderr}");
        assert!(stderr.contains("nothing was heard from it for "), "{machine}: {stderr}");
    }
    lab.is_clean();
}
