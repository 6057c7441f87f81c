//! The binary of these tests as a program of a user's, and as its ranks: `Program::this` starts it
//! by `worker`, which selects [`as_worker`].
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test binary")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use ddprun::kinds::Kinds;

use crate::{candle, candle_model, custom_backend};

/// Words of the command line, a line each; absent in the process of the tests.
const LINE: &str = "TEST_LINE";

fn kinds() -> Kinds {
    let mut kinds = custom_backend::kinds();
    candle_model::register(&mut kinds);
    candle::register(&mut kinds);
    kinds
}

/// The program; does nothing in the process of the tests.
#[test]
fn as_program() -> ExitCode {
    let Ok(line) = std::env::var(LINE) else { return ExitCode::SUCCESS };
    let words = std::iter::once("own").chain(line.split('\n')).map(OsString::from);
    ddprun::cli::run(words, &kinds())
}

/// One of its ranks; does nothing in the process of the tests.
#[test]
fn as_worker() -> ExitCode {
    if std::env::var(LINE).is_err() {
        return ExitCode::SUCCESS;
    }
    ddprun::cli::run(["own", "worker"].map(OsString::from), &kinds())
}

/// A file of `examples/`.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Runs the program in `folder`.
pub(crate) fn run(folder: &Path, experiment: &Path, words: &[&str]) -> Output {
    let line = [&[experiment.to_str().unwrap()], words].concat().join("\n");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["program::as_program", "--exact", "--nocapture"]);
    program.env(LINE, line).current_dir(folder).output().unwrap()
}

/// The weights after a training that succeeds.
pub(crate) fn trained(experiment: &Path, words: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(folder.path(), experiment, words);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{stderr}\n{}", String::from_utf8_lossy(&ended.stdout));
    newest_weights(&folder.path().join("checkpoints"))
}

/// The weights of the last step below `folder`.
fn newest_weights(folder: &Path) -> Vec<u8> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            } else if path.file_name().unwrap() == "model.safetensors" {
                found.push(path);
            }
        }
    }
    std::fs::read(found.iter().max().unwrap()).unwrap()
}
