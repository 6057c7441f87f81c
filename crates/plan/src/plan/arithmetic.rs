//! The numbers of a plan as sentences: first lines of a run, and of `ddprun plan`.

use crate::plan::batch::{admitted_worlds, counted};
use crate::plan::{
    AllReduce, Facts, Memory, OnOom, Plan, Precision, Sampler, ScalingRule, Targets,
};
use crate::terminal::escape;
use train_numbers::units::{Bytes, WorldSize};

impl Plan {
    /// First lines of a run: batch and learning rate, steps, shards.
    pub fn arithmetic(&self) -> Vec<String> {
        let mut lines =
            vec![format!("{}; {}", self.batch_line(), self.lr_line()), self.steps_line()];
        lines.extend(self.shards_line());
        if self.has_bits_of_a_library() {
            let what = "gradients are summed by the MPI library: results have its bits, which may";
            lines.push(format!("{what} differ with the number of ranks and where they run"));
        }
        lines
    }

    /// "128 = 32 x 1 pass x 4 ranks"
    pub(crate) fn batch_line(&self) -> String {
        let passes = counted(u64::from(self.batch.accumulation.get()), "pass", "passes");
        let ranks = counted(u64::from(self.distributed.world_size.get()), "rank", "ranks");
        format!("{} = {} x {passes} x {ranks}", self.batch.global, self.batch.size)
    }

    /// "lr 0.05 = 0.1 x 128/256 (linear)"
    pub(crate) fn lr_line(&self) -> String {
        let rate = &self.optimizer;
        let lr = shown(rate.lr);
        let ratio = format!("{}/{}", self.batch.global, rate.base_batch_size);
        match rate.scaling {
            ScalingRule::None => format!("lr {lr}"),
            ScalingRule::Linear => format!("lr {lr} = {} x {ratio} (linear)", shown(rate.base_lr)),
            ScalingRule::Sqrt => {
                format!("lr {lr} = {} x sqrt({ratio}) (sqrt)", shown(rate.base_lr))
            }
        }
    }

    /// "12 steps per epoch = 1600 samples / 128, 64 left out; 600 steps = 50 epochs"
    pub(crate) fn steps_line(&self) -> String {
        let per_epoch = self.length.steps_per_epoch;
        let n = self.data.n_train as u64;
        let global = u64::from(self.batch.global.get());
        let steps = counted(per_epoch, "step", "steps");
        let epoch = match self.data.sampler {
            Sampler::Torch => format!("{steps} per epoch of {n} samples, cut per rank"),
            _ => format!(
                "{steps} per epoch = {n} samples / {global}{}",
                rest(n, global, self.data.drop_last)
            ),
        };
        format!("{epoch}; {}", self.end())
    }

    fn end(&self) -> String {
        let time = self
            .length
            .time
            .map(|time| format!("at most {}", crate::config::values::Duration(time)));
        let steps = self.length.is_bounded().then(|| {
            let total = self.length.total_steps;
            let epochs = total as f64 / self.length.steps_per_epoch as f64;
            if epochs < 1.0 {
                return format!("{}, less than one epoch", counted(total, "step", "steps"));
            }
            format!(
                "{} = {} epochs",
                counted(total, "step", "steps"),
                shown((epochs * 100.0).round() / 100.0)
            )
            .replace("= 1 epochs", "= 1 epoch")
        });
        [steps, time].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Whether the order of additions is a library's, and not the fixed tree's.
    fn has_bits_of_a_library(&self) -> bool {
        let distributed = &self.distributed;
        distributed.all_reduce == AllReduce::Library && distributed.world_size > WorldSize::ONE
    }

    /// What is special about shards, where they are not simply the ranks.
    fn shards_line(&self) -> Option<String> {
        let shards = self.batch.shards.get();
        let worlds: Vec<String> = admitted_worlds(shards).iter().map(u32::to_string).collect();
        (shards != self.distributed.world_size.get()).then(|| {
            let size = self.batch.shard_size();
            let of_worlds = if self.has_bits_of_a_library() { "" } else { "the same bits " };
            let samples = counted(size as u64, "sample", "samples");
            format!("{shards} shards of {samples}: {of_worlds}on {} ranks", worlds.join(", "))
        })
    }

    /// What works, but may not be what was meant, if each rank needs `memory`.
    pub fn warnings(&self, facts: &Facts, memory: &Memory) -> Vec<String> {
        let ranks = self.distributed.local_world().count();
        let threads = ranks * self.distributed.threads_per_rank;
        let mut warnings = Vec::new();
        if ranks > facts.cores {
            warnings.push(format!("{ranks} ranks share {}", cores(facts.cores)));
        } else if threads > facts.cores {
            warnings.push(format!("{threads} threads share {}", cores(facts.cores)));
        }
        warnings.extend(self.crowded_memory(facts, memory));
        warnings.extend(self.without_a_parent(facts));
        let samples = self.data.n_train as u64;
        let step = u64::from(self.batch.global.get());
        if step > samples {
            let what =
                format!("a step takes {step} samples, but there are only {samples} to train on");
            warnings.push(format!("{what}: each epoch is one smaller step"));
        }
        warnings.extend(self.data.notes.iter().cloned());
        let on_cpu = !self.distributed.is_on_gpus();
        if self.precision == Precision::Bf16 && on_cpu && self.bf16_instructions.is_none() {
            let what = "this processor has no instructions for bf16";
            warnings.push(format!("{what}: numbers are rounded to it, slower than fp32"));
        }
        let classes = self.data.classes.len();
        if classes > 0 && self.model.outputs > classes {
            let outputs = self.model.outputs;
            let classes = counted(classes as u64, "class", "classes");
            warnings.push(format!("the model has {outputs} outputs, the data only {classes}"));
        }
        warnings.extend(self.doubtful_classes());
        warnings.extend(self.imbalance(&facts.data.class_counts));
        let updates = self.length.is_bounded().then_some(self.length.total_steps);
        warnings.extend(self.ema.zip(updates).and_then(|(ema, updates)| ema.warning(updates)));
        warnings.extend(self.mixed_alone());
        warnings.extend(self.frozen_at_random());
        warnings
    }

    /// Images that `data.mixup` can mix with no other.
    fn mixed_alone(&self) -> Option<String> {
        self.data.mixup?;
        let global = self.batch.global.count();
        // PyTorch's order has each rank mix its own.
        let ranks = if self.data.sampler == Sampler::Torch { self.world_size().count() } else { 1 };
        if global / ranks == 1 {
            let each = if ranks > 1 { ", and each rank its own," } else { "" };
            return Some(format!(
                "`data.mixup` mixes the images of a step with each other{each} but there is only \
                 one: nothing is mixed; raise `train.batch_size`"
            ));
        }
        let is_alone = !self.data.drop_last && self.data.n_train % global == 1;
        is_alone.then(|| {
            "the last step of each epoch has one image, which `data.mixup` mixes with no other; \
             `data.drop_last = true` leaves it out"
                .to_owned()
        })
    }

    /// Weights that are random and stay so.
    fn frozen_at_random(&self) -> Option<String> {
        let is_frozen = self.model.kind.options.get("freeze_backbone") == Some(&true.into());
        let what = match (is_frozen, self.optimizer.n_frozen()) {
            _ if self.model.pretrained.is_some() => return None,
            (true, _) => "`model.freeze_backbone`".to_owned(),
            (false, 0) => return None,
            (false, n) => format!("`optimizer.param_groups` ({n} parameters)"),
        };
        Some(format!(
            "{what} freezes weights that are random, as there is no `model.pretrained`: name \
             pretrained weights, or train all"
        ))
    }

    /// Classes that are probably a mistake.
    fn doubtful_classes(&self) -> Option<String> {
        let is_part = |class: &String| PARTS.contains(&class.to_lowercase().as_str());
        match &self.data.classes[..] {
            _ if self.loss.targets != Targets::Classes => None,
            [] => None,
            [class] => {
                let class = escape(class);
                Some(format!("there is only one class, `{class}`, so every prediction is right"))
            }
            classes if classes.iter().all(is_part) => Some(format!(
                "the classes are `{}`: is the data folder one level too high?",
                classes.join("`, `")
            )),
            _ => None,
        }
    }

    /// Classes of which some have far more samples than others, where nothing weighs them.
    fn imbalance(&self, counts: &[u64]) -> Option<String> {
        let is_weighed = |key| self.loss.kind.options.get(key).is_some_and(|it| !it.is_null());
        if self.loss.targets != Targets::Classes
            || counts.len() != self.data.classes.len()
            || self.data.sampler.draws()
            || is_weighed("class_weights")
        {
            return None;
        }
        let named = || self.data.classes.iter().zip(counts).filter(|(_, n)| **n > 0);
        let (rare, least) = named().min_by_key(|(_, n)| **n)?;
        let (common, most) = named().max_by_key(|(_, n)| **n)?;
        let of_positive = match &self.data.classes[..] {
            [_, positive] => format!(" (of `{positive}` alone: `val/f1_binary`)"),
            _ => String::new(),
        };
        (*most > MAX_IMBALANCE * *least).then(|| {
            format!(
                "the classes are imbalanced: `{common}` has {most} training samples, `{rare}` \
                 {least}. Accuracy hardly shows whether rare classes are recognised: monitor \
                 `val/f1`{of_positive}; `data.sampler = \"balanced\"` draws all classes equally \
                 often"
            )
        })
    }

    /// Settings for ranks that ddprun starts, where another launcher does.
    fn without_a_parent(&self, facts: &Facts) -> Option<String> {
        facts.launched_world?;
        let settings = [
            (self.max_restarts > 0, "`fault.max_restarts`"),
            (self.on_oom == OnOom::ShrinkBatch, "`fault.on_oom`"),
        ];
        let set: Vec<&str> =
            settings.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect();
        let have = if set.len() == 1 { "has" } else { "have" };
        let what = "no effect under another launcher, which restarts ranks itself";
        (!set.is_empty()).then(|| format!("{} {have} {what}", set.join(" and ")))
    }

    /// Ranks of this machine that need more than it has, on its cores.
    fn crowded_memory(&self, facts: &Facts, memory: &Memory) -> Option<String> {
        let there = facts.memory?;
        let on_cpu = self.distributed.devices.iter().all(|device| device == "cpu");
        let ranks = self.distributed.local_world().count() as u64;
        let needed = Bytes(memory.total().0.saturating_mul(ranks));
        let least = if memory.activations.is_none() { "at least " } else { "about " };
        let who = counted(ranks, "rank needs", "ranks need");
        (on_cpu && needed > there)
            .then(|| format!("{who} {least}{needed} of memory, but this machine has {there}"))
    }
}

/// How many times as many samples a class may have as another before it is worth a word.
const MAX_IMBALANCE: u64 = 10;
/// Usual names of a data set's parts.
const PARTS: [&str; 7] = ["train", "training", "val", "valid", "validation", "test", "testing"];

fn cores(n: usize) -> String {
    counted(n as u64, "core", "cores")
}

fn rest(n: u64, global: u64, drop_last: bool) -> String {
    match n % global {
        0 => String::new(),
        rest if drop_last => format!(", {rest} left out"),
        rest => format!(", the last of {rest}"),
    }
}

/// A number as short as it is exact: 0.1, 50, 3e-5; at most 6 significant digits.
pub fn shown(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    if (1e-3..1e6).contains(&rounded.abs()) { format!("{rounded}") } else { format!("{rounded:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> =
            [0.05, 0.1 * 3.0, 1e-4, 50.0, 0.0, 0.1 / 3.0, 1e-8].map(shown).to_vec();
        assert_eq!(shown, ["0.05", "0.3", "1e-4", "50", "0", "0.0333333", "1e-8"]);
    }
}
