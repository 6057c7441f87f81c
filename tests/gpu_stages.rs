//! `benches/gpu.sh` over made-up programs: what a machine with a GPU would leave behind.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Says a line of the table for each call, and whatever `fails` makes of it.
const BENCH: &str = r#"#!/bin/sh
echo "$0 $*" >>calls
case "$*" in
  *--cards*) [ -e no-card ] && { echo 'SKIPPED: no GPU'; exit 1; }; echo 'TABLE | GPU 0 | made up | 80 GiB |' ;;
  *--first*) echo 'TABLE | ddprun: first step | 1.00 s | made up |' ;;
  *) echo 'SPEED | GPT-2 124M, batch 8, bf16 | ddprun | 10 tokens/s | made up |' ;;
esac
[ -e broken ] && exit 1
exit 0
"#;

const PYTHON: &str = r#"#!/bin/sh
case "$*" in -c*|*--first*) exit 0 ;; esac
echo "python $*" >>calls
echo 'SPEED | GPT-2 124M, batch 8, bf16 | PyTorch eager | 9 tokens/s | made up |'
"#;

const TESTS: &str = r#"#!/bin/sh
case "$*" in
  --list) printf 'gpu_a: test\nothers: test\nmore::gpu_b: test\n' ;;
  *gpu_a*) echo 'TABLE | a | fine |'; echo 'test result: ok. 1 passed' ;;
  *gpu_b*) [ -e broken ] && exit 101 ;;
esac
exit 0
"#;

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The packed folder with made-up programs.
fn packed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/gpu.sh");
    program(&at("run.sh"), &fs::read_to_string(script).unwrap());
    program(&at("gpu-bench"), BENCH);
    program(&at("gpu-tests"), TESTS);
    program(&at("python"), PYTHON);
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    // Not run by itself: a process that another test starts meanwhile may hold it open for writing.
    let mut command = Command::new("bash");
    command.arg(folder.join("run.sh")).args(arguments).env("PYTHON", folder.join("python"));
    command.output().unwrap()
}

#[test]
fn each_stage_leaves_its_log_and_the_table_of_all() {
    let folder = packed();
    let output = run(folder.path(), &["A", "B", "--out", "found"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let table = read("found/table.md");
    let row = "| GPT-2 124M, batch 8, bf16 | 10 tokens/s; 10 tokens/s; 10 tokens/s | \
               9 tokens/s; 9 tokens/s; 9 tokens/s |";
    assert!(table.contains("| model, batch, precision | ddprun | PyTorch eager |"), "{table}");
    assert!(table.contains(row), "{table}");
    for passed in ["passed: gpu_a", "passed: more::gpu_b", "| a | fine |"] {
        assert!(table.contains(passed), "{passed}: {table}");
    }
    assert!(!table.contains("others"), "{table}");
    assert!(table.contains("| GPU 0 | made up | 80 GiB |"), "{table}");
    let calls = read("calls");
    let of_b: Vec<&str> = calls.lines().filter(|line| line.contains("--works")).collect();
    assert_eq!(of_b.len(), 6, "{calls}");
    assert!(of_b[0].contains("gpu-bench") && of_b[1].starts_with("python"), "in turn: {calls}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(&table));
    // A later stage adds to the table.
    run(folder.path(), &["D", "--out", "found"]);
    assert!(read("calls").contains("--compile") && read("found/D.log").contains("SPEED"));
    assert!(read("found/table.md").contains(&"10 tokens/s; ".repeat(3)));
}

#[test]
fn a_failure_a_missing_card_and_a_misspelt_stage_have_exit_codes_of_their_own() {
    let folder = packed();
    fs::write(folder.path().join("broken"), "").unwrap();
    let output = run(folder.path(), &["D"]);
    // Without a card that answers there is nothing to measure.
    assert_eq!(output.status.code(), Some(3));
    let output = run(folder.path(), &["A", "--tiny"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let log = fs::read_to_string(folder.path().join("results/A.log")).unwrap();
    assert!(log.contains("FAILED: more::gpu_b (101)") && log.contains("passed: gpu_a"), "{log}");
    let output = run(folder.path(), &["B", "--tiny"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let log = fs::read_to_string(folder.path().join("results/B.log")).unwrap();
    assert!(log.contains("FAILED: ddprun --works resnet50:128,gpt2:8"), "{log}");
    assert_eq!(run(folder.path(), &["E"]).status.code(), Some(2));
}
