//! What is measured elsewhere and handed in, so that planning is pure.

use serde::{Deserialize, Serialize};

use crate::config::kind::{Choice, Entry};
use crate::plan::{
    BackendFacts, Bf16Instructions, Cameras, Flow, Images, LayerMisfit, LayerPlan, LossFacts,
    Measurable, MetricFacts, ModelPlan, OptimizerFacts, PixelDtype, PixelStats, SchedulerFacts,
    SourcePlan, Span, TrainedOn, TransformFacts, Unfit,
};
use train_numbers::units::{Bytes, WorldSize};

/// What was found on this machine and in the data; measured elsewhere, so that planning is pure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Cores that this process may use.
    pub cores: usize,
    /// Main memory that this process may use; `None` = unknown.
    #[serde(default)]
    pub memory: Option<Bytes>,
    /// What multiplies bf16 numbers; `None` = f32 numbers are rounded.
    #[serde(default)]
    pub bf16: Option<Bf16Instructions>,
    /// Whether that does more work at a time than what multiplies f32 numbers.
    #[serde(default)]
    pub bf16_is_faster: bool,
    /// The data, counted.
    pub data: DataFacts,
    /// The GPUs that CUDA shows, in its order; `None` if this program was built without CUDA.
    pub gpus: Option<Vec<GpuFacts>>,
    /// Ranks that a foreign launcher (torchrun, srun) already decided.
    pub launched_world: Option<WorldSize>,
    /// Place of this process among the ranks that such a launcher has started on this machine; 0
    /// without one.
    #[serde(default)]
    pub local_rank: u32,
    /// Machines that take part, with as many ranks each.
    pub nodes: u32,
    /// The library of the MPI launcher that started this process; `None` without such a launcher,
    /// and where it is not needed.
    #[serde(default)]
    pub mpi: Option<MpiFacts>,
    /// What lies beside the weights of `model.pretrained` about the images that they were trained
    /// on; `None` = nothing.
    #[serde(default)]
    pub trained_on: Option<TrainedOn>,
}

impl Facts {
    /// Such data on one machine of which no more is known than that it has a core: no GPU, and no
    /// launcher. For what plans a run on the spot, such as tests, benches and your own programs.
    pub fn of(data: DataFacts) -> Self {
        Self {
            cores: 1,
            memory: None,
            bf16: None,
            bf16_is_faster: false,
            data,
            gpus: None,
            launched_world: None,
            local_rank: 0,
            nodes: 1,
            mpi: None,
            trained_on: None,
        }
    }
}

/// Whether an MPI launcher's library can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpiFacts {
    /// It was opened.
    Found,
    /// It was not.
    Unusable {
        /// Why.
        why: String,
        /// What the user can do about it.
        help: String,
    },
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// As its maker calls it.
    pub name: String,
    /// All of its memory.
    pub memory: Bytes,
}

/// The data, counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Where the samples are.
    pub source: SourcePlan,
    /// Samples to train on.
    pub n_train: usize,
    /// Training samples that the data set has, if only a part of them is taken.
    #[serde(default)]
    pub subset_of: Option<usize>,
    /// Samples to validate on.
    pub n_val: usize,
    /// Samples to test on when the training is over; 0 = there is no test.
    pub n_test: usize,
    /// What is worth a look, in words: gaps between dates, files that were left out.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Class names in label order; empty for regression.
    pub classes: Vec<String>,
    /// Bytes of text of each class, if they are tokens of which that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_bytes: Vec<u32>,
    /// Training samples of each class; empty if they are not counted.
    #[serde(default)]
    pub class_counts: Vec<u64>,
    /// Whether a sample may have several classes.
    #[serde(default)]
    pub multi_label: bool,
    /// Numbers of a target that is a plain list of several; 0 = it is one number or has a shape.
    #[serde(default)]
    pub n_targets: usize,
    /// The numbers of a target that have names: columns of a table, series of a forecast.
    #[serde(default)]
    pub target_columns: Vec<TargetColumn>,
    /// At the end of a sample, the widths of what is 1 at one place and 0 elsewhere: columns of
    /// categories.
    #[serde(default)]
    pub one_hot: Vec<usize>,
    /// Shape of one sample where the files decide it: (1, 28, 28) for MNIST, (features) for a
    /// table, (time steps, series and features of the date) for a forecast, (tokens) for a text;
    /// `None` for image folders, whose transforms decide.
    pub sample: Option<Vec<usize>>,
    /// Shape of one sample's target where it is an array: (time steps, series) of a forecast,
    /// (tokens) of a text; empty for a label or a number.
    pub target: Vec<usize>,
    /// Images that each observation holds beside the numbers of `sample`, as they are before
    /// transforms.
    #[serde(default)]
    pub cameras: Option<Cameras>,
    /// By what the values of their pixels are normalized where no transform does it.
    #[serde(default)]
    pub pixels: Option<PixelStats>,
    /// How pixels of image files are stored.
    #[serde(default, skip_serializing_if = "PixelDtype::is_usual")]
    pub pixel_dtype: PixelDtype,
}

/// A number to predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetColumn {
    /// What the data call it.
    pub name: String,
    /// The standard deviation that it was divided by, in its own unit; 1 if it was not.
    pub scale: f64,
}

/// What the kinds that a program has registered say of themselves, for planning.
pub trait KindFacts {
    /// The model, counted without taking memory.
    fn model(&self, plan: &ModelPlan) -> Result<ModelFacts, String>;

    /// The transforms `asked` of such images, whose values are normalized by `pixels` where none of
    /// them does it.
    fn transforms(
        &self,
        asked: &[Choice],
        images: &Images,
        pixels: Option<&PixelStats>,
    ) -> Result<TransformFacts, (usize, Unfit)>;

    /// The layers of a graph for samples of such an input, and data that needs so many numbers at
    /// the end.
    fn layers(
        &self,
        layers: &[Entry],
        input: Flow,
        needed: usize,
    ) -> Result<Vec<LayerPlan>, LayerMisfit>;

    /// The loss.
    fn loss(&self, loss: &Choice) -> Result<LossFacts, String>;

    /// The loss with what depends on the data decided.
    fn decided_loss(&self, loss: &Choice, _data: &DataFacts) -> Result<Choice, Unfit> {
        Ok(loss.clone())
    }

    /// All metrics, of such answers.
    fn metrics(&self, answers: &Measurable) -> Vec<MetricFacts>;

    /// The update rule.
    fn optimizer(&self, rule: &Choice) -> Result<OptimizerFacts, String>;

    /// The scheduler.
    fn scheduler(&self, rule: &Choice) -> Result<SchedulerFacts, String>;

    /// What the scheduler does in `span`, in words: "cosine over 50 epochs to 0".
    fn schedule(&self, rule: &Choice, span: &Span) -> Result<String, Unfit>;

    /// All backends, in the order in which they are chosen among.
    fn backends(&self) -> Vec<BackendFacts>;
}

/// Counts of a built model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Trainable parameters in registration order: name and shape.
    pub parameters: Vec<(String, Vec<usize>)>,
    /// Buffers in registration order: name and shape.
    pub buffers: Vec<(String, Vec<usize>)>,
    /// Values per channel in one sample where a layer takes statistics over a batch (BatchNorm),
    /// the fewest of all such layers; `None` if there is none.
    pub least_rows: Option<usize>,
    /// Whether it runs through blocks whose inputs alone can be kept.
    pub has_blocks: bool,
    /// Whether passes draw, decide or compute something on the CPU.
    pub draws_on_cpu: bool,
    /// Whether a layer drops something.
    pub drops: bool,
    /// Names of tables of vectors among the parameters.
    #[serde(default)]
    pub embeddings: Vec<String>,
    /// Prefixes of the names in the head.
    #[serde(default)]
    pub head: Vec<String>,
}

impl ModelFacts {
    /// Elements of each trainable parameter, in registration order.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.parameters.iter().map(|(_, shape)| shape.iter().product())
    }

    /// Elements of all buffers.
    pub fn buffer_elements(&self) -> usize {
        self.buffers.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }
}

/// Tests of rooms that know no kinds: transforms by the size that they lead to, losses, SGD, Adam,
/// schedulers and backends by their names.
#[cfg(test)]
impl<F: Fn(&ModelPlan) -> Result<ModelFacts, String>> KindFacts for F {
    fn model(&self, plan: &ModelPlan) -> Result<ModelFacts, String> {
        self(plan)
    }

    fn transforms(
        &self,
        asked: &[Choice],
        images: &Images,
        _: Option<&PixelStats>,
    ) -> Result<TransformFacts, (usize, Unfit)> {
        let side = |value: &serde_json::Value| value.as_u64().map(|side| side as u32);
        let size = asked.iter().fold(images.size, |size, choice| {
            let given = choice.options.get("size");
            match given.map(|given| (side(given), side(&given[0]), side(&given[1]))) {
                Some((Some(_), ..)) if choice.name == "resize" => size,
                Some((Some(side), ..)) => Some((side, side)),
                Some((None, height, width)) => height.zip(width),
                None => size,
            }
        });
        let (list, random) = (asked.to_vec(), Vec::new());
        Ok(TransformFacts { list, channels: images.channels, size, values: None, random })
    }

    fn layers(&self, _: &[Entry], _: Flow, _: usize) -> Result<Vec<LayerPlan>, LayerMisfit> {
        Ok(Vec::new())
    }

    fn loss(&self, loss: &Choice) -> Result<LossFacts, String> {
        let targets = match loss.name.as_str() {
            "cross_entropy" => crate::plan::Targets::Classes,
            "time_frequency" => crate::plan::Targets::Series,
            _ => crate::plan::Targets::Numbers,
        };
        let takes_probabilities = loss.name == "cross_entropy";
        let runs_on_gpus = loss.name != "on_cpus";
        Ok(LossFacts {
            targets,
            weighs_labels: false,
            runs_on_gpus,
            takes_probabilities,
            is_never_negative: true,
        })
    }

    fn metrics(&self, answers: &Measurable) -> Vec<MetricFacts> {
        use crate::plan::Mode;
        let unless = |is_wrong: bool, why: &str| is_wrong.then(|| why.to_owned());
        let numbers = unless(
            answers.has_classes(),
            "is a regression metric, but the loss is a classification loss",
        );
        let classes = unless(
            !answers.has_classes(),
            "is a classification metric, but the loss is a regression loss",
        );
        [
            ("accuracy", Mode::Max, classes),
            ("mse", Mode::Min, numbers.clone()),
            ("mae", Mode::Min, numbers),
        ]
        .map(|(name, mode, why_not)| MetricFacts { name: name.to_owned(), mode, why_not })
        .into()
    }

    fn optimizer(&self, rule: &Choice) -> Result<OptimizerFacts, String> {
        let option = |key: &str| rule.options.get(key).and_then(serde_json::Value::as_f64);
        let (state, momentum): (&[&str], _) = match rule.name.as_str() {
            "sgd" if option("momentum").is_none() => (&[], None),
            "sgd" => (&["momentum_buffer"], Some("momentum")),
            _ => (&["exp_avg", "exp_avg_sq"], Some("beta1")),
        };
        Ok(OptimizerFacts {
            state: state.iter().map(|&name| name.to_owned()).collect(),
            matrices: (rule.name == "muon").then(|| crate::plan::Matrices {
                only_hidden: true,
                state: vec![crate::plan::StateTensor::whole("momentum_buffer")],
                others_lr_factor: 0.1,
            }),
            weight_decay: option("weight_decay").unwrap_or(0.0),
            momentum: momentum.map(str::to_owned),
            has_gpu_kernel: rule.name != "muon",
        })
    }

    fn scheduler(&self, rule: &Choice) -> Result<SchedulerFacts, String> {
        let moves_by_steps = rule.name == "one_cycle";
        let momentum = moves_by_steps.then_some([0.85, 0.95]);
        Ok(SchedulerFacts { moves_by_steps, momentum, ..SchedulerFacts::default() })
    }

    fn schedule(&self, rule: &Choice, span: &Span) -> Result<String, Unfit> {
        if rule.options.contains_key("eta_min") {
            return Err(Unfit { key: "eta_min", what: "is refused".to_owned(), help: None });
        }
        let over = span.intervals.map_or(String::new(), |n| format!(" over {n} {}", span.unit()));
        Ok(rule.name.clone() + &over)
    }

    fn backends(&self) -> Vec<BackendFacts> {
        use crate::plan::BackendCapabilities;
        use crate::plan::SharedMemory::{Gradients, Staging};
        let backend = |name: &str, label: Option<&str>| {
            let label = label.map(str::to_owned);
            let capabilities = BackendCapabilities { label, ..BackendCapabilities::default() };
            BackendFacts { is_automatic: true, capabilities, ..BackendFacts::named(name) }
        };
        let mut shm = backend("shm", None);
        shm.one_machine = Some(Gradients);
        let mut nccl = backend("nccl", Some("NCCL"));
        (nccl.one_machine, nccl.several_machines) = (Some(Staging), Some(Staging));
        nccl.capabilities.sums_on_gpus = true;
        let mut tcp = backend("tcp", Some("TCP"));
        (tcp.one_machine, tcp.several_machines) = (None, Some(Gradients));
        tcp.capabilities.bucket_copies = 1;
        let mut mpi = backend("mpi", Some("MPI"));
        mpi.several_machines = Some(Gradients);
        mpi.sums_by_library = true;
        mpi.capabilities.meets_by_mpi = true;
        mpi.capabilities.bucket_copies = 3;
        vec![shm, nccl, tcp, mpi]
    }
}
