//! A data set, a loss and a metric of a user's program.
#![expect(clippy::expect_used, reason = "a test may stop")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use ddprun::config::kind::Choice;
use ddprun::config::{self, Loaded, Problems};
use ddprun::data::loader::{Loader, Request, Settings};
use ddprun::data::sampler::{EpochOrder, evaluation_chunks};
use ddprun::data::{self, Splits, SurveyRequest};
use ddprun::engine::{Engine, Split};
use ddprun::kinds::Kinds;
use ddprun::plan::{Facts, Plan, Targets};
use ddprun::units::{Rank, WorldSize};

use crate::custom_data;

/// ddprun's kinds, and those of `examples/custom_data.rs`.
fn with_data() -> Kinds {
    let mut kinds = Kinds::default();
    custom_data::register(&mut kinds);
    kinds
}

fn load_data(overrides: &[&str]) -> Result<Loaded, Problems> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/custom_data.toml");
    let overrides: Vec<String> = overrides.iter().map(|&word| word.to_owned()).collect();
    config::load(&path, &overrides, &with_data().vocabulary())
}

#[test]
fn options_of_a_users_data_set_and_loss_are_refused_as_ddpruns_own_are() {
    let refused = |word: &str| load_data(&[word]).expect_err(word).page(false, 80);
    let typo = refused("data.nois=0.2");
    assert!(typo.contains("did you mean `data.noise`?") && typo.contains("^^^"), "{typo}");
    let typo = refused("loss.gama=2");
    assert!(typo.contains("did you mean `loss.gamma`?"), "{typo}");
    let range = refused("data.arms=1");
    assert!(range.contains("`data.arms`: must be from 2 to 20, not 1"), "{range}");
    let foreign = refused("data.target=y");
    assert!(foreign.contains("belongs to `csv` or `jsonl`, but `name` is"), "{foreign}");
    let images = refused("data.transforms.train=[{name=resize,size=8}]");
    assert!(images.contains("change images, but `spirals` holds rows of a"), "{images}");
    let metric = refused("checkpoint.monitor=val/confidance");
    assert!(metric.contains("did you mean `val/confidence`?"), "{metric}");
    let page = with_data().vocabulary().reference().to_owned();
    assert!(page.contains("# \"spirals\": arms of a spiral in the plane"), "{page}");
}

/// The plan of the example on one rank.
fn planned(kinds: &Kinds) -> Plan {
    let loaded = load_data(&["distributed.devices=1", "data.num_workers=0"]).expect("the example");
    let (name, options) = {
        let data = &loaded.experiment.data;
        (data.name.clone(), data.options.clone())
    };
    let request = SurveyRequest::new("custom_data", 0, Targets::Classes);
    let found = data::survey(&kinds.data, &Choice { name, options }, &request).expect("a survey");
    Plan::new(&loaded, &Facts::of(found), kinds).expect("a plan")
}

/// Trains `plan` to its end, and evaluates what it has learnt.
fn trained(plan: Plan, splits: Splits, kinds: &Kinds) -> BTreeMap<String, f64> {
    let plan = Arc::new(plan);
    let parts = kinds.components(&plan, &Device::Cpu).expect("its kinds");
    let one = WorldSize::ONE;
    let mut engine = Engine::solo(plan.clone(), parts).expect("an engine");
    for epoch in 0..40 {
        let order = EpochOrder::new(&plan.data, &plan.batch, one, plan.seed, epoch);
        for step in 0..order.steps() {
            let passes = order.passes(step, Rank(0));
            let requests: Vec<Request> = passes
                .iter()
                .map(|pass| Request {
                    samples: pass.samples.clone(),
                    epoch: Some(epoch),
                    ..Request::default()
                })
                .collect();
            let settings = Settings::new(&plan.data, plan.seed);
            let loader = Loader::start(splits.train.clone(), requests.into_iter(), settings);
            let mut loader = loader.expect("a loader");
            let mut next = || Ok(loader.next().expect("a batch").expect("points").batch);
            engine.step(&passes, &mut next, &|| None).expect("a step");
        }
    }
    let n = splits.val.len();
    let chunks: Vec<_> = evaluation_chunks(n, plan.val_batch_size, one, Rank(0)).collect();
    let requests: Vec<Request> = chunks
        .iter()
        .map(|chunk| Request { samples: chunk.samples.clone(), epoch: None, ..Request::default() })
        .collect();
    let settings = Settings::new(&plan.data, plan.seed);
    let loader = Loader::start(splits.val, requests.into_iter(), settings);
    let mut loader = loader.expect("a loader");
    let mut next = || Ok(loader.next().expect("a batch").expect("points").batch);
    engine.evaluate(Split::Val, &chunks, &mut next).expect("an evaluation").metrics
}

#[test]
fn a_users_data_set_loss_and_metric_train_a_model() {
    let kinds = with_data();
    let plan = planned(&kinds);
    assert_eq!((plan.data.n_train, plan.data.n_val, plan.data.classes.len()), (600, 120, 3));
    assert_eq!(plan.data.source.line, "spirals, arms 3, noise 0.02, points 200");
    let stored = serde_json::to_string(&plan).expect("JSON");
    let plan: Plan = serde_json::from_str(&stored).expect("what a rank is told");
    let source = kinds.data.build(&plan.data.source.kind).expect("the data set");
    let splits =
        data::open(source.as_ref(), &plan.data, &SurveyRequest::of(&plan), &kinds.transforms)
            .expect("its points");
    let metrics = trained(plan, splits, &kinds);
    assert!(metrics["val/accuracy"] > 0.9, "{metrics:?}");
    assert!(metrics["val/confidence"] > 0.6, "{metrics:?}");
}
