//! The model with all its numbers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::schema::Model;
use crate::config::values::Strict;
use crate::config::{Loaded, Problem};
use crate::plan::{
    BackboneMode, DataFacts, Gelu, LayerPlan, LlamaPlan, LoraPlan, ModelFacts, NoiseScheduler,
    Stem, graph, llama,
};

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// Registered name.
    pub name: String,
    /// Width of the output: classes, regression targets, or series of a forecast.
    pub outputs: usize,
    /// Shape of one sample as the model receives it: (channels, height, width), (features), or (time steps,
    /// series and features of the date), (tokens).
    pub input: Vec<usize>,
    /// Shape of one sample's target where it is an array: (time steps, series) of a forecast, (tokens) of a text.
    #[serde(default)]
    pub target: Vec<usize>,
    /// `ResNet` stem.
    pub stem: Stem,
    /// Start the last norm of each residual block at zero.
    pub zero_init_residual: bool,
    /// Train the head only.
    pub freeze_backbone: bool,
    /// In which mode it then is.
    #[serde(default)]
    pub backbone_mode: BackboneMode,
    /// MLP: hidden widths.
    pub hidden: Vec<usize>,
    /// Dropout probability.
    pub dropout: f64,
    /// Sizes of a transformer.
    #[serde(default)]
    pub sequence: SequencePlan,
    /// Layers of the model `graph`.
    #[serde(default)]
    pub layers: Vec<LayerPlan>,
    /// Sizes of a diffusion policy.
    #[serde(default)]
    pub policy: PolicyPlan,
    /// Sizes of an encoder of speech.
    #[serde(default)]
    pub speech: SpeechPlan,
    /// What a Llama has beside the sizes of a transformer.
    #[serde(default)]
    pub llama: LlamaPlan,
    /// Adapters that are trained instead of a Llama.
    #[serde(default)]
    pub lora: Option<LoraPlan>,
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
    /// Values per channel in one sample where a layer takes statistics over a batch, the fewest; `None` if none does.
    #[serde(default)]
    pub least_rows: Option<usize>,
}

/// Sizes of a transformer; each model uses those that `defaults.toml` names for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SequencePlan {
    /// Width.
    pub d_model: usize,
    /// Heads of each attention.
    pub n_heads: usize,
    /// Width inside the feed-forward part.
    pub d_ff: usize,
    /// Layers.
    pub n_layers: usize,
    /// Dropout of attention probabilities.
    pub attn_dropout: f64,
    /// GPT: whether linear layers and norms have biases.
    pub bias: bool,
    /// GPT: what follows the first linear layer of the feed-forward part.
    #[serde(default)]
    pub activation: Gelu,
    /// `PatchTST`: time steps of a patch.
    pub patch_len: usize,
    /// `PatchTST`: time steps from patch to patch.
    pub stride: usize,
    /// `TimeBridge`: time steps of a patch.
    pub period: usize,
    /// `TimeBridge`: patches after sampling.
    pub num_p: usize,
    /// `TimeBridge`: window of the moving average.
    pub stable_len: usize,
    /// `TimeBridge`: layers of each kind: integrated, patch-sampling, cointegrated.
    pub layers: [usize; 3],
}

/// Sizes of a diffusion policy, by their names in the original.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyPlan {
    /// Channels of each level; the chunk of actions is halved from each to the next.
    pub down_dims: Vec<usize>,
    /// Features of a diffusion step.
    pub diffusion_step_embed_dim: usize,
    /// Values that a convolution sees.
    pub kernel_size: usize,
    /// Groups of channels of a norm.
    pub n_groups: usize,
    /// Steps from actions to noise.
    pub num_train_timesteps: usize,
    /// Steps back.
    pub num_inference_steps: usize,
    /// How they are taken.
    pub noise_scheduler: NoiseScheduler,
}

impl Default for PolicyPlan {
    /// The authors' sizes for Push-T, sampled by DDIM.
    fn default() -> Self {
        Self {
            down_dims: vec![256, 512, 1024],
            diffusion_step_embed_dim: 256,
            kernel_size: 5,
            n_groups: 8,
            num_train_timesteps: 100,
            num_inference_steps: 10,
            noise_scheduler: NoiseScheduler::Ddim,
        }
    }
}

/// Sizes of an encoder of speech, and of its pre-training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeechPlan {
    /// Channels of the convolutions that make eight frames one.
    pub subsampling_channels: usize,
    /// Frames that a convolution of a block sees.
    pub kernel_size: usize,
    /// Tokens.
    pub codebook_size: usize,
    /// Numbers of a code.
    pub code_dim: usize,
    /// Chance of a frame to begin a masked block.
    pub mask_prob: f64,
    /// Frames of a masked block.
    pub mask_block: usize,
}

impl Default for SpeechPlan {
    /// Those of NEST.
    fn default() -> Self {
        Self {
            subsampling_channels: 256,
            kernel_size: 9,
            codebook_size: 8192,
            code_dim: 16,
            mask_prob: 0.01,
            mask_block: 40,
        }
    }
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
    let outputs = outputs(loaded, data)?;
    let sequence = sequence(asked, input);
    Ok(ModelPlan {
        name: asked.name.clone(),
        outputs,
        input: input.to_vec(),
        target: data.target.clone(),
        stem: asked.stem.unwrap_or(Stem::Imagenet),
        zero_init_residual: asked.zero_init_residual.unwrap_or(false),
        freeze_backbone: asked.freeze_backbone.unwrap_or(false),
        backbone_mode: asked.backbone_mode.unwrap_or(backbone_mode(&asked.name)),
        hidden: hidden.iter().map(|&width| width as usize).collect(),
        dropout: asked.dropout.unwrap_or(dropout(&asked.name)),
        llama: llama::decide(loaded, sequence.n_heads)?,
        lora: llama::adapters(loaded)?,
        sequence,
        layers: graph::decide(loaded, input, &data.target, outputs)?,
        policy: policy(asked),
        speech: speech(asked),
        pretrained: asked.pretrained.clone(),
        except_head: asked.strict == Strict::ExceptHead,
        options: asked.options.clone(),
        n_parameters: 0,
        n_tensors: 0,
        n_buffer_elements: 0,
        least_rows: None,
    })
}

/// Frozen encoders of speech are taken out of training, torchvision's networks only if it is asked for.
fn backbone_mode(model: &str) -> BackboneMode {
    if model == "fastconformer" { BackboneMode::Eval } else { BackboneMode::Train }
}

/// The dropout of the authors' scripts.
fn dropout(model: &str) -> f64 {
    match model {
        "itransformer" | "nest" | "fastconformer" => 0.1,
        "patchtst" => 0.2,
        _ => 0.0,
    }
}

/// Sizes as asked, else those of the authors' scripts.
fn sequence(asked: &Model, input: &[usize]) -> SequencePlan {
    let [d_model, n_heads, d_ff, n_layers] = match asked.name.as_str() {
        "itransformer" => [512, 8, 512, 2],
        "patchtst" => [128, 16, 256, 3],
        "gpt" => [768, 12, 4 * 768, 12],
        "llama" => [768, 12, 2048, 12],
        "nest" | "fastconformer" => [176, 4, 4 * 176, 16],
        _ => [128, 8, 128, 1],
    };
    let or = |value: Option<u32>, default: usize| value.map_or(default, |value| value as usize);
    let period = or(asked.period, 24);
    let patches = input.first().copied().unwrap_or(0) / period.max(1);
    SequencePlan {
        d_model: or(asked.d_model, d_model),
        n_heads: or(asked.n_heads, n_heads),
        d_ff: or(asked.d_ff, d_ff),
        n_layers: or(asked.n_layers, n_layers),
        attn_dropout: asked.attn_dropout.unwrap_or(0.15),
        bias: asked.bias.unwrap_or(false),
        activation: asked.activation.unwrap_or_default(),
        patch_len: or(asked.patch_len, 16),
        stride: or(asked.stride, 8),
        period,
        num_p: or(asked.num_p, patches),
        stable_len: or(asked.stable_len, 6),
        layers: [or(asked.ia_layers, 1), or(asked.pd_layers, 1), or(asked.ca_layers, 0)],
    }
}

/// Sizes as asked, else the authors'. DDPM takes every step unless fewer are asked for.
fn policy(asked: &Model) -> PolicyPlan {
    let theirs = PolicyPlan::default();
    let or = |value: Option<u32>, default: usize| value.map_or(default, |value| value as usize);
    let noise_scheduler = asked.noise_scheduler.unwrap_or(theirs.noise_scheduler);
    let num_train_timesteps = or(asked.num_train_timesteps, theirs.num_train_timesteps);
    let usual = match noise_scheduler {
        NoiseScheduler::Ddim => theirs.num_inference_steps.min(num_train_timesteps),
        NoiseScheduler::Ddpm => num_train_timesteps,
    };
    let widths = |dims: &Vec<u32>| dims.iter().map(|&width| width as usize).collect();
    PolicyPlan {
        down_dims: asked.down_dims.as_ref().map_or(theirs.down_dims, widths),
        diffusion_step_embed_dim: or(
            asked.diffusion_step_embed_dim,
            theirs.diffusion_step_embed_dim,
        ),
        kernel_size: or(asked.kernel_size, theirs.kernel_size),
        n_groups: or(asked.n_groups, theirs.n_groups),
        num_train_timesteps,
        num_inference_steps: or(asked.num_inference_steps, usual),
        noise_scheduler,
    }
}

/// Sizes as asked, else NEST's.
fn speech(asked: &Model) -> SpeechPlan {
    let theirs = SpeechPlan::default();
    let or = |value: Option<u32>, default: usize| value.map_or(default, |value| value as usize);
    SpeechPlan {
        subsampling_channels: or(asked.subsampling_channels, theirs.subsampling_channels),
        kernel_size: or(asked.kernel_size, theirs.kernel_size),
        codebook_size: or(asked.codebook_size, theirs.codebook_size),
        code_dim: or(asked.code_dim, theirs.code_dim),
        mask_prob: asked.mask_prob.unwrap_or(theirs.mask_prob),
        mask_block: or(asked.mask_block, theirs.mask_block),
    }
}

/// One output per class, one per series, or one number. More outputs than classes are allowed, fewer cannot be right.
fn outputs(loaded: &Loaded, data: &DataFacts) -> Result<usize, Problem> {
    let classes = data.classes.len();
    match loaded.experiment.model.num_classes.given() {
        None if classes > 0 => Ok(classes),
        None => Ok(data.target.last().copied().unwrap_or(1)),
        Some(given) if (given as usize) < classes => {
            let what = format!("is {given}, but the data has {classes} classes");
            let help = "omit it: \"auto\" is the number of classes";
            Err(loaded.problem("model.num_classes", what).help(help))
        }
        Some(given) => Ok(given as usize),
    }
}

impl ModelPlan {
    /// Whether the backbone keeps its running statistics while the head trains, and drops nothing.
    pub fn backbone_in_eval(&self) -> bool {
        self.freeze_backbone && self.backbone_mode == BackboneMode::Eval
    }

    /// The same model with the counts of what was built from it.
    pub(crate) fn counted(mut self, facts: &ModelFacts) -> Self {
        self.n_parameters = facts.lengths().sum();
        self.n_tensors = facts.parameters.len();
        self.n_buffer_elements = facts.buffer_elements();
        // A backbone that keeps its running statistics takes none of the batch.
        self.least_rows = facts.least_rows.filter(|_| !self.backbone_in_eval());
        self
    }
}
