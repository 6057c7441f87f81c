//! The model with all its numbers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::values::Strict;
use crate::config::{Loaded, Problem};
use crate::plan::{DataFacts, ModelFacts, Stem};

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// Registered name.
    pub name: String,
    /// Width of the output: classes, or regression targets.
    pub outputs: usize,
    /// Shape of one sample as the model receives it: (channels, height, width) or (features).
    pub input: Vec<usize>,
    /// `ResNet` stem.
    pub stem: Stem,
    /// Start the last norm of each residual block at zero.
    pub zero_init_residual: bool,
    /// Train the head only.
    pub freeze_backbone: bool,
    /// MLP: hidden widths.
    pub hidden: Vec<usize>,
    /// MLP: dropout probability.
    pub dropout: f64,
    /// Weights to start from.
    pub pretrained: Option<PathBuf>,
    /// Whether the head of `pretrained` may differ.
    pub except_head: bool,
    /// Options of a user's model.
    pub options: BTreeMap<String, serde_json::Value>,
    /// Trainable parameters.
    pub n_parameters: usize,
    /// Parameter tensors.
    pub n_tensors: usize,
    /// Elements of buffers (running statistics).
    pub n_buffer_elements: usize,
}

/// Hidden widths of an MLP for which none were given.
const HIDDEN: [u32; 1] = [256];

/// The model as asked, for samples of shape `input`; its counts are still zero.
pub(crate) fn decide(
    loaded: &Loaded,
    data: &DataFacts,
    input: &[usize],
) -> Result<ModelPlan, Problem> {
    let asked = &loaded.experiment.model;
    let hidden = asked.hidden.as_deref().unwrap_or(&HIDDEN);
    Ok(ModelPlan {
        name: asked.name.clone(),
        outputs: outputs(loaded, data)?,
        input: input.to_vec(),
        stem: asked.stem.unwrap_or(Stem::Imagenet),
        zero_init_residual: asked.zero_init_residual.unwrap_or(false),
        freeze_backbone: asked.freeze_backbone.unwrap_or(false),
        hidden: hidden.iter().map(|&width| width as usize).collect(),
        dropout: asked.dropout.unwrap_or(0.0),
        pretrained: asked.pretrained.clone(),
        except_head: asked.strict == Strict::ExceptHead,
        options: asked.options.clone(),
        n_parameters: 0,
        n_tensors: 0,
        n_buffer_elements: 0,
    })
}

/// One output per class, or one number. More outputs than classes are allowed, fewer cannot be right.
fn outputs(loaded: &Loaded, data: &DataFacts) -> Result<usize, Problem> {
    let classes = data.classes.len();
    match loaded.experiment.model.num_classes.given() {
        None => Ok(classes.max(1)),
        Some(given) if (given as usize) < classes => {
            let what = format!("is {given}, but the data has {classes} classes");
            let help = "leave it away: \"auto\" is the number of classes";
            Err(loaded.problem("model.num_classes", what).help(help))
        }
        Some(given) => Ok(given as usize),
    }
}

impl ModelPlan {
    /// The same model with the counts of what was built from it.
    pub(crate) fn counted(mut self, facts: &ModelFacts) -> Self {
        self.n_parameters = facts.lengths().sum();
        self.n_tensors = facts.parameters.len();
        self.n_buffer_elements = facts.buffer_elements();
        self
    }
}
