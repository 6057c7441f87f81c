//! Kinds that a user's program registers: they are checked, planned and built as ddprun's own.

use std::path::Path;

use ddprun::config::schema::Mode;
use ddprun::config::sweep::Sweep;
use ddprun::config::{self, Loaded, Problems};
use ddprun::kinds::Kinds;
use ddprun::sweep::{BaseValues, Length, ProposalRequest, Ranking, Report, Running, Trial, Tried};

#[path = "registered/backend.rs"]
mod backend;
#[path = "registered/candle.rs"]
mod candle;
#[path = "registered/data.rs"]
mod data;
#[path = "registered/images.rs"]
mod images;
#[path = "registered/program.rs"]
mod program;
#[path = "registered/sinks.rs"]
mod sinks;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/candle_model.rs"]
mod candle_model;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_backend.rs"]
mod custom_backend;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_data.rs"]
mod custom_data;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_optimizer.rs"]
mod custom_optimizer;
#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_model.rs"]
mod custom_model;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_layer.rs"]
mod custom_layer;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_search.rs"]
mod custom_search;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_sink.rs"]
mod custom_sink;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_tracker.rs"]
mod custom_tracker;

#[expect(dead_code, reason = "its `main` is not called here")]
#[path = "../examples/custom_transform.rs"]
mod custom_transform;

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
    assert!(foreign.contains("belongs to `adam`, `adamw`, `lion`"), "{foreign}");
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
    assert!(foreign.contains("belongs to `resnet8`, `resnet20`, "), "{foreign}");
}

fn load_sweep(words: &[&str]) -> Result<Sweep, Problems> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/custom_search.toml");
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    config::sweep::load(&path, &words, &search_kinds().vocabulary()).map(|(sweep, _)| sweep)
}

fn search_kinds() -> Kinds {
    let mut kinds = Kinds::default();
    custom_search::register(&mut kinds);
    kinds
}

#[test]
fn a_users_search_method_draws_values_and_a_users_pruner_is_asked() {
    let (kinds, search) = (search_kinds(), load_sweep(&[]).expect("the example").search);
    let method = kinds.methods.build(&search.method).expect("it is registered");
    let (base, ranking) = (BaseValues::default(), Ranking::plain(search.goal));
    let draw = |number| {
        let request = ProposalRequest {
            search: &search,
            base: &base,
            ranking: &ranking,
            number,
            trials: &[],
            tried: &Tried::default(),
        };
        method.propose(&request).expect("there are no constraints")
    };
    // 22 = 10110 in base 2: its mirror is 13/32, on a scale from 1e-3 to 1e-1.
    let expected = 10_f64.powf(-3.0 + 2.0 * 13.0 / 32.0);
    let drawn = draw(2)[0].1.as_f64().expect("a number");
    assert!((drawn - expected).abs() < 1e-12, "{drawn}, not {expected}");
    assert_ne!(draw(1), draw(2));

    let pruner = kinds.pruners.build(&search.pruner).expect("it is registered");
    let length = Length { steps_per_epoch: 1, total_steps: 2 };
    let mut trial = Trial::new(1, draw(1), length);
    for (value, is_cut) in [(0.4, true), (0.6, false)] {
        trial.reports = vec![Report { step: 1, value: Some(value) }];
        let running = Running { goal: Mode::Max, trial: &trial, index: 0, others: &[] };
        assert_eq!(pruner.is_cut(&running), is_cut, "{value}");
    }
}

#[test]
fn options_of_a_users_search_method_and_pruner_are_refused_as_ddpruns_own_are() {
    let refused = |word: &str| load_sweep(&[word]).expect_err(word).page(false, 80);
    for (word, expected) in [
        ("sweep.halton.skp=5", "did you mean `skip`?"),
        ("sweep.halton.skip=-1", "must be at least 0, not -1"),
        ("sweep.halton.skip=1001", "must be from 0 to 1000, not 1001"),
        ("sweep.method=haltn", "did you mean `halton`?"),
        ("~sweep.pruner.limit", "`threshold` needs `limit`"),
        ("sweep.pruner.reduction_factor=3", "belongs to `asha`, but `name` is"),
    ] {
        let page = refused(word);
        assert!(page.contains(expected), "{word}: {page}");
    }
}
