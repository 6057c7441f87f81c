//! Kinds that a user's program registers: they are checked, planned and built as ddprun's own.

use std::path::Path;

use ddprun::config::{self, Loaded, Problems};

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_optimizer.rs"]
mod custom_optimizer;

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
