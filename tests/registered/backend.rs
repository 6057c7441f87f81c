//! A backend that a user's program registers. The binary of these tests is also that program, and
//! its ranks: `Program::this` starts it by `worker`, which selects [`as_worker`].
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test binary")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ddprun::config;
use ddprun::plan::{DataFacts, Facts, Modality, Plan, SourcePlan};

use crate::custom_backend;

/// What the program is asked to do; absent in the process of the tests.
const LINE: &str = "TEST_LINE";

/// The program; does nothing in the process of the tests.
#[test]
fn as_program() -> ExitCode {
    let Ok(line) = std::env::var(LINE) else { return ExitCode::SUCCESS };
    let words = std::iter::once("custom_backend").chain(line.split('\n')).map(OsString::from);
    ddprun::cli::run(words, &custom_backend::kinds())
}

/// One of its ranks; does nothing in the process of the tests.
#[test]
fn as_worker() -> ExitCode {
    if std::env::var(LINE).is_err() {
        return ExitCode::SUCCESS;
    }
    let words = ["custom_backend", "worker"].map(OsString::from);
    ddprun::cli::run(words, &custom_backend::kinds())
}

fn experiment() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/custom_backend.toml")
}

/// The weights after a training of two ranks by this backend.
fn trained(backend: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let backend = format!("distributed.backend={backend}");
    let line = [experiment().to_str().unwrap(), &backend, "distributed.bucket_cap=4KiB"].join("\n");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["backend::as_program", "--exact", "--nocapture"]);
    let ended = program.env(LINE, line).current_dir(folder.path()).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{told}\n{}", String::from_utf8_lossy(&ended.stdout));
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

#[test]
fn ranks_of_a_users_backend_train_to_the_same_bits_as_in_shared_memory() {
    assert_eq!(trained("files"), trained("shm"));
}

#[test]
fn a_misspelt_backend_is_answered_with_the_near_name_of_a_users() {
    let vocabulary = custom_backend::kinds().vocabulary();
    let words = ["distributed.backend=fiels".to_owned()];
    let page = config::load(&experiment(), &words, &vocabulary).unwrap_err().page(false, 120);
    let expected = "must be `auto`, `shm`, `nccl`, `tcp`, `mpi` or `files`, not `fiels`";
    assert!(page.contains(expected), "{page}");
    assert!(page.contains("did you mean `files`?") && page.contains("^^^^^"), "{page}");
    assert!(vocabulary.reference().contains("# \"files\": Files of one machine"));
    let schema = config::json_schema(&vocabulary);
    let words = &schema["properties"]["distributed"]["properties"]["backend"]["oneOf"];
    let names: Vec<_> = words.as_array().unwrap().iter().map(|word| &word["const"]).collect();
    assert_eq!(names, ["auto", "shm", "nccl", "tcp", "mpi", "files"]);
}

#[test]
fn a_users_backend_is_refused_where_it_does_not_reach_and_auto_leaves_it_alone() {
    let kinds = custom_backend::kinds();
    let planned = |words: &[&str], nodes: u32| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let loaded = config::load(&experiment(), &words, &kinds.vocabulary()).unwrap();
        let data = DataFacts {
            source: SourcePlan::new("shapes", Modality::Images),
            n_train: 400,
            n_val: 100,
            classes: ["a", "b", "c", "d"].map(str::to_owned).into(),
            sample: Some(vec![3, 16, 16]),
            ..DataFacts::default()
        };
        let plan = Plan::new(&loaded, &Facts { nodes, ..Facts::of(data) }, &kinds);
        plan.map(|plan| plan.distributed.backend.name).map_err(|all| all.page(false, 120))
    };
    assert_eq!(planned(&[], 1), Ok("files".to_owned()));
    assert_eq!(planned(&["distributed.backend=auto"], 1), Ok("shm".to_owned()));
    let page = planned(&[], 2).unwrap_err();
    let expected = "`distributed.backend`: connects ranks of one machine, and there are 2";
    assert!(page.contains(expected) && page.contains("backend = \"files\""), "{page}");
    assert!(
        page.contains("^^^^^^^") && page.contains("omit it, or use backend = \"tcp\""),
        "{page}"
    );
}
