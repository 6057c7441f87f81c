//! The model with all its numbers, and what is measured of it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::kind::{Choice, Entry};
use crate::config::values::Strict;
use crate::config::{Loaded, PretrainedCheckpoint, Problem};
use crate::plan::{Cameras, DataFacts, Flow, LayerMisfit, LayerPlan, Modality, graph};
use crate::terminal::counted;
use train_numbers::units::Bytes;

/// The model to train.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// The model with all its options.
    pub kind: Choice,
    /// Width of the output: classes, regression targets, or series of a forecast.
    pub outputs: usize,
    /// Shape of one sample as the model receives it: (channels, height, width), (features), or
    /// (time steps, series and features of the date), (tokens).
    pub input: Vec<usize>,
    /// Shape of one sample's target where it is an array: (time steps, series) of a forecast,
    /// (tokens) of a text.
    #[serde(default)]
    pub target: Vec<usize>,
    /// True if a sample of the data is a pair of texts, each of the shape `input`.
    #[serde(default)]
    pub takes_pairs: bool,
    /// Widths of the one-hot categories at the end of a sample.
    #[serde(default)]
    pub one_hot: Vec<usize>,
    /// Images at the end of each observation of a sample.
    #[serde(default)]
    pub cameras: Option<Cameras>,
    /// Layers of the model `graph`.
    #[serde(default)]
    pub layers: Vec<LayerPlan>,
    /// Weights to start from.
    pub pretrained: Option<PathBuf>,
    /// Details of `pretrained`, if it is a checkpoint of ddprun's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained_checkpoint: Option<PretrainedCheckpoint>,
    /// True if the head of `pretrained` may differ.
    pub except_head: bool,
    /// Trainable parameters.
    pub n_parameters: usize,
    /// Parameter tensors.
    pub n_tensors: usize,
    /// Elements of buffers (running statistics, and frozen weights).
    pub n_buffer_elements: usize,
    /// The frozen weights below adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseFacts>,
    /// A copy of the model as it is at the start, if the loss needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<BaseFacts>,
    /// Values per channel in one sample at the layer with batch statistics (BatchNorm) that has the
    /// fewest; `None` if there is no such layer.
    #[serde(default)]
    pub least_rows: Option<usize>,
    /// True if a pass draws random numbers, branches or computes on the CPU.
    #[serde(default)]
    pub draws_on_cpu: bool,
    /// True if it has dropout.
    #[serde(default)]
    pub drops: bool,
}

/// Weights below adapters, which training does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseFacts {
    /// Number of weights.
    pub n_weights: usize,
    /// Those that come from the file of `pretrained`: checkpoints do not hold them.
    pub n_in_file: usize,
    /// How many of these stay in the mapped file on a CPU.
    pub n_mapped: usize,
    /// Size of these pages.
    pub mapped: Bytes,
}

/// Properties of a model that was built without taking memory for its weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Trainable parameters in registration order: name and shape.
    pub parameters: Vec<(String, Vec<usize>)>,
    /// Buffers in registration order: name and shape.
    pub buffers: Vec<(String, Vec<usize>)>,
    /// The frozen weights below adapters; they are buffers.
    #[serde(default)]
    pub base: Option<BaseFacts>,
    /// A copy of the model as it is at the start; `None` where that is the model without its
    /// adapters.
    #[serde(default)]
    pub reference: Option<BaseFacts>,
    /// Values per channel in one sample at the layer with batch statistics (BatchNorm) that has the
    /// fewest; `None` if there is no such layer.
    pub least_rows: Option<usize>,
    /// True if it has blocks whose activations can be recomputed from their inputs.
    pub has_blocks: bool,
    /// True if a pass draws random numbers, branches or computes on the CPU.
    pub draws_on_cpu: bool,
    /// True if it has dropout.
    pub drops: bool,
    /// Names of the parameters that are embedding tables.
    #[serde(default)]
    pub embeddings: Vec<String>,
    /// Prefixes of the names of the head's parameters.
    #[serde(default)]
    pub head: Vec<String>,
    /// True if what stands at the end of a sample changes nothing before it, so that padding there
    /// can be left out.
    #[serde(default)]
    pub ignores_padding: bool,
    /// True if texts that are packed into one sample see nothing of each other.
    #[serde(default)]
    pub keeps_texts_apart: bool,
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

/// The plan of `[model]`, for samples of shape `input`; its counts are still zero. `infer` returns
/// the layers of a graph with their shapes.
pub(super) fn decide(
    loaded: &Loaded,
    data: &DataFacts,
    input: &[usize],
    infer: impl FnOnce(&[Entry], Flow, usize) -> Result<Vec<LayerPlan>, LayerMisfit>,
) -> Result<ModelPlan, Problem> {
    let config = &loaded.experiment.model;
    let outputs = outputs(loaded, data)?;
    // The model sees a pair of texts as two of them.
    let texts = if data.holds_pairs() { 1 } else { usize::MAX };
    let of_text = |shape: &[usize]| shape.iter().copied().take(texts).collect();
    Ok(ModelPlan {
        kind: Choice { name: config.name.clone(), options: config.options.clone() },
        outputs,
        input: of_text(input),
        target: of_text(&data.target),
        takes_pairs: data.holds_pairs(),
        one_hot: data.one_hot.clone(),
        layers: graph::decide(loaded, input, data, outputs, infer)?,
        pretrained: config.pretrained.clone(),
        pretrained_checkpoint: loaded.pretrained.clone(),
        except_head: config.strict == Strict::ExceptHead,
        ..ModelPlan::default()
    })
}

/// One output per class, one per series, or one number. More outputs than classes are allowed,
/// fewer cannot be right; a number beyond the target's has nothing to be compared with.
fn outputs(loaded: &Loaded, data: &DataFacts) -> Result<usize, Problem> {
    let classes = data.classes.len();
    let several = if data.multi_label { classes } else { data.n_targets };
    let usual = match (classes, several) {
        (0, 0) => data.target.last().copied().unwrap_or(1),
        (0, several) => several,
        (classes, _) => classes,
    };
    let Some(given) = loaded.experiment.model.num_classes.given() else { return Ok(usual) };
    let is_exact = classes == 0 || several > 0;
    let given = given as usize;
    if given == usual || (!is_exact && given > usual) {
        return Ok(given);
    }
    let is_text = data.source.modality == Modality::Text;
    if is_text && !loaded.is_given("model.num_classes") {
        let model = &loaded.experiment.model;
        if model.options.get("resize_embeddings") == Some(&true.into()) {
            return Ok(usual);
        }
        let what = format!(
            "has a vocabulary of {usual} tokens, larger than that of the weights of \
             `model.pretrained`, {given}"
        );
        let key = if loaded.is_given("data.tokenizer") { "data.tokenizer" } else { "data.name" };
        let other = match model.name.as_str() {
            "llama" => "; or set `model.resize_embeddings = true`, for tokens that were added",
            _ => "",
        };
        let help = format!("use the tokenizer that lies beside the weights{other}");
        return Err(loaded.problem(key, what).help(help));
    }
    let (has, noun) = match (is_text, is_exact) {
        (true, _) => (format!("the vocabulary has {usual} tokens"), "size of the vocabulary"),
        (false, false) => {
            let classes = counted(usual as u64, "class");
            (format!("the data has {classes}"), "number of classes")
        }
        (false, true) => {
            let numbers = counted(usual as u64, "target");
            (format!("a sample has {numbers}"), "number of targets")
        }
    };
    let what = format!("is {given}, but {has}");
    let help = format!("omit it: \"auto\" is the {noun}");
    Err(loaded.problem("model.num_classes", what).help(help))
}

/// Refuses `data.packing` for a model that would mix the texts of a sample, and on GPUs, whose
/// kernels do so, too.
pub(super) fn check_packing(
    loaded: &Loaded,
    facts: &ModelFacts,
    on_gpus: bool,
) -> Result<(), Problem> {
    let packing = loaded.experiment.data.options.get("packing");
    if packing != Some(&true.into()) {
        return Ok(());
    }
    let refused = |what: String, help: &str| Err(loaded.problem("data.packing", what).help(help));
    if !facts.keeps_texts_apart {
        let name = &loaded.experiment.model.name;
        let what = format!("`{name}` would mix the texts that are packed into a sample");
        return refused(what, "omit it, or choose `gpt` or `llama`");
    }
    if on_gpus {
        let what = "the kernels of GPUs do not keep packed texts apart yet".to_owned();
        return refused(what, "omit it: batches are as long as their longest sample anyway");
    }
    Ok(())
}

/// Refuses `train.activation_checkpointing` of a model without blocks.
pub(super) fn check_blocks(loaded: &Loaded, facts: &ModelFacts) -> Result<(), Problem> {
    let experiment = &loaded.experiment;
    if facts.has_blocks || !experiment.train.activation_checkpointing {
        return Ok(());
    }
    let name = &experiment.model.name;
    let what = format!("saves nothing: `{name}` has no blocks whose inputs are kept");
    Err(loaded.problem("train.activation_checkpointing", what))
}

impl ModelPlan {
    /// "step 300 of `checkpoints/x/20261123-020701-3fa2/step-00000300`, averaged weights"
    pub fn weights_line(&self) -> Option<String> {
        let checkpoint = self.pretrained_checkpoint.as_ref()?;
        let step = checkpoint.step;
        let folder = self.pretrained.as_ref()?.display();
        let averaged = if checkpoint.averaged { ", averaged weights" } else { "" };
        Some(format!("step {step} of `{folder}`{averaged}"))
    }

    /// Shape of a sample as the data gives it, of which `of` is one text's.
    pub fn of_sample(&self, of: &[usize]) -> Vec<usize> {
        let texts = self.takes_pairs.then_some(2);
        of.iter().copied().chain(texts).collect()
    }

    /// The model `kind` for samples of shape `input`, with `outputs` outputs; its counts are zero.
    pub fn new(kind: Choice, input: &[usize], outputs: usize) -> Self {
        Self { kind, input: input.to_vec(), outputs, ..Self::default() }
    }

    /// Registered name.
    pub fn name(&self) -> &str {
        &self.kind.name
    }

    /// The model with the counts of `facts`.
    #[must_use]
    pub fn counted(mut self, facts: &ModelFacts) -> Self {
        self.n_parameters = facts.lengths().sum();
        self.n_tensors = facts.parameters.len();
        self.n_buffer_elements = facts.buffer_elements();
        self.base = facts.base;
        self.least_rows = facts.least_rows;
        self.draws_on_cpu = facts.draws_on_cpu;
        self.drops = facts.drops;
        self
    }
}
