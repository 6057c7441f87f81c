//! All decisions put together: from an experiment, facts and registered components to a `Plan`.

use crate::config::kind::{Choice, Entry};
use crate::config::values::{Auto, Devices};
use crate::config::{Experiment, Loaded, Problem, Problems};
use crate::plan::transforms::TransformPlan;
use crate::plan::{
    BackendFacts, BatchPlan, DataFacts, Facts, Flow, Images, LayerMisfit, LayerPlan, LossFacts,
    LossPlan, MetricContext, MetricFacts, MirrorPlan, ModelFacts, ModelPlan, OptimizerFacts,
    PixelStats, Plan, Sampler, SchedulerFacts, Span, TransformFacts, Unfit, averaging, batch,
    batch_statistics, cuda_graph, data, distributed, length, loss, metrics, model, optimizer,
    outputs, param_groups, precision, schedule, transforms,
};
use train_numbers::units::{AccumulationSteps, BatchSize, WorldSize};

/// Facts about the components that a program has registered, for planning.
pub trait ComponentFacts {
    /// Measures the model without taking memory for its weights.
    fn model(&self, plan: &ModelPlan) -> Result<ModelFacts, String>;

    /// Returns an option of the model that does not fit the others, below `[model]`, and a reason.
    fn misfit(&self, _plan: &ModelPlan) -> Option<(String, String)> {
        None
    }

    /// Describes the list `asked` of transforms of such images, whose values are normalized by
    /// `pixels` where no transform does.
    fn transforms(
        &self,
        asked: &[Choice],
        images: &Images,
        pixels: Option<&PixelStats>,
    ) -> Result<TransformFacts, (usize, Unfit)>;

    /// Infers the shapes of a graph's layers from the shape of its input. The data needs `needed`
    /// outputs.
    fn layers(
        &self,
        layers: &[Entry],
        input: Flow,
        needed: usize,
    ) -> Result<Vec<LayerPlan>, LayerMisfit>;

    /// Describes a loss.
    fn loss(&self, loss: &Choice) -> Result<LossFacts, String>;

    /// Returns the loss with options that depend on the data resolved.
    fn loss_from_data(&self, loss: &Choice, _data: &DataFacts) -> Result<Choice, Unfit> {
        Ok(loss.clone())
    }

    /// Describes all metrics of such a run.
    fn metrics(&self, context: &MetricContext) -> Vec<MetricFacts>;

    /// Describes an optimizer.
    fn optimizer(&self, rule: &Choice) -> Result<OptimizerFacts, String>;

    /// Describes a scheduler.
    fn scheduler(&self, rule: &Choice) -> Result<SchedulerFacts, String>;

    /// Returns what the scheduler does in `span`, in words: "cosine over 50 epochs to 0".
    fn schedule(&self, rule: &Choice, span: &Span) -> Result<String, Unfit>;

    /// Returns all backends, in the order of preference.
    fn backends(&self) -> Vec<BackendFacts>;
}

/// The problems of decisions that do not depend on each other.
#[derive(Default)]
struct ProblemCollector(Vec<Problem>);

impl ProblemCollector {
    fn take<T, E: IntoIterator<Item = Problem>>(&mut self, decision: Result<T, E>) -> Option<T> {
        decision.map_err(|problems| self.0.extend(problems)).ok()
    }

    fn one<T>(&mut self, decision: Result<T, Problem>) -> Option<T> {
        self.take(decision.map_err(Some))
    }

    /// The transforms, and the model that takes their images, with its facts.
    fn model(
        &mut self,
        loaded: &Loaded,
        facts: &Facts,
        kinds: &dyn ComponentFacts,
    ) -> Option<(TransformPlan, ModelPlan, ModelFacts)> {
        let describe: transforms::DescribeTransforms<'_> =
            &|list, images, pixels| kinds.transforms(list, images, pixels);
        let transforms = self.take(transforms::decide(loaded, facts, describe));
        let input = transforms.as_ref().map_or(&[][..], |transforms| &transforms.input);
        let model =
            self.one(model::decide(loaded, &facts.data, input, |layers, start, outputs| {
                kinds.layers(layers, start, outputs)
            }));
        let (transforms, model) = transforms.zip(model)?;
        let model = ModelPlan { cameras: transforms.cameras.clone(), ..model };
        if let Some((key, what)) = kinds.misfit(&model) {
            self.0.push(loaded.problem(&format!("model.{key}"), what));
            return None;
        }
        let found = kinds.model(&model).map_err(|what| loaded.problem("model.name", what));
        let found = self.one(found)?;
        self.one(model::check_blocks(loaded, &found))?;
        Some((transforms, model.counted(&found), found))
    }

    /// The loss, and all metrics of such a run.
    fn loss(
        &mut self,
        loaded: &Loaded,
        data: &DataFacts,
        on_gpus: bool,
        kinds: &dyn ComponentFacts,
    ) -> Option<(LossPlan, Vec<MetricFacts>)> {
        let loss = self.one(loss::decide(
            loaded,
            data,
            on_gpus,
            |loss| kinds.loss(loss),
            |loss| kinds.loss_from_data(loss, data),
        ))?;
        let metrics = kinds.metrics(&MetricContext::of(&loss, data));
        let is_never_negative = kinds.loss(&loss.kind).is_ok_and(|facts| facts.is_never_negative);
        let problems = metrics::check(loaded, data, &loss, is_never_negative, &metrics);
        let result = if problems.is_empty() { Ok(()) } else { Err(problems) };
        self.take(result)?;
        Some((loss, metrics))
    }
}

impl Plan {
    /// Decides every number. `kinds` describes the model and the other components.
    ///
    /// # Errors
    ///
    /// All numbers that contradict each other, each drawn on the text that asks for it.
    pub fn new(
        loaded: &Loaded,
        facts: &Facts,
        kinds: &dyn ComponentFacts,
    ) -> Result<Self, Problems> {
        let experiment = &loaded.experiment;
        let mut problems = ProblemCollector::default();
        let model = problems.model(loaded, facts, kinds);
        problems.one(data::check(loaded, &facts.data));
        let ranks = problems.one(distributed::ranks(loaded, facts, &kinds.backends()));
        let on_gpus = ranks.as_ref().is_some_and(distributed::Ranks::on_gpus);
        let loss = problems.loss(loaded, &facts.data, on_gpus, kinds);
        let known = loss.as_ref().map_or(&[][..], |(_, metrics)| metrics);
        let world = ranks.as_ref().map(|ranks| ranks.world);
        let batch =
            world.and_then(|world| problems.one(batch::decide(loaded, world, facts.data.n_train)));
        let smaller = ranks.as_ref().zip(batch).and_then(|(ranks, batch)| {
            problems.one(distributed::smaller_worlds(loaded, ranks, batch.shards))
        });
        let moving = world.zip(batch).and_then(|(world, batch)| {
            let length = length::decide(experiment, facts.data.n_train, world, &batch);
            let optimizer =
                optimizer::decide(loaded, &batch, on_gpus, |rule| kinds.optimizer(rule));
            let optimizer = problems.one(optimizer)?;
            let schedule = problems.one(schedule::decide(
                loaded,
                &length,
                &optimizer,
                known,
                |rule| kinds.scheduler(rule),
                |rule, span| kinds.schedule(rule, span),
            ))?;
            Some((length, optimizer, schedule))
        });
        let (
            Some((transforms, model, found)),
            Some((loss, metrics)),
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
        model::check_packing(loaded, &found, on_gpus)?;
        let data = data::decide(experiment, &facts.data, transforms, model.outputs, &found, cores);
        let precision = precision::decide(experiment, on_gpus, facts);
        let mut plan = Self {
            swa: averaging::swa(loaded, &length, &batch, &optimizer)?,
            lookahead: averaging::lookahead(loaded, &length)?,
            name: loaded.name().to_owned(),
            seed: experiment.experiment.seed,
            model,
            data,
            loss,
            batch,
            length,
            precision,
            bf16_instructions: precision::instructions(precision, on_gpus, facts),
            convolutions: experiment.train.convolutions,
            activation_checkpointing: experiment.train.activation_checkpointing,
            cuda_graph: experiment.train.cuda_graph.given(),
            scaler: precision::loss_scale(experiment),
            clip: optimizer::clipping(experiment),
            on_non_finite: experiment.train.on_non_finite,
            optimizer,
            ema: averaging::ema(&experiment.ema),
            schedule,
            distributed: distributed::decide(experiment, &ranks, smaller, facts.cores, &trained),
            validate_every: experiment.validation.every.into(),
            val_batch_size: val_batch_size(experiment, &batch),
            metrics: metrics::extra_metrics(experiment),
            sample_every: experiment.validation.sample_every.into(),
            test_time_augmentation: None,
            evaluated_samples: None,
            checkpoint: outputs::checkpoints(loaded, &metrics),
            mirror: MirrorPlan::of(&experiment.checkpoint),
            early_stopping: length::early_stopping(experiment),
            max_restarts: experiment.fault.max_restarts,
            stall_timeout: experiment.fault.stall_timeout,
            compare_weights: experiment.fault.compare_weights.into(),
            on_oom: experiment.fault.on_oom,
            divergence_threshold: experiment.fault.divergence_threshold,
            logging: outputs::log(experiment),
            hooks: experiment.hooks.clone(),
            expect: experiment.expect.clone(),
        };
        // Without batch norms there is nothing to share.
        plan.distributed.sync_batchnorm &= plan.model.least_rows.is_some();
        plan.model.reference = found.reference.filter(|_| plan.loss.needs_reference);
        match plan.contradiction(loaded) {
            Some(problem) => Err(problem.into()),
            None => Ok(plan),
        }
    }

    /// A problem that shows only in the whole plan.
    fn contradiction(&self, loaded: &Loaded) -> Option<Problem> {
        if !batch_statistics::suffice(self) {
            return Some(batch_statistics::refused(loaded, self));
        }
        if self.shards_of_a_gpu_share_statistics() {
            let what = "is not available on a GPU that runs several shards";
            let help = "use as many GPUs as `distributed.shards`, or omit that key";
            return Some(loaded.problem("distributed.sync_batchnorm", what.to_owned()).help(help));
        }
        cuda_graph::check(loaded, self)
    }

    fn shards_of_a_gpu_share_statistics(&self) -> bool {
        let several = self.batch.shards.get() > self.distributed.world_size.get();
        self.distributed.sync_batchnorm && self.distributed.is_on_gpus() && several
    }

    /// `experiment` with the numbers of this plan that depend on the world size or the devices
    /// written out, so that the same file gives the same bits on every world size that its shards
    /// admit. A run stores it as `resolved.toml`.
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

    /// The plans of the smaller groups that may continue this run, largest first: the same
    /// training, pass by pass.
    pub fn smaller(
        &self,
        loaded: &Loaded,
        facts: &Facts,
        kinds: &dyn ComponentFacts,
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

    /// The plan on the first of `devices` that are not among the `failed` ones, and on failed ones
    /// only where there are no others. It stays as it is if ranks would then share a GPU but do not
    /// now, or the reverse, as these exchange tensors in different ways.
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

    /// The plan with the same steps in smaller passes: each has half of the samples (or the next
    /// smaller part that divides them), and there are as many more of them. `None` if a pass is one
    /// sample, or would have too few for BatchNorm.
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
