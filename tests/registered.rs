//! Kinds that a user's program registers: they are checked, planned and built as ddprun's own.

use std::path::Path;

use ddprun::config::{self, Loaded, Problems};

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_optimizer.rs"]
mod custom_optimizer;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_model.rs"]
mod custom_model;

fn load(overrides: &[&str]) -> Result<Loaded, Problems> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/custom_optimizer.toml");
    let overrides: Vec<String> = overrides.iter().map(|&word| word.to_owned()).collect();
    config::load(&path, &overrides, &custom_optimizer::kinds().vocabulary())
}

#[test]
fn an_option_of_a_users_optimizer_is_read_with_its_default() {
    let loaded = load(&[]).expect("the example");
    let optimizer = &loaded.experiment.optimizer;
    assert_eq!((optimizer.name.as_str(), optimizer.lr), ("signum", 1e-3));
    assert_eq!(optimizer.options["momentum"], 0.95);
    assert_eq!(optimizer.options["weight_decay"], 0.0);
}

#[test]
fn a_users_option_is_refused_as_ddpruns_own_are() {
    let refused = |word: &str| load(&[word]).expect_err(word).page(false, 80);
    let typo = refused("optimizer.momentun=0.5");
    assert!(typo.contains("did you mean `optimizer.momentum`?"), "{typo}");
    assert!(typo.contains("^^^"), "{typo}");
    let range = refused("optimizer.momentum=1.5");
    assert!(range.contains("must be from 0 to 1, not 1.5"), "{range}");
    let kind = refused("optimizer.momentum=\"much\"");
    assert!(kind.contains("must be a number, not `\"much\"`"), "{kind}");
    let foreign = refused("optimizer.betas=[0.9,0.99]");
    assert!(foreign.contains("belongs to `adam`, `adamw` or `lion`"), "{foreign}");
}

#[test]
fn the_reference_page_explains_a_users_optimizer() {
    let vocabulary = custom_optimizer::kinds().vocabulary();
    let page = vocabulary.reference();
    assert!(page.contains("# \"signum\": Signum (Bernstein et al. 2018)"), "{page}");
    assert!(page.contains("signum: share of the momentum"), "{page}");
}

#[test]
fn an_option_of_a_users_model_is_checked_wherever_it_stands() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/custom_model.toml");
    let vocabulary = custom_model::kinds().vocabulary();
    let load = |word: &str| config::load(&path, &[word.to_owned()], &vocabulary);
    let loaded = load("model.depth=3").expect("the example");
    assert_eq!(loaded.experiment.model.options["depth"], 3);
    // Where options of a user's models once stood.
    let loaded = load("model.options.depth=4").expect("the example");
    assert_eq!(loaded.experiment.model.options["depth"], 4);
    for word in ["model.widht=3", "model.options.widht=3"] {
        let typo = load(word).expect_err(word).page(false, 80);
        assert!(typo.contains("did you mean `model.width`?"), "{typo}");
        assert!(typo.contains("^^^"), "{typo}");
    }
    let range = load("model.depth=0").expect_err("none").page(false, 80);
    assert!(range.contains("must be from 1 to 1024, not 0"), "{range}");
    let foreign = load("model.stem=cifar").expect_err("another's").page(false, 80);
    assert!(foreign.contains("belongs to `resnet8`, `resnet20`, `resnet18`"), "{foreign}");
}
