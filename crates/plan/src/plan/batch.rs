//! Batch arithmetic: `global = batch size x passes x ranks`, any two given, the third derived; and
//! shards.
//!
//! A step is defined over S shards, so that a run on W = S, S/2, S/4 ... ranks adds the same
//! numbers in the same order. A shard is a whole number of passes, and a rank runs S / W shards one
//! after another.

use serde::{Deserialize, Serialize};

use crate::config::{Loaded, Problem};
use crate::terminal::counted;
use train_numbers::units::{AccumulationSteps, BatchSize, GlobalBatchSize, Shards, WorldSize};

/// Batch arithmetic: `global = batch size x accumulation x world size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlan {
    /// Samples per pass per rank.
    pub size: BatchSize,
    /// Passes per step per rank, over all of its shards.
    pub accumulation: AccumulationSteps,
    /// Samples per step.
    pub global: GlobalBatchSize,
    /// Equal parts of the global batch; each is `global / shards / size` passes of one rank.
    pub shards: Shards,
}

impl BatchPlan {
    /// Passes that make one shard.
    pub fn passes_per_shard(&self) -> usize {
        self.global.count() / self.shards.count() / self.size.count()
    }

    /// Samples of one shard in a full step.
    pub(super) fn shard_size(&self) -> usize {
        self.global.count() / self.shards.count()
    }
}

/// Batch settings of an experiment; `None` = "auto".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BatchConfig {
    size: Option<u32>,
    global: Option<u32>,
    accumulation: Option<u32>,
    shards: Option<u32>,
}

/// A contradiction between batch settings: the key, the reason, a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Misfit {
    key: &'static str,
    what: String,
    help: String,
}

fn refuse<T>(key: &'static str, what: String, help: String) -> Result<T, Misfit> {
    Err(Misfit { key, what, help })
}

const SIZE: &str = "train.batch_size";
const GLOBAL: &str = "train.global_batch_size";
const PASSES: &str = "train.gradient_accumulation_steps";

/// Largest global batch; beyond it products overflow and a number is surely a slip.
const MAX_GLOBAL_BATCH: u64 = 1 << 24;

/// The arithmetic for `world` ranks.
fn arithmetic(config: BatchConfig, world: WorldSize) -> Result<BatchPlan, Misfit> {
    let shards = shards(config.shards, world)?;
    let ranks = u64::from(world.get());
    // Where nothing else is said, a rank makes one pass per shard.
    let passes_of_shards = u64::from(shards) / ranks;
    let wide = |value: Option<u32>| value.map(u64::from);
    let (size, passes) = match (wide(config.size), wide(config.global), wide(config.accumulation)) {
        (Some(size), None, passes) => (size, passes.unwrap_or(passes_of_shards)),
        (Some(size), Some(global), None) => (size, passes(size, global, ranks)?),
        (None, Some(global), passes) => {
            let passes = passes.unwrap_or(passes_of_shards);
            (batch_size(global, passes, ranks)?, passes)
        }
        (Some(size), Some(global), Some(passes)) => {
            agree(size, global, passes, ranks)?;
            (size, passes)
        }
        (None, None, _) => {
            let help = "give `batch_size` or `global_batch_size`".to_owned();
            return refuse(SIZE, "no batch size is given".to_owned(), help);
        }
    };
    whole_shards(size, passes, ranks, shards)
}

/// The number of shards, which the world size divides by a power of two.
fn shards(given: Option<u32>, world: WorldSize) -> Result<u32, Misfit> {
    let Some(shards) = given else { return Ok(world.get()) };
    if shards.is_multiple_of(world.get()) && (shards / world.get()).is_power_of_two() {
        return Ok(shards);
    }
    let n_shards = counted(shards.into(), "shard");
    let n_ranks = counted(world.get().into(), "rank");
    let what = format!("{n_shards} cannot be divided over {n_ranks}");
    let admitted: Vec<String> = admitted_worlds(shards).iter().map(u32::to_string).collect();
    let nearest = world.get() * (shards.div_ceil(world.get())).next_power_of_two();
    let help = format!(
        "use a world size of {} with {n_shards}, or start a run with `distributed.shards = \
         {nearest}` for {n_ranks}",
        admitted.join(", "),
    );
    refuse("distributed.shards", what, help)
}

/// World sizes with bitwise identical results for this many shards: S, S/2, S/4 ...
pub fn admitted_worlds(shards: u32) -> Vec<u32> {
    let mut worlds: Vec<u32> = (0..=shards.trailing_zeros().min(31)).map(|k| shards >> k).collect();
    worlds.reverse();
    worlds
}

fn passes(size: u64, global: u64, ranks: u64) -> Result<u64, Misfit> {
    let unit = size * ranks;
    if global >= unit && global.is_multiple_of(unit) {
        return Ok(global / unit);
    }
    let ranks = counted(ranks, "rank");
    let what = format!("{global} is not a multiple of {size} samples x {ranks} = {unit}");
    refuse(GLOBAL, what, nearest(global, unit))
}

fn batch_size(global: u64, passes: u64, ranks: u64) -> Result<u64, Misfit> {
    let unit = passes * ranks;
    if global >= unit && global.is_multiple_of(unit) {
        return Ok(global / unit);
    }
    let passes = counted(passes, "pass");
    let ranks = counted(ranks, "rank");
    let what = format!("{global} is not a multiple of {passes} x {ranks} = {unit}");
    refuse(GLOBAL, what, nearest(global, unit))
}

fn agree(size: u64, global: u64, passes: u64, ranks: u64) -> Result<(), Misfit> {
    let product = size * passes * ranks;
    if product == global {
        return Ok(());
    }
    let passes = counted(passes, "pass");
    let ranks = counted(ranks, "rank");
    let what = format!("{size} samples x {passes} x {ranks} = {product}, not {global}");
    refuse(GLOBAL, what, format!("set one of `{SIZE}`, `{GLOBAL}`, `{PASSES}` to \"auto\""))
}

/// A remedy for a global batch size that `unit` does not divide: the multiples on both sides of it.
fn nearest(value: u64, unit: u64) -> String {
    let below = value / unit * unit;
    let sizes = if below == 0 { unit.to_string() } else { format!("{below} or {}", below + unit) };
    format!("use the nearest `global_batch_size`: {sizes}")
}

fn whole_shards(size: u64, passes: u64, ranks: u64, shards: u32) -> Result<BatchPlan, Misfit> {
    let global = size.saturating_mul(passes).saturating_mul(ranks);
    if global > MAX_GLOBAL_BATCH {
        let what = format!("a step of {global} samples is more than {MAX_GLOBAL_BATCH}");
        return refuse(SIZE, what, "make batches smaller, or fewer per step".to_owned());
    }
    let unit = u64::from(shards) * size;
    if !global.is_multiple_of(unit) {
        let what = format!(
            "{shards} shards of batches of {size} need a multiple of {unit} samples, not {global}"
        );
        return refuse("distributed.shards", what, nearest(global, unit));
    }
    let parts = (
        BatchSize::new(size as u32),
        AccumulationSteps::new(passes as u32),
        GlobalBatchSize::new(global as u32),
        Shards::new(shards),
    );
    match parts {
        (Some(size), Some(accumulation), Some(global), Some(shards)) => {
            Ok(BatchPlan { size, accumulation, global, shards })
        }
        _ => refuse(SIZE, "a batch has at least one sample".to_owned(), String::new()),
    }
}

/// A sample's number has 32 bits, of which the last stands for none.
const MAX_SAMPLES: usize = u32::MAX as usize - 1;

/// The batches of this experiment on `world` ranks, drawn from `n_train` samples.
pub(super) fn decide(
    loaded: &Loaded,
    world: WorldSize,
    n_train: usize,
) -> Result<BatchPlan, Problem> {
    let train = &loaded.experiment.train;
    let config = BatchConfig {
        size: train.batch_size.given(),
        global: train.global_batch_size.given(),
        accumulation: train.gradient_accumulation_steps.given(),
        shards: loaded.experiment.distributed.shards.given(),
    };
    let batch = arithmetic(config, world).map_err(|Misfit { key, what, help }| {
        loaded.problem(key, what).maybe_help(Some(help).filter(|help| !help.is_empty()))
    })?;
    if n_train > MAX_SAMPLES {
        let what = format!(
            "holds {n_train} samples to train on, of which at most {MAX_SAMPLES} can be numbered"
        );
        return Err(loaded.problem("data", what).help("train on a part of them"));
    }
    if loaded.experiment.data.drop_last && batch.global.count() > n_train {
        let key = if config.global.is_some() { GLOBAL } else { SIZE };
        let what = format!("a step takes {} samples, but there are only {n_train}", batch.global);
        let smaller =
            if batch.size.get() == 1 { "use fewer ranks" } else { "make the batch smaller" };
        let help = format!("{smaller}, or keep the incomplete one: data.drop_last = false");
        return Err(loaded.problem(key, what).help(help));
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn world(n: u32) -> WorldSize {
        WorldSize::new(n).unwrap()
    }

    /// (batch size, global, passes, shards), 0 = "auto".
    fn config((size, global, accumulation, shards): (u32, u32, u32, u32)) -> BatchConfig {
        let given = |n| (n > 0).then_some(n);
        BatchConfig {
            size: given(size),
            global: given(global),
            accumulation: given(accumulation),
            shards: given(shards),
        }
    }

    #[test]
    fn any_two_give_the_third() {
        let check = |given, ranks, expected: (u32, u32, u32, u32)| {
            let plan = arithmetic(config(given), world(ranks)).unwrap();
            let got =
                (plan.size.get(), plan.global.get(), plan.accumulation.get(), plan.shards.get());
            assert_eq!(got, expected, "{given:?} on {ranks}");
        };
        check((32, 0, 0, 0), 4, (32, 128, 1, 4));
        check((32, 0, 2, 0), 4, (32, 256, 2, 4));
        check((32, 256, 0, 0), 4, (32, 256, 2, 4));
        check((0, 256, 2, 0), 4, (32, 256, 2, 4));
        check((0, 256, 0, 0), 4, (64, 256, 1, 4));
        check((32, 256, 2, 0), 4, (32, 256, 2, 4));
        // The same file on fewer ranks keeps its global batch.
        check((32, 0, 0, 4), 4, (32, 128, 1, 4));
        check((32, 0, 0, 4), 2, (32, 128, 2, 4));
        check((32, 0, 0, 4), 1, (32, 128, 4, 4));
        check((0, 128, 0, 4), 1, (32, 128, 4, 4));
        check((8, 0, 0, 6), 3, (8, 48, 2, 6));
    }

    #[test]
    fn what_does_not_divide_is_told_its_nearest_neighbours() {
        let check = |given, ranks, key: &str, what: &str, help: &str| {
            let refusal = arithmetic(config(given), world(ranks)).unwrap_err();
            assert_eq!(
                (refusal.key, refusal.what.as_str(), refusal.help.as_str()),
                (key, what, help)
            );
        };
        check(
            (48, 128, 0, 0),
            2,
            GLOBAL,
            "128 is not a multiple of 48 samples x 2 ranks = 96",
            "use the nearest `global_batch_size`: 96 or 192",
        );
        check(
            (64, 32, 0, 0),
            1,
            GLOBAL,
            "32 is not a multiple of 64 samples x 1 rank = 64",
            "use the nearest `global_batch_size`: 64",
        );
        check(
            (0, 100, 1, 0),
            3,
            GLOBAL,
            "100 is not a multiple of 1 pass x 3 ranks = 3",
            "use the nearest `global_batch_size`: 99 or 102",
        );
        check(
            (32, 100, 2, 0),
            2,
            GLOBAL,
            "32 samples x 2 passes x 2 ranks = 128, not 100",
            "set one of `train.batch_size`, `train.global_batch_size`, \
             `train.gradient_accumulation_steps` to \"auto\"",
        );
        check(
            (32, 0, 0, 8),
            3,
            "distributed.shards",
            "8 shards cannot be divided over 3 ranks",
            "use a world size of 1, 2, 4, 8 with 8 shards, or start a run with \
             `distributed.shards = 12` for 3 ranks",
        );
        check(
            (32, 0, 1, 8),
            2,
            "distributed.shards",
            "8 shards of batches of 32 need a multiple of 256 samples, not 64",
            "use the nearest `global_batch_size`: 256",
        );
        check(
            (1 << 24, 0, 0, 0),
            4,
            SIZE,
            "a step of 67108864 samples is more than 16777216",
            "make batches smaller, or fewer per step",
        );
    }

    #[test]
    fn worlds_halve_as_long_as_they_are_whole() {
        assert_eq!(admitted_worlds(8), [1, 2, 4, 8]);
        assert_eq!(admitted_worlds(6), [3, 6]);
        assert_eq!(admitted_worlds(1), [1]);
    }

    proptest! {
        #[test]
        fn every_plan_obeys_the_laws(
            size in 0u32..300, global in 0u32..5000, passes in 0u32..9, shards in 0u32..17, ranks in 1u32..17,
        ) {
            if let Ok(plan) = arithmetic(config((size, global, passes, shards)), world(ranks)) {
                let (s, p, g) = (plan.size.get(), plan.accumulation.get(), plan.global.get());
                prop_assert_eq!(s * p * ranks, g);
                prop_assert!(size == 0 || s == size);
                prop_assert!(global == 0 || g == global);
                prop_assert!(passes == 0 || p == passes);
                prop_assert_eq!(plan.passes_per_shard() * plan.size.count() * plan.shards.count(), plan.global.count());
                prop_assert!(admitted_worlds(plan.shards.get()).contains(&ranks));
            }
        }

        #[test]
        fn the_global_batch_does_not_depend_on_the_ranks_that_shards_admit(size in 1u32..300, exponent in 0u32..5) {
            let shards = 1 << exponent;
            let globals: Vec<u32> = admitted_worlds(shards)
                .into_iter()
                .map(|ranks| arithmetic(config((size, 0, 0, shards)), world(ranks)).unwrap().global.get())
                .collect();
            prop_assert!(globals.iter().all(|&global| global == size * shards));
        }

        #[test]
        fn a_neighbour_that_was_offered_is_accepted(size in 2u32..300, global in 1u32..5000, ranks in 1u32..17) {
            // One that is no multiple of what a step takes.
            let global = if global % (size * ranks) == 0 { global + 1 } else { global };
            let refusal = arithmetic(config((size, global, 0, 0)), world(ranks)).unwrap_err();
            let numbers = refusal.help.split(|c: char| !c.is_ascii_digit());
            let offered: Vec<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
            let expected = if global < size * ranks { 1 } else { 2 };
            prop_assert_eq!(offered.len(), expected, "{}", refusal.help);
            for neighbour in offered {
                let plan = arithmetic(config((size, neighbour, 0, 0)), world(ranks)).unwrap();
                prop_assert_eq!(plan.global.get(), neighbour);
                prop_assert!(neighbour.abs_diff(global) < size * ranks);
            }
        }
    }
}
