//! All decisions put together.

use crate::config::values::{Auto, Devices};
use crate::config::{Experiment, Loaded, Problem, Problems};
use crate::plan::transforms::Transformed;
use crate::plan::{
    BatchPlan, Facts, KindFacts, ModelFacts, ModelPlan, Plan, Sampler, averaging, batch,
    batch_statistics, checkpointing, clip, cuda_graph, data, distributed, early_stopping, length,
    logging, metrics, model, optimizer, param_groups, precision, scaler, schedule, transforms,
};
use train_numbers::units::{AccumulationSteps, BatchSize, WorldSize};

/// A problem that shows only where there is no other.
fn alone(problem: Problem) -> Problems {
    Problems::new(vec![problem])
}

/// The problems of decisions that do not depend on each other.
#[derive(Default)]
struct Collected(Vec<Problem>);

impl Collected {
    fn take<T, E: IntoIterator<Item = Problem>>(&mut self, decision: Result<T, E>) -> Option<T> {
        decision.map_err(|problems| self.0.extend(problems)).ok()
    }

    fn one<T>(&mut self, decision: Result<T, Problem>) -> Option<T> {
        self.take(decision.map_err(Some))
    }

    /// What the model is given, and the model with what was built from it.
    fn model(
        &mut self,
        loaded: &Loaded,
        facts: &Facts,
        kinds: &dyn KindFacts,
    ) -> Option<(Transformed, ModelPlan, ModelFacts)> {
        let transformed = self.take(transforms::decide(loaded, facts, kinds));
        let input = transformed.as_ref().map_or(&[][..], |transformed| &transformed.input);
        let model = self.one(model::decide(loaded, &facts.data, input, kinds));
        let (transformed, model) = transformed.zip(model)?;
        let model = ModelPlan { cameras: transformed.cameras.clone(), ..model };
        let (model, found) = self.one(model::count(loaded, model, kinds))?;
        Some((transformed, model, found))
    }
}

impl Plan {
    /// Decides every number. `kinds` says what the model and the other kinds need.
    ///
    /// # Errors
    ///
    /// All numbers that cannot be together, each drawn on the text that asks for it.
    pub fn new(loaded: &Loaded, facts: &Facts, kinds: &dyn KindFacts) -> Result<Self, Problems> {
        let experiment = &loaded.experiment;
        let mut problems = Collected::default();
        let model = problems.model(loaded, facts, kinds);
        problems.one(data::check(loaded, &facts.data));
        let ranks = problems.one(distributed::ranks(loaded, facts, &kinds.backends()));
        let on_gpus = ranks.as_ref().is_some_and(distributed::Ranks::on_gpus);
        let loss = problems.take(metrics::with_loss(loaded, &facts.data, on_gpus, kinds));
        let known = loss.as_ref().map_or(&[][..], |(_, metrics)| metrics);
        let world = ranks.as_ref().map(|ranks| ranks.world);
        let batch =
            world.and_then(|world| problems.one(batch::decide(loaded, world, facts.data.n_train)));
        let smaller = ranks.as_ref().zip(batch).and_then(|(ranks, batch)| {
            problems.one(distributed::smaller_worlds(loaded, ranks, batch.shards))
        });
        let moving = world.zip(batch).and_then(|(world, batch)| {
            let length = length::decide(experiment, facts.data.n_train, world, &batch);
            let optimizer = problems.one(optimizer::decide(loaded, &batch, on_gpus, kinds))?;
            let schedule =
                problems.one(schedule::decide(loaded, &length, &optimizer, kinds, known))?;
            Some((length, optimizer, schedule))
        });
        let (
            Some((transformed, model, found)),
            Some((loss, measurable)),
            Some(ranks),
            Some(batch),
            Some(smaller),
            Some((length, optimizer, schedule)),
        ) = (model, loss, ranks, batch, smaller, moving)
        else {
            return Err(Problems::new(problems.0));
        };
        let grouped = param_groups::decide(loaded, optimizer, &found, length.steps_per_epoch);
        let Some(optimizer) = problems.take(grouped).filter(|_| problems.0.is_empty()) else {
            return Err(Problems::new(problems.0));
        };
        let trained = optimizer.trained(&found);
        let cores = (facts.cores / ranks.local_world.count()).max(1);
        let data = data::decide(experiment, &facts.data, transformed, model.outputs, cores);
        let plan = Self {
            swa: averaging::swa::decide(loaded, &length, &batch, &optimizer).map_err(alone)?,
            lookahead: averaging::lookahead::decide(loaded, &length).map_err(alone)?,
            name: loaded.name().to_owned(),
            seed: experiment.experiment.seed,
            model,
            data,
            loss,
            batch,
            length,
            precision: precision::decide(experiment, &ranks, facts),
            bf16_instructions: precision::instructions(experiment, &ranks, facts),
            convolutions: experiment.train.convolutions,
            activation_checkpointing: experiment.train.activation_checkpointing,
            cuda_graph: experiment.train.cuda_graph.given(),
            scaler: scaler::decide(experiment),
            clip: clip::decide(experiment),
            on_non_finite: experiment.train.on_non_finite,
            optimizer,
            ema: averaging::ema::decide(&experiment.ema),
            schedule,
            distributed: distributed::decide(experiment, &ranks, smaller, facts.cores, &trained),
            validate_every: experiment.validation.every.into(),
            val_batch_size: val_batch_size(experiment, &batch),
            metrics: metrics::wanted(experiment),
            sample_every: experiment.validation.sample_every.into(),
            test_time_augmentation: None,
            evaluated_samples: None,
            checkpoint: checkpointing::decide(loaded, &measurable),
            early_stopping: early_stopping::decide(experiment),
            max_restarts: experiment.fault.max_restarts,
            stall_timeout: experiment.fault.stall_timeout,
            compare_weights: experiment.fault.compare_weights.into(),
            on_oom: experiment.fault.on_oom,
            divergence_threshold: experiment.fault.divergence_threshold,
            logging: logging::decide(experiment),
            expect: experiment.expect.clone(),
        };
        plan.checked(loaded)
    }

    /// The plan, if its parts go together.
    fn checked(mut self, loaded: &Loaded) -> Result<Self, Problems> {
        // Without batch norms there is nothing to share.
        self.distributed.sync_batchnorm &= self.model.least_rows.is_some();
        self.contradiction(loaded).map_or(Ok(self), |problem| Err(alone(problem)))
    }

    /// What only the whole plan shows to be impossible.
    fn contradiction(&self, loaded: &Loaded) -> Option<Problem> {
        if !batch_statistics::suffice(self) {
            return Some(batch_statistics::refused(loaded, self));
        }
        if self.shards_of_a_gpu_share_statistics() {
            let what = "is not available on a GPU that runs several shards";
            let help = "use as many GPUs as `distributed.shards`, or omit that key";
            return Some(loaded.problem("distributed.sync_batchnorm", what.to_owned()).help(help));
        }
        let asked = self.cuda_graph == Some(true);
        cuda_graph::obstacle(self).filter(|_| asked).map(|why| cuda_graph::refused(loaded, why))
    }

    fn shards_of_a_gpu_share_statistics(&self) -> bool {
        let several = self.batch.shards.get() > self.distributed.world_size.get();
        self.distributed.sync_batchnorm && self.distributed.is_on_gpus() && several
    }

    /// `experiment` with the numbers of this plan that depend on the world size or the devices
    /// written out, so that the same file gives the same bits on every world size that its shards
    /// admit. What a run stores as `resolved.toml`.
    #[must_use]
    pub fn pin(&self, mut experiment: Experiment) -> Experiment {
        experiment.train.batch_size = Auto::Given(self.batch.size.get());
        experiment.train.global_batch_size = Auto::Given(self.batch.global.get());
        experiment.train.gradient_accumulation_steps = Auto::Auto;
        if !matches!(experiment.distributed.devices, Devices::List(_)) {
            experiment.distributed.devices = Devices::Count(self.distributed.local_world().get());
        }
        experiment.train.precision = self.precision.into();
        if experiment.data.sampler != Sampler::Torch {
            experiment.distributed.shards = Auto::Given(self.batch.shards.get());
        }
        // What ranks checkpoints where nothing is evaluated; the default would be refused when it
        // is given.
        experiment.checkpoint.monitor.clone_from(&self.checkpoint.monitor);
        experiment.checkpoint.mode = self.checkpoint.mode;
        experiment.checkpoint.keep_best = self.checkpoint.keep_best as u32;
        experiment
    }

    /// The plans of the smaller groups that this run may go on with, largest first: the same
    /// training, pass by pass.
    pub fn smaller(
        &self,
        loaded: &Loaded,
        facts: &Facts,
        kinds: &dyn KindFacts,
    ) -> Result<Vec<Self>, Problems> {
        let mut loaded = loaded.clone();
        loaded.experiment = self.pin(loaded.experiment);
        loaded.experiment.distributed.min_world_size = Auto::Auto;
        let worlds = self.distributed.smaller.iter();
        worlds
            .map(|world| {
                if facts.nodes > 1 {
                    // Fewer machines, with as many ranks each.
                    let nodes = world.get() / self.distributed.local_world().get();
                    return Self::new(&loaded, &Facts { nodes, ..facts.clone() }, kinds);
                }
                loaded.experiment.distributed.devices = Devices::Count(world.get());
                Self::new(&loaded, facts, kinds)
            })
            .collect()
    }

    /// The same on the first of `devices` that are not among the `failed` ones, and on failed ones
    /// only where there are no others. Where ranks would share a GPU that share none now, or the
    /// other way round, it stays as it is: they exchange tensors in another way.
    #[must_use]
    pub fn sparing(&self, devices: &[String], failed: &[String]) -> Self {
        let (last, first): (Vec<&String>, Vec<&String>) =
            devices.iter().partition(|device| failed.contains(device));
        let present = &self.distributed.devices;
        let chosen: Vec<String> =
            first.into_iter().chain(last).take(present.len()).cloned().collect();
        let shares =
            |devices: &[String]| (1..devices.len()).any(|i| devices[..i].contains(&devices[i]));
        let mut plan = self.clone();
        if shares(&chosen) == shares(present) {
            plan.distributed.devices = chosen;
        }
        plan
    }

    /// The same steps in smaller passes: each holds half of the samples (or the next smaller part
    /// that divides them), and there are as many more of them. `None` if a pass is one sample, or
    /// would have too few for BatchNorm.
    #[must_use]
    pub fn in_smaller_passes(&self) -> Option<Self> {
        let size = self.batch.size.get();
        let passes = self.batch.accumulation.get();
        let parts = (2..=size).find(|&parts| size.is_multiple_of(parts))?;
        let mut plan = self.clone();
        plan.batch.size = BatchSize::new(size / parts)?;
        plan.batch.accumulation = AccumulationSteps::new(passes.checked_mul(parts)?)?;
        plan.val_batch_size = plan.val_batch_size.min(plan.batch.size);
        batch_statistics::suffice(&plan).then_some(plan)
    }

    /// Number of ranks.
    pub fn world_size(&self) -> WorldSize {
        self.distributed.world_size
    }
}

fn val_batch_size(experiment: &Experiment, batch: &BatchPlan) -> BatchSize {
    experiment.validation.batch_size.given().and_then(BatchSize::new).unwrap_or(batch.size)
}
