//! Names of kinds that a build is without.

use super::*;
use crate::kinds::{OPTIONAL, mark_left_out};

#[test]
fn a_build_with_all_features_has_every_optional_kind() {
    let families = Kinds::default().families();
    for family in &families {
        assert!(family.left_out.is_empty(), "{:?}", family.left_out);
    }
    for (table, name, _) in OPTIONAL {
        let family = families.iter().find(|family| family.table == *table);
        assert!(family.is_some_and(|family| family.kind(name).is_some()), "{table} {name}");
    }
}

/// The words of a build without the feature.
fn without(feature: &str) -> Vocabulary {
    let mut families = Kinds::default().families();
    for family in &mut families {
        let is_of_feature = |name: &str| OPTIONAL.contains(&(family.table, name, feature));
        family.kinds.retain(|kind| !is_of_feature(kind.name));
    }
    mark_left_out(&mut families);
    Vocabulary::new(families, Kinds::default().metrics.specs())
}

/// Key, error and remedy of each problem of `text`.
fn problems(words: &Vocabulary, text: &str, overrides: &[&str]) -> Vec<(String, String, String)> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let problems = load_text(Path::new("exp.toml"), text, &overrides, words).unwrap_err();
    let parts = |problem: &crate::config::Problem| {
        let help = problem.remedy().unwrap_or_default().to_owned();
        (problem.key().to_owned(), problem.what().to_owned(), help)
    };
    problems.iter().map(parts).collect()
}

#[test]
fn a_backend_that_a_build_is_without_is_answered_with_its_feature() {
    let found = problems(&without("mpi"), GOOD, &["distributed.backend=mpi"]);
    let what = "this build of ddprun is without `mpi`".to_owned();
    let help = "build it with `--features mpi`".to_owned();
    assert_eq!(found, [("distributed.backend".to_owned(), what, help)]);
}

#[test]
fn a_name_that_a_build_is_without_is_answered_with_its_feature_alone() {
    let words = without("speech");
    let problems = |text: &str, overrides: &[&str]| problems(&words, text, overrides);
    let expected = |key: &str, name: &str| {
        let what = format!("this build of ddprun is without `{name}`");
        (key.to_owned(), what, "build it with `--features speech`".to_owned())
    };
    let nest = "[model]\nname = \"nest\"\nd_model = 8\n[data]\nname = \"speech\"\n\
                train_dir = \"a\"\nn_mels = 16\n[train]\nepochs = 1\nbatch_size = 2\n";
    let both = [expected("model.name", "nest"), expected("data.name", "speech")];
    assert_eq!(problems(nest, &[]), both);
    assert_eq!(
        problems(GOOD, &["model.name=fastconformer"]),
        [expected("model.name", "fastconformer")]
    );
    let misspelt = problems(GOOD, &["data.name=speach"]);
    assert_eq!(misspelt[0].1, "no data set is called `speach`");
    assert_eq!(words.left_out("data", "speech").map(ToString::to_string).unwrap(), both[1].1);
    assert!(words.kind("data", "speech").is_err());
}
