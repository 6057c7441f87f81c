//! The numbers of a plan as sentences: first lines of a run, and of `ddprun plan`.

use crate::config::values::Duration;
use crate::plan::{
    AllReduce, Facts, Memory, OnOom, Plan, Precision, Sampler, ScalingRule, Targets,
    admitted_worlds,
};
use crate::terminal::{counted, escape, format_number};
use train_numbers::units::WorldSize;

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
    pub(super) fn batch_line(&self) -> String {
        let passes = counted(u64::from(self.batch.accumulation.get()), "pass");
        let ranks = counted(u64::from(self.distributed.world_size.get()), "rank");
        format!("{} = {} x {passes} x {ranks}", self.batch.global, self.batch.size)
    }

    /// "lr 0.05 = 0.1 x 128/256 (linear)"
    pub(super) fn lr_line(&self) -> String {
        let rate = &self.optimizer;
        let lr = format_number(rate.lr);
        let ratio = format!("{}/{}", self.batch.global, rate.base_batch_size);
        match rate.scaling {
            ScalingRule::None => format!("lr {lr}"),
            ScalingRule::Linear => {
                format!("lr {lr} = {} x {ratio} (linear)", format_number(rate.base_lr))
            }
            ScalingRule::Sqrt => {
                format!("lr {lr} = {} x sqrt({ratio}) (sqrt)", format_number(rate.base_lr))
            }
        }
    }

    /// "12 steps per epoch = 1600 samples / 128, 64 left out; 600 steps = 50 epochs"
    pub(super) fn steps_line(&self) -> String {
        let per_epoch = self.length.steps_per_epoch;
        let n = self.data.n_train as u64;
        let global = u64::from(self.batch.global.get());
        let steps = counted(per_epoch, "step");
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
        let time = self.length.time.map(|time| format!("at most {}", Duration(time)));
        let steps = self.length.is_bounded().then(|| {
            let total = self.length.total_steps;
            let epochs = total as f64 / self.length.steps_per_epoch as f64;
            let steps = counted(total, "step");
            if epochs < 1.0 {
                return format!("{steps}, less than one epoch");
            }
            let epochs = format_number((epochs * 100.0).round() / 100.0);
            format!("{steps} = {epochs} {}", if epochs == "1" { "epoch" } else { "epochs" })
        });
        [steps, time].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// True if a library sums gradients in an order of its own, not the fixed tree.
    fn has_bits_of_a_library(&self) -> bool {
        let distributed = &self.distributed;
        distributed.all_reduce == AllReduce::Library && distributed.world_size > WorldSize::ONE
    }

    /// "8 shards of 32 samples: the same bits on 1, 2, 4, 8 ranks", if shards are not simply the
    /// ranks.
    fn shards_line(&self) -> Option<String> {
        let shards = self.batch.shards.get();
        let worlds: Vec<String> = admitted_worlds(shards).iter().map(u32::to_string).collect();
        (shards != self.distributed.world_size.get()).then(|| {
            let size = self.batch.shard_size();
            let of_worlds = if self.has_bits_of_a_library() { "" } else { "the same bits " };
            let samples = counted(size as u64, "sample");
            format!("{shards} shards of {samples}: {of_worlds}on {} ranks", worlds.join(", "))
        })
    }

    /// Warnings about settings that work but are probably not meant, if each rank needs `memory`.
    pub fn warnings(&self, facts: &Facts, memory: &Memory) -> Vec<String> {
        let ranks = self.distributed.local_world().count();
        let threads = ranks * self.distributed.threads_per_rank;
        let cores = counted(facts.cores as u64, "core");
        let mut warnings = Vec::new();
        if ranks > facts.cores {
            warnings.push(format!("{ranks} ranks share {cores}"));
        } else if threads > facts.cores {
            warnings.push(format!("{threads} threads share {cores}"));
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
            let classes = counted(classes as u64, "class");
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

    /// A warning about weights that are frozen at random values.
    fn frozen_at_random(&self) -> Option<String> {
        let is_frozen = self.model.kind.options.get("freeze_backbone") == Some(&true.into());
        let what = match (is_frozen, self.optimizer.n_frozen()) {
            _ if self.model.pretrained.is_some() => return None,
            (true, _) => "`model.freeze_backbone`".to_owned(),
            (false, 0) => return None,
            (false, n) => format!("`optimizer.groups` ({n} parameters)"),
        };
        Some(format!(
            "{what} freezes weights that are random, as there is no `model.pretrained`: name \
             pretrained weights, or train all"
        ))
    }

    /// A warning about classes that are probably a mistake.
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

    /// A warning about imbalanced classes, where neither the loss nor the sampler weighs them.
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

    /// A warning about settings for restarts, which another launcher does.
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

    /// A warning about ranks on the CPU that need more memory than this machine has.
    fn crowded_memory(&self, facts: &Facts, memory: &Memory) -> Option<String> {
        let there = facts.memory?;
        let on_cpu = self.distributed.devices.iter().all(|device| device == "cpu");
        let ranks = self.distributed.local_world().count() as u64;
        let needed = memory.of_ranks(ranks);
        let least = if memory.activations.is_none() { "at least " } else { "about " };
        let need = if ranks == 1 { "needs" } else { "need" };
        let who = counted(ranks, "rank");
        (on_cpu && needed > there).then(|| {
            format!("{who} {need} {least}{needed} of memory, but this machine has {there}")
        })
    }
}

/// Largest ratio of the samples of two classes without a warning.
const MAX_IMBALANCE: u64 = 10;
/// Usual names of the parts of a data set.
const PARTS: [&str; 7] = ["train", "training", "val", "valid", "validation", "test", "testing"];

/// ", 64 left out"
fn rest(n: u64, global: u64, drop_last: bool) -> String {
    match n % global {
        0 => String::new(),
        rest if drop_last => format!(", {rest} left out"),
        rest => format!(", the last of {rest}"),
    }
}
