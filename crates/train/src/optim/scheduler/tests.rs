use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::config::kind::Entry;
use crate::config::{Vocabulary, load_text};
use crate::optim::{self, Optimizers};
use crate::plan::{
    BackendFacts, ComponentFacts, DataFacts, Facts, Flow, Images, LayerMisfit, LayerPlan,
    LossFacts, MetricContext, MetricFacts, Modality, ModelFacts, ModelPlan, OptimizerFacts,
    PixelStats, Plan, SourcePlan, Targets, TransformFacts,
};

/// The kinds of this room, and a model of one number.
#[derive(Default)]
struct Known {
    optimizers: Optimizers,
    schedulers: Schedulers,
}

impl ComponentFacts for Known {
    fn model(&self, _: &ModelPlan) -> Result<ModelFacts, String> {
        let parameters = vec![("w".to_owned(), vec![1])];
        Ok(ModelFacts { parameters, ..ModelFacts::default() })
    }

    fn transforms(
        &self,
        asked: &[Choice],
        images: &Images,
        _: Option<&PixelStats>,
    ) -> Result<TransformFacts, (usize, Unfit)> {
        let Images { channels, size, .. } = *images;
        let (list, random) = (asked.to_vec(), Vec::new());
        Ok(TransformFacts { list, channels, size, values: None, random })
    }

    fn layers(&self, _: &[Entry], _: Flow, _: usize) -> Result<Vec<LayerPlan>, LayerMisfit> {
        Ok(Vec::new())
    }

    fn loss(&self, _: &Choice) -> Result<LossFacts, String> {
        let (weighs_labels, takes_probabilities) = (false, false);
        let targets = Targets::Numbers;
        Ok(LossFacts {
            targets,
            weighs_labels,
            runs_on_gpus: true,
            takes_probabilities,
            is_never_negative: false,
            needs_reference: false,
        })
    }

    fn metrics(&self, _: &MetricContext) -> Vec<MetricFacts> {
        Vec::new()
    }

    fn optimizer(&self, rule: &Choice) -> Result<OptimizerFacts, String> {
        let rule = self.optimizers.build(rule).map_err(|error| error.to_string())?;
        Ok(optim::facts(rule.as_ref()))
    }

    fn scheduler(&self, rule: &Choice) -> Result<SchedulerFacts, String> {
        scheduler_facts(&self.schedulers, rule)
    }

    fn schedule(&self, rule: &Choice, span: &Span) -> Result<String, Unfit> {
        describe_schedule(&self.schedulers, rule, span)
    }

    fn backends(&self) -> Vec<BackendFacts> {
        Vec::new()
    }
}

/// A plan of `total` steps of 3 per epoch under these keys of `[scheduler]`, if it is legal.
fn planned(keys: &[String], total: u64) -> Result<Plan, String> {
    let text = "[model]\nname = \"mlp\"\n[data]\nname = \"csv\"\ntrain_file = \"t\"\nval_file = \"v\"\n\
        target = \"y\"\n[train]\nbatch_size = 2\n[loss]\nname = \"mse\"\n[optimizer]\nname = \"sgd\"\n\
        lr = 0.5\n";
    let words = [vec![format!("train.steps={total}")], keys.to_vec()].concat();
    let kinds = Known::default();
    let families = vec![kinds.optimizers.spec(), kinds.schedulers.spec()];
    let vocabulary = Vocabulary::new(families, Vec::new());
    let loaded = load_text(Path::new("x.toml"), text, &words, &vocabulary)
        .map_err(|problems| problems.page(false, 80))?;
    let source = SourcePlan::new("csv", Modality::Table);
    let data = DataFacts {
        source,
        n_train: 6,
        n_val: 2,
        classes: vec![],
        sample: Some(vec![1]),
        ..DataFacts::default()
    };
    Plan::new(&loaded, &Facts::of(data), &kinds).map_err(|problems| problems.page(false, 80))
}

fn rates(plan: &Plan) -> Vec<Rates> {
    let scheduler = Schedulers::default().build(&plan.schedule.rule).unwrap();
    let schedule = Schedule::new(scheduler.as_ref(), &plan.schedule, plan.optimizer.lr);
    // One more than the run has: what the next step would use is shown, too.
    (0..=plan.length.total_steps).map(|done| schedule.rates(done, &Plateau::default())).collect()
}

const RULES: [&str; 13] = [
    "constant",
    "step",
    "multi_step scheduler.milestones=[0,1,3]",
    "exponential scheduler.gamma=0.5",
    "exponential scheduler.interval=step scheduler.gamma=30.0",
    "cosine",
    "linear",
    "polynomial scheduler.power=0.5",
    "cosine_restarts scheduler.t_0=2 scheduler.t_mult=2",
    "wsd scheduler.decay=0.4",
    "inverse_sqrt scheduler.timescale=3",
    "one_cycle",
    "noam scheduler.d_model=4",
];

proptest! {
    #[test]
    fn every_rate_of_a_legal_plan_is_a_number_and_not_negative(
        (rule, total, warmup) in (0..RULES.len(), 1..9u64, 0..9u64),
        (lr, pct_start, by_step) in (0..3usize, 0..=10u32, any::<bool>()),
    ) {
        let mut keys = vec![format!("optimizer.lr={}", [0.0, 1e-3, 1e6][lr])];
        keys.extend(format!("scheduler.name={}", RULES[rule]).split(' ').map(str::to_owned));
        keys.push(format!("scheduler.warmup={warmup} steps"));
        if by_step {
            keys.push("scheduler.interval=step".to_owned());
        }
        if RULES[rule] == "one_cycle" {
            keys.push(format!("scheduler.pct_start={}", f64::from(pct_start) / 10.0));
        }
        if let Ok(plan) = planned(&keys, total) {
            for Rates { lr, momentum } in rates(&plan) {
                prop_assert!(lr.is_finite() && lr >= 0.0, "{keys:?} in {total} steps: {lr}");
                prop_assert!(momentum.is_none_or(|m| (0.0..1.0).contains(&m)), "{momentum:?}");
            }
        }
    }
}

#[test]
fn one_cycle_begins_after_the_warm_up_and_ends_with_the_run() {
    let keys = ["scheduler.name=one_cycle", "scheduler.warmup=4 steps"].map(str::to_owned);
    let found = rates(&planned(&keys, 24).unwrap());
    let alone = rates(&planned(&keys[..1], 20).unwrap());
    // Up to the cycle's first rate, a 25th of the peak, then the cycle as it is without a warm-up.
    for (step, expected) in [0.01, 0.2575, 0.505, 0.7525].into_iter().enumerate() {
        assert!((found[step].lr - 0.02 * expected).abs() < 1e-12, "{found:?}");
        assert_eq!(found[step].momentum, Some(0.95));
    }
    assert_eq!(found[4..], alone);
    let peak = found.iter().map(|rates| rates.lr).fold(0.0, f64::max);
    assert!((peak - 0.5).abs() < 1e-12 && (found[23].lr - 2e-6).abs() < 1e-12, "{found:?}");
}

#[test]
fn a_cycle_without_a_rising_step_is_refused() {
    let cycle = |pct_start: f64, total| {
        let keys = ["scheduler.name=one_cycle", &format!("scheduler.pct_start={pct_start}")];
        planned(&keys.map(str::to_owned), total)
    };
    // PyTorch divides by zero where the product is 1.
    for (pct_start, total) in [(0.5, 2), (1.0, 1), (0.1, 10), (0.3, 3), (0.3, 1)] {
        let page = cycle(pct_start, total).unwrap_err();
        assert!(page.contains("leaves no step in which the rate rises"), "{page}");
    }
    for (pct_start, total) in [(0.3, 4), (1.0, 2), (0.0, 1), (0.0, 9)] {
        assert!(cycle(pct_start, total).is_ok(), "{pct_start} of {total} steps");
    }
}

#[test]
fn a_rate_that_rises_past_every_number_is_refused() {
    let keys = |gamma: &str| {
        let interval = "scheduler.interval=step";
        ["scheduler.name=exponential", interval, &format!("scheduler.gamma={gamma}")]
            .map(str::to_owned)
    };
    assert!(planned(&keys("10.0"), 30).is_ok());
    let page = planned(&keys("10.0"), 300).unwrap_err();
    assert!(page.contains("past the largest number"), "{page}");
}

#[test]
fn noam_rises_to_its_warm_up_and_falls_with_the_root_of_the_steps() {
    let rate = |min_lr, done| {
        let noam = NoamAnnealing { d_model: 512, min_lr };
        let plan = SchedulePlan { warmup_steps: 25_000, ..schedule(&noam, 1_000_000) };
        Schedule::new(&noam, &plan, 5.0).rates(done, &Plateau::default()).lr
    };
    // NeMo's NoamAnnealing of lr 5, d_model 512 and 25,000 steps of warm-up.
    for (done, expected) in [
        (0, 5.590_169_943_749_475e-8),
        (1, 5.590_169_943_749_475e-8),
        (100, 5.590_169_943_749_474_4e-6),
        (1000, 5.590_169_943_749_474e-5),
        (25_000, 0.001_397_542_485_937_368_8),
        (100_000, 0.000_698_771_242_968_684_4),
        (500_000, 0.000_312_5),
    ] {
        let found = rate(1e-6, done);
        assert!((found - expected).abs() < 1e-12 * expected.max(1e-3), "{done}: {found}");
    }
    assert_eq!(rate(1e-3, 500_000), 1e-3);
    assert!(rate(1e-3, 100) < 1e-3, "the floor holds after the warm-up");
}

#[test]
fn each_scheduler_says_what_it_does_in_the_run() {
    let line = |words: &str| {
        let keys: Vec<String> =
            format!("scheduler.name={words}").split(' ').map(str::to_owned).collect();
        planned(&keys, 30).map_or_else(|page| page, |plan| plan.schedule.line)
    };
    for (words, expected) in [
        ("constant", "constant"),
        ("step", "step: x 0.1 every 30 epochs"),
        ("multi_step scheduler.milestones=[2,4]", "multi_step: x 0.1 after [2, 4] epochs"),
        ("exponential scheduler.gamma=0.5", "exponential: x 0.5 per interval (epochs)"),
        ("cosine", "cosine over 10 epochs to 0"),
        ("cosine scheduler.interval=step", "cosine over 30 steps to 0"),
        ("one_cycle", "one_cycle over 30 steps, rising for 30 %"),
        (
            "one_cycle optimizer.momentum=0.9",
            "one_cycle over 30 steps, rising for 30 %, momentum from 0.95 to 0.85 and back",
        ),
        ("plateau", "plateau: x 0.1 when val/loss has not improved for more than 10 evaluations"),
        (
            "noam scheduler.d_model=4",
            "noam: rises for 0 steps, then falls with the inverse square root of the step",
        ),
    ] {
        assert_eq!(line(words), expected);
    }
    let keys = ["scheduler.name=cosine", "scheduler.warmup=6 steps"].map(str::to_owned);
    let warmed = planned(&keys, 30).unwrap().schedule.line;
    assert_eq!(warmed, "cosine over 8 epochs to 0, after 6 steps of warm-up from 1 %");
}

#[test]
fn a_rate_that_is_not_tested_may_not_rise_and_a_floor_is_below_the_peak() {
    let page = |words: &[&str]| {
        let keys: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        planned(&keys, 30).unwrap_err()
    };
    let told = page(&["scheduler.name=exponential", "scheduler.gamma=1.5"]);
    assert!(told.contains("must be greater than 0 and at most 1, not 1.5"), "{told}");
    let told = page(&["scheduler.name=step", "scheduler.gamma=1.5"]);
    assert!(told.contains("must be greater than 0 and at most 1, not 1.5"), "{told}");
    let told = page(&["scheduler.name=cosine", "scheduler.eta_min=0.6"]);
    assert!(told.contains("must be at most the learning rate, 0.5"), "{told}");
    let told = page(&["scheduler.name=step", "scheduler.step_size=0"]);
    assert!(told.contains("must be at least 1, not 0"), "{told}");
    let told = page(&["scheduler.name=plateau", "scheduler.factor=1"]);
    assert!(told.contains("must be between 0 and 1, not 1.0"), "{told}");
}
