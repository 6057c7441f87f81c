//! All kinds that a program knows: those that come with ddprun, and those that a user's program
//! adds.
//!
//! ```
//! use ddprun_plan::config::json_schema;
//! use ddprun_run::kinds::Kinds;
//!
//! let kinds = Kinds::default();
//! assert!(kinds.models.names().any(|name| name == "resnet18"));
//! let schema = json_schema(&kinds.vocabulary());
//! assert_eq!(schema["title"], "An experiment of ddprun");
//! ```
//!
//! The keys of a misspelt experiment are searched among those of all kinds:
//!
//! ```
//! use ddprun_plan::config::load_text;
//! use ddprun_run::kinds::Kinds;
//!
//! let text = "
//!     [model]
//!     name = 'mlp'
//!     hiden = [64]
//!
//!     [data]
//!     name = 'shapes'
//!
//!     [train]
//!     epochs = 3
//!     batch_size = 16
//! ";
//! let problems = load_text("x.toml".as_ref(), text, &[],
//! &Kinds::default().vocabulary()).unwrap_err(); let page = problems.page(false, 80);
//! assert!(page.contains("did you mean `hidden`?"), "{page}");
//! ```

use std::sync::Arc;

use candle_core::Device;

#[cfg(feature = "clusters")]
use crate::cluster::Clusters;
use crate::collective::{self, Backends};
use crate::config::Vocabulary;
use crate::config::kind::{BACKEND, Choice, Entry, FamilySpec, Kind, LeftOut};
use crate::data::transform;
use crate::data::{DataSources, Transforms};
use crate::engine::Components;
use crate::loss::{self, Loss, Losses};
use crate::metric::Metrics;
use crate::model::layers::{self, Layer, Layers};
use crate::model::{self, Models, PreferenceModel, Reference};
use crate::optim::{self, Optimizers, Schedulers};
use crate::plan::{
    BackendFacts, ComponentFacts, DataFacts, Flow, Images, LayerMisfit, LayerPlan, LossFacts,
    MetricContext, MetricFacts, ModelFacts, ModelPlan, OptimizerFacts, PixelStats, Plan,
    SchedulerFacts, Span, TransformFacts, Unfit,
};
use crate::record::{NamedSink, Sinks};
use crate::registry::Unbuildable;
use crate::sweep::{Methods, Pruners};
use crate::user_error::{ExitCode, UserError};

/// Kinds that a build may leave out: the table that names them, their name, and the feature that
/// brings them.
const OPTIONAL: &[(&str, &str, &str)] = &[
    ("data", "speech", "speech"),
    ("model", "nest", "speech"),
    ("model", "fastconformer", "speech"),
    ("data", "trajectories", "trajectories"),
    ("data", "push_t_like", "trajectories"),
    ("model", "diffusion_policy", "trajectories"),
    ("model", "diffusion_policy_image", "trajectories"),
    (BACKEND, "mpi", "mpi"),
];

/// All kinds that a program knows.
#[derive(Clone, Debug)]
pub struct Kinds {
    pub data: DataSources,
    pub models: Models,
    /// Layers of the model `graph`.
    layers: Layers,
    /// Transforms of images.
    pub transforms: Transforms,
    pub losses: Losses,
    pub metrics: Metrics,
    pub optimizers: Optimizers,
    pub schedulers: Schedulers,
    /// Collectives.
    pub backends: Backends,
    /// Loggers and trackers of runs.
    pub sinks: Sinks,
    /// Search methods of sweeps.
    pub methods: Methods,
    /// Pruners of trials.
    pub pruners: Pruners,
    #[cfg(feature = "clusters")]
    pub clusters: Clusters,
}

impl Default for Kinds {
    /// The kinds that come with ddprun.
    fn default() -> Self {
        let mut kinds = Self {
            data: DataSources::default(),
            models: Models::default(),
            layers: Layers::default().sealed(),
            transforms: Transforms::default().sealed(),
            losses: Losses::default().sealed(),
            metrics: Metrics::default(),
            optimizers: Optimizers::default().sealed(),
            schedulers: Schedulers::default().sealed(),
            backends: Backends::default().sealed(),
            sinks: Sinks::default().sealed(),
            methods: Methods::default().sealed(),
            pruners: Pruners::default().sealed(),
            #[cfg(feature = "clusters")]
            clusters: Clusters::default().sealed(),
        };
        #[cfg(feature = "trajectories")]
        ddprun_trajectories::register(&mut kinds.data, &mut kinds.models);
        #[cfg(feature = "speech")]
        ddprun_speech::register(&mut kinds.data, &mut kinds.models);
        kinds.data = kinds.data.sealed();
        kinds.models = kinds.models.sealed();
        kinds
    }
}

impl Kinds {
    /// "model `mlp`" for each name that a kind was registered with although another had it.
    pub fn taken(&self) -> Vec<String> {
        let mut taken: Vec<String> = self.data.taken().collect();
        taken.extend(self.models.taken());
        taken.extend(self.layers.taken());
        taken.extend(self.transforms.taken());
        taken.extend(self.losses.taken());
        taken.extend(self.metrics.taken());
        taken.extend(self.optimizers.taken());
        taken.extend(self.schedulers.taken());
        taken.extend(self.backends.taken());
        taken.extend(self.sinks.taken());
        taken.extend(self.methods.taken());
        taken.extend(self.pruners.taken());
        #[cfg(feature = "clusters")]
        taken.extend(self.clusters.taken());
        taken
    }

    /// Names and keys that an experiment may use.
    pub fn vocabulary(&self) -> Vocabulary {
        Vocabulary::new(self.families(), self.metrics.specs())
    }

    /// The kinds of each table that chooses one.
    pub fn families(&self) -> Vec<FamilySpec> {
        let mut models = self.models.spec();
        for kind in &mut models.kinds {
            kind.takes = self.models.takes(kind.name).to_vec();
        }
        let mut families = vec![
            models,
            self.data.spec(),
            self.transforms.spec(),
            self.layers.spec(),
            self.losses.spec(),
            self.optimizers.spec(),
            self.schedulers.spec(),
            self.backends.spec(),
            self.sinks.spec(),
            self.methods.spec(),
            self.pruners.spec(),
            #[cfg(feature = "clusters")]
            self.clusters.spec(),
        ];
        mark_left_out(&mut families);
        families
    }

    /// Adds a layer of the model `graph`.
    pub fn add_layer<L: Kind + Layer>(&mut self) {
        self.layers.add::<L>();
        self.models.hold_layers(&self.layers);
    }

    /// Model, loss, optimizer and the rest of an engine for `plan`, in the memory of `device`, with
    /// first values drawn from the plan's seed.
    pub fn components(&self, plan: &Plan, device: &Device) -> Result<Components, Error> {
        let (model, params) = self.models.instantiate_on(&plan.model, plan.seed, device)?;
        params.train_only(|parameter| plan.optimizer.is_ever_trained(parameter));
        let model = if plan.model.takes_pairs {
            let reference = self.reference(plan, device)?;
            Box::new(PreferenceModel::new(model, reference))
        } else {
            model
        };
        let loss = self.losses.build(&plan.loss.kind)?;
        let of_metrics: Arc<dyn Loss> = self.losses.build(&plan.loss.kind)?.into();
        let optimizer = self.optimizers.build(&plan.optimizer.rule)?;
        let metrics = self.metrics.of(&plan.measurable(), &plan.metrics);
        let bytes: Arc<[u32]> = plan.data.token_bytes.as_slice().into();
        let metrics = metrics.into_iter().map(|metric| metric.of_tokens(&bytes).unwrap_or(metric));
        let naive = plan.naive_errors();
        let metrics = metrics.map(|metric| metric.of_series(&naive).unwrap_or(metric));
        let metrics = metrics.map(|metric| metric.of_loss(&of_metrics).unwrap_or(metric)).collect();
        let scheduler = self.schedulers.build(&plan.schedule.rule)?;
        Ok(Components { model, params, loss, metrics, optimizer, scheduler })
    }

    /// What the model of `plan` is compared with.
    fn reference(&self, plan: &Plan, device: &Device) -> Result<Reference, Error> {
        if !plan.loss.needs_reference {
            return Ok(Reference::None);
        }
        if plan.model.reference.is_none() {
            return Ok(Reference::WithoutAdapters);
        }
        let (model, params) = self.models.frozen_copy(&plan.model, plan.seed, device)?;
        Ok(Reference::Copy(model, Box::new(params)))
    }

    /// The sinks that `plan` chooses.
    pub fn sinks_of(&self, plan: &Plan) -> Result<Vec<NamedSink>, Error> {
        let build = |chosen: &Entry| {
            let sink = self.sinks.build(&chosen.choice())?;
            Ok(NamedSink { name: chosen.name.clone(), sink })
        };
        plan.logging.sinks.iter().map(build).collect()
    }
}

impl ComponentFacts for Kinds {
    fn model(&self, plan: &ModelPlan) -> Result<ModelFacts, String> {
        self.models.describe(plan)
    }

    fn misfit(&self, plan: &ModelPlan) -> Option<(String, String)> {
        self.models.misfit(plan)
    }

    fn transforms(
        &self,
        asked: &[Choice],
        images: &Images,
        pixels: Option<&PixelStats>,
    ) -> Result<TransformFacts, (usize, Unfit)> {
        transform::facts(&self.transforms, asked, images, pixels)
    }

    fn layers(
        &self,
        layers: &[Entry],
        input: Flow,
        needed: usize,
    ) -> Result<Vec<LayerPlan>, LayerMisfit> {
        layers::plan(&self.layers, layers, input, needed)
    }

    fn loss(&self, loss: &Choice) -> Result<LossFacts, String> {
        let loss = self.losses.build(loss).map_err(|error| error.to_string())?;
        Ok(loss::facts(loss.as_ref()))
    }

    fn loss_from_data(&self, loss: &Choice, data: &DataFacts) -> Result<Choice, Unfit> {
        let built = self.losses.build(loss);
        let built = built.map_err(|error| Unfit::of_all(error.to_string()))?;
        let mut decided = loss.clone();
        decided.options.extend(built.options_from_data(data)?);
        Ok(decided)
    }

    fn metrics(&self, answers: &MetricContext) -> Vec<MetricFacts> {
        self.metrics.facts(answers)
    }

    fn optimizer(&self, rule: &Choice) -> Result<OptimizerFacts, String> {
        let rule = self.optimizers.build(rule).map_err(|error| error.to_string())?;
        Ok(optim::facts(rule.as_ref()))
    }

    fn scheduler(&self, rule: &Choice) -> Result<SchedulerFacts, String> {
        optim::scheduler_facts(&self.schedulers, rule)
    }

    fn schedule(&self, rule: &Choice, span: &Span) -> Result<String, Unfit> {
        optim::describe_schedule(&self.schedulers, rule, span)
    }

    fn backends(&self) -> Vec<BackendFacts> {
        collective::backend_facts(&self.backends)
    }
}

/// Notes in each family which of the [`OPTIONAL`] kinds it is without.
fn mark_left_out(families: &mut [FamilySpec]) {
    for family in families {
        let is_absent = |name: &str| family.kind(name).is_none();
        let left_out = OPTIONAL
            .iter()
            .filter(|(table, name, _)| *table == family.table && is_absent(name))
            .map(|&(_, name, feature)| LeftOut { name, feature });
        family.left_out = left_out.collect();
    }
}

/// A plan's choice that this program cannot make.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Model(#[from] model::Error),
    /// Another kind.
    #[error(transparent)]
    Kind(#[from] Unbuildable),
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        ExitCode::Refused
    }
}

#[cfg(test)]
mod tests;
