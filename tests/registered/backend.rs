//! A backend that a user's program registers.

use std::path::PathBuf;

use ddprun::config;
use ddprun::plan::{DataFacts, Facts, Modality, Plan, SourcePlan};

use crate::{custom_backend, program};

fn experiment() -> PathBuf {
    program::example("custom_backend.toml")
}

/// The weights after a training of two ranks by this backend.
fn trained(backend: &str) -> Vec<u8> {
    let backend = format!("distributed.backend={backend}");
    program::trained(&experiment(), &[&backend, "distributed.bucket_cap=4KiB"])
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
