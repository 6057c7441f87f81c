//! `[model]`: what is trained.

use std::path::PathBuf;

use crate::config::kind::{Entry, Options};
use crate::config::table::table;
use crate::config::values::{Auto, Strict};

table! {
    /// What is trained.
    #[schemars(extend("x-eval" = "the weights were trained in the model as it is"))]
    pub struct Model {
        /// The model to train: one of these, or one registered by your own program. Required.
        #[schemars(example = &"resnet18")]
        pub name: String,
        /// Number of outputs; "auto" = the number of classes in the data, of series in a forecast,
        /// or 1 for regression.
        #[schemars(extend("minimum" = 1, "maximum" = 1 << 20))]
        pub num_classes: Auto<u32> = Auto::Auto,
        /// Pretrained weights: a safetensors state dict with PyTorch's parameter names, in one file
        /// or as the index of several (model.safetensors.index.json). The prefixes `module.` and
        /// `_orig_mod.`, which `DistributedDataParallel` and torch.compile add, are ignored. llama,
        /// gpt: sizes that are not given are read from the config.json beside the weights, and an
        /// unsupported architecture (granite, a sliding window shorter than `data.seq_len`, ...) is
        /// refused. gpt: GPT-2's weights load in the formats of transformers and nanoGPT; extra
        /// positions are cut off at `data.seq_len`. Or the weights of one of your runs: "run:NAME",
        /// "run:NAME/best", "run:NAME/latest" or "run:NAME/step-00000300", where NAME is a run's
        /// name or id, or a sweep's name for its best trial; or a folder of checkpoints. Averaged
        /// weights (ema, swa) are used if the run keeps them.
        #[schemars(example = &"weights/resnet18.safetensors")]
        pub pretrained: Option<PathBuf>,
        /// Whether every tensor of `pretrained` must fit: true, or `"except_head"`: the output
        /// layer may be missing or have another size, and then starts from random values. Models
        /// without a separate output layer (dlinear, `diffusion_policy`, nest, a llama with tied
        /// embeddings) accept only `true`.
        pub strict: Strict = Strict::All,
        /// Options of the model.
        pub options: Options,
        /// graph: its layers, in order. Shapes are inferred from the data and checked before
        /// anything is built; `ddprun plan` prints them. Parameter names, options and initial
        /// values are PyTorch's.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub layers: Vec<Entry>,
    }
}
