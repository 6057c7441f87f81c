//! Each number on its own: what it may be.

use crate::config::check::Finding;
use crate::config::loaded::Loaded;
use crate::config::schema::Experiment;
use crate::config::values::{Auto, Duration, Every, Patience, Warmup};

/// The only schema there is.
const SCHEMA: u32 = 1;

/// Numbers from `low` to `high`, each bound in or out.
struct Range {
    low: f64,
    with_low: bool,
    high: f64,
    with_high: bool,
    words: &'static str,
}

const fn range(low: f64, with_low: bool, high: f64, with_high: bool, words: &'static str) -> Range {
    Range { low, with_low, high, with_high, words }
}

impl Range {
    fn holds(&self, value: f64) -> bool {
        let above = if self.with_low { value >= self.low } else { value > self.low };
        let below = if self.with_high { value <= self.high } else { value < self.high };
        value.is_finite() && above && below
    }

    fn check(&self, key: &str, value: f64) -> Option<Finding> {
        let what = || format!("must be {}, not {}", self.words, shown(value));
        (!self.holds(value)).then(|| Finding::new(key, what()))
    }
}

const POSITIVE: Range = range(0.0, false, f64::MAX, true, "greater than 0 and finite");
const NOT_NEGATIVE: Range = range(0.0, true, f64::MAX, true, "at least 0 and finite");
const SHARE: Range = range(0.0, true, 1.0, true, "from 0 to 1");
const PROPER_SHARE: Range = range(0.0, false, 1.0, false, "between 0 and 1");
const FACTOR: Range = range(0.0, false, 1.0, true, "greater than 0 and at most 1");
const RATE: Range = range(0.0, true, 1e6, true, "from 0 to 1e6");
const ABOVE_ONE: Range = range(1.0, true, f64::MAX, true, "at least 1 and finite");

/// A whole file of another version makes no sense to check, but its number does.
pub(crate) fn schema_version(loaded: &Loaded) -> Vec<Finding> {
    let found = loaded.experiment.schema;
    if found == SCHEMA {
        return Vec::new();
    }
    let what = format!("this ddprun reads schema {SCHEMA}, the file is schema {found}");
    vec![Finding::new("schema", what)]
}

/// A key, how to read it, and what it may be.
type Real = (&'static str, fn(&Experiment) -> Option<f64>, Range);
type Whole = (&'static str, fn(&Experiment) -> Option<u64>, u64, u64);

const REALS: &[Real] = &[
    ("data.max_bad_fraction", |e| Some(e.data.max_bad_fraction), SHARE),
    ("data.mixup.mixup_alpha", |e| Some(e.data.mixup.mixup_alpha), NOT_NEGATIVE),
    ("data.mixup.cutmix_alpha", |e| Some(e.data.mixup.cutmix_alpha), NOT_NEGATIVE),
    ("data.mixup.prob", |e| Some(e.data.mixup.prob), SHARE),
    ("data.mixup.switch_prob", |e| Some(e.data.mixup.switch_prob), SHARE),
    ("data.fraction", |e| e.data.fraction, FACTOR),
    ("data.val_fraction", |e| e.data.val_fraction, PROPER_SHARE),
    ("data.test_fraction", |e| e.data.test_fraction, PROPER_SHARE),
    ("train.clip_grad_norm", |e| e.train.clip_grad_norm, POSITIVE),
    ("train.clip_grad_value", |e| e.train.clip_grad_value, POSITIVE),
    ("train.gradient_noise", |e| e.train.gradient_noise, POSITIVE),
    ("optimizer.lr", |e| Some(e.optimizer.lr), RATE),
    ("optimizer.layer_decay", |e| e.optimizer.layer_decay, FACTOR),
    ("ema.decay", |e| e.ema.decay, SHARE),
    ("ema.power", |e| e.ema.power, POSITIVE),
    ("swa.lr", |e| e.swa.lr, RATE),
    ("lookahead.alpha", |e| e.lookahead.alpha, SHARE),
    ("lookahead.power", |e| e.lookahead.power, POSITIVE),
    ("scheduler.warmup_start_factor", |e| Some(e.scheduler.warmup_start_factor), FACTOR),
    ("loss_scale.init", |e| Some(e.loss_scale.init), POSITIVE),
    ("loss_scale.growth_factor", |e| Some(e.loss_scale.growth_factor), ABOVE_ONE),
    ("loss_scale.backoff_factor", |e| Some(e.loss_scale.backoff_factor), PROPER_SHARE),
    ("fault.divergence_threshold", |e| e.fault.divergence_threshold, POSITIVE),
    ("early_stopping.min_delta", |e| Some(e.early_stopping.min_delta), NOT_NEGATIVE),
];

/// Most samples of a step, most epochs, steps: past them a number is a slip, and products overflow.
const MAX_SAMPLES: u64 = 1 << 24;
const MAX_STEPS: u64 = 1 << 40;

const WHOLES: &[Whole] = &[
    ("model.num_classes", |e| given(e.model.num_classes), 1, 1 << 20),
    ("data.num_workers", |e| given(e.data.num_workers), 0, 256),
    ("data.prefetch_factor", |e| Some(e.data.prefetch_factor.into()), 1, 64),
    ("data.mixup.off_epoch", |e| e.data.mixup.off_epoch, 1, 1 << 24),
    ("train.epochs", |e| e.train.epochs, 1, 1 << 24),
    ("data.limit", |e| e.data.limit, 1, MAX_STEPS),
    ("data.aug_repeats", |e| Some(e.data.aug_repeats.into()), 1, 64),
    ("data.folds", |e| e.data.folds, 2, 1000),
    ("data.fold", |e| e.data.fold, 0, 999),
    ("train.steps", |e| e.train.steps, 1, MAX_STEPS),
    ("train.batch_size", |e| given(e.train.batch_size), 1, MAX_SAMPLES),
    ("train.global_batch_size", |e| given(e.train.global_batch_size), 1, MAX_SAMPLES),
    (
        "train.gradient_accumulation_steps",
        |e| given(e.train.gradient_accumulation_steps),
        1,
        65_536,
    ),
    ("lr_scaling.base_batch_size", |e| Some(e.lr_scaling.base_batch_size.into()), 1, MAX_SAMPLES),
    ("swa.start", |e| e.swa.start.and_then(count), 0, MAX_STEPS),
    (
        "optimizer.gradual_unfreezing",
        |e| e.optimizer.gradual_unfreezing.and_then(count),
        1,
        MAX_STEPS,
    ),
    ("swa.every", |e| e.swa.every.and_then(count), 1, MAX_STEPS),
    ("lookahead.k", |e| e.lookahead.k, 1, MAX_STEPS),
    ("swa.anneal_epochs", |e| e.swa.anneal_epochs, 0, 1 << 24),
    ("scheduler.warmup", |e| steps_or_epochs(e.scheduler.warmup), 0, MAX_STEPS),
    ("loss_scale.growth_interval", |e| Some(e.loss_scale.growth_interval), 1, MAX_STEPS),
    ("distributed.devices", |e| e.distributed.devices.count().map(u64::from), 1, 1024),
    ("distributed.threads_per_rank", |e| given(e.distributed.threads_per_rank), 1, 1024),
    ("distributed.bucket_cap", |e| Some(e.distributed.bucket_cap.0), 1024, 1 << 40),
    ("distributed.first_bucket_cap", |e| Some(e.distributed.first_bucket_cap.0), 1024, 1 << 40),
    ("distributed.shards", |e| given(e.distributed.shards), 1, 1024),
    ("distributed.min_world_size", |e| given(e.distributed.min_world_size), 1, 1024),
    ("validation.every", |e| count(e.validation.every), 1, MAX_STEPS),
    ("validation.sample_every", |e| Some(e.validation.sample_every.into()), 1, 1 << 20),
    ("validation.batch_size", |e| given(e.validation.batch_size), 1, MAX_SAMPLES),
    ("checkpoint.every", |e| count(e.checkpoint.every), 1, MAX_STEPS),
    ("checkpoint.keep_last", |e| Some(e.checkpoint.keep_last.into()), 1, 10_000),
    ("checkpoint.keep_best", |e| Some(e.checkpoint.keep_best.into()), 0, 10_000),
    ("early_stopping.patience", |e| e.early_stopping.patience, 1, MAX_STEPS),
    ("fault.max_restarts", |e| Some(e.fault.max_restarts.into()), 0, 1000),
    ("fault.compare_weights", |e| count(e.fault.compare_weights), 1, MAX_STEPS),
    ("logging.every", |e| count(e.logging.every), 1, MAX_STEPS),
];

/// For each number that has bounds its key, and the bounds in the words of JSON schema.
pub(crate) fn limits() -> Vec<(String, serde_json::Map<String, serde_json::Value>)> {
    let bound = |key: &str, exact: &str, value: f64, is_in: bool| {
        let name = if is_in { key } else { exact };
        (value.abs() < f64::MAX).then(|| (name.to_owned(), value.into()))
    };
    let reals = REALS.iter().map(|(key, _, range)| {
        let low = bound("minimum", "exclusiveMinimum", range.low, range.with_low);
        let high = bound("maximum", "exclusiveMaximum", range.high, range.with_high);
        ((*key).to_owned(), low.into_iter().chain(high).collect())
    });
    let wholes = WHOLES.iter().map(|&(key, _, low, high)| {
        let both = [("minimum".to_owned(), low.into()), ("maximum".to_owned(), high.into())];
        (key.to_owned(), both.into_iter().collect())
    });
    reals.chain(wholes).collect()
}

/// The least and the most that the whole number `key` may be.
pub(crate) fn bounds(key: &str) -> Option<(u64, u64)> {
    WHOLES.iter().find(|(name, ..)| *name == key).map(|&(_, _, low, high)| (low, high))
}

fn given(value: Auto<u32>) -> Option<u64> {
    value.given().map(u64::from)
}

fn count(every: Every) -> Option<u64> {
    match every {
        Every::Never => None,
        Every::Epochs(n) | Every::Steps(n) => Some(n),
    }
}

fn steps_or_epochs(warmup: Warmup) -> Option<u64> {
    match warmup {
        Warmup::For(every) => count(every),
        Warmup::Percent(_) => None,
    }
}

/// Every number that stands alone.
pub(crate) fn numbers(loaded: &Loaded) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let reals = REALS.iter().filter_map(|(key, read, range)| {
        let value = read(experiment)?;
        range.check(key, value).map(|finding| real(key, value, finding))
    });
    let wholes = WHOLES.iter().filter_map(|&(key, read, low, high)| {
        let value = read(experiment)?;
        (value < low || value > high).then(|| whole(key, value, low, high))
    });
    reals.chain(wholes).chain(times(experiment)).collect()
}

/// The remedy where a number is one that elsewhere means something else.
fn real(key: &str, value: f64, finding: Finding) -> Finding {
    match key {
        // Lightning and transformers do not clip then; PyTorch's function leaves nothing of the
        // gradients.
        "train.clip_grad_norm" | "train.clip_grad_value" if value == 0.0 => finding
            .help(format!("for no clipping, remove it, or pass `~{key}` on the command line")),
        _ => finding,
    }
}

fn whole(key: &str, value: u64, low: u64, high: u64) -> Finding {
    let finding = if value < low {
        Finding::new(key, format!("must be at least {low}, not {value}"))
    } else {
        Finding::new(key, format!("must be at most {high}, not {value}"))
    };
    match key {
        "train.epochs" | "train.steps" if value == 0 => {
            finding.help("to only evaluate, use `ddprun eval`")
        }
        "validation.every" | "checkpoint.every" | "logging.every" | "fault.compare_weights"
            if value == 0 =>
        {
            finding.help("to switch it off, write \"never\"")
        }
        _ => finding,
    }
}

fn times(experiment: &Experiment) -> Vec<Finding> {
    const WEEK: u64 = 7 * 24 * 3600;
    let stall = match experiment.fault.stall_timeout {
        Patience::After(time) => Some(Duration(time)),
        Patience::Auto | Patience::Never => None,
    };
    let limits = [
        ("fault.stall_timeout", stall, WEEK, "one week"),
        ("train.time", experiment.train.time, 52 * WEEK, "52 weeks"),
        ("distributed.timeout", Some(experiment.distributed.timeout), WEEK, "one week"),
    ];
    let check = |(key, time, most, words): (&str, Option<_>, u64, &str)| {
        let Duration(time) = time?;
        let ok = !time.is_zero() && time.as_secs() <= most;
        (!ok).then(|| Finding::new(key, format!("must be more than 0 and at most {words}")))
    };
    limits.into_iter().filter_map(check).collect()
}

/// Lists and pairs of numbers.
pub(crate) fn lists(loaded: &Loaded) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let mut found = Vec::new();
    for (index, group) in experiment.optimizer.groups.iter().enumerate() {
        let key = |name: &str| format!("optimizer.groups[{index}].{name}");
        let numbers = [("lr_factor", group.lr_factor), ("weight_decay", group.weight_decay)];
        let numbers = numbers.into_iter().filter_map(|(name, value)| Some((name, value?)));
        found.extend(numbers.filter_map(|(name, value)| NOT_NEGATIVE.check(&key(name), value)));
        let epochs = ["unfreeze_at_epoch", "freeze_at_epoch"];
        let given = [group.unfreeze_at_epoch, group.freeze_at_epoch];
        let least = |(name, value): (&str, Option<u64>)| {
            value.filter(|&n| n == 0).map(|n| whole(&key(name), n, 1, MAX_STEPS))
        };
        found.extend(epochs.into_iter().zip(given).filter_map(least));
    }
    let mut sinks = experiment.logging.sinks.clone();
    sinks.dedup();
    if sinks.len() < experiment.logging.sinks.len() {
        found.push(Finding::new("logging.sinks", "names a sink twice"));
    }
    found
}

/// A number without a tail of noughts: 0.1, 1e308, NaN.
fn shown(value: f64) -> String {
    if value.is_nan() { "nan".to_owned() } else { format!("{value:?}") }
}
