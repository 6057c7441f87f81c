//! `[model]`: the model to train; `[train]`: for how long, in which batches and precision.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use train_numbers::Convolutions;

use crate::config::kind::{Entry, Options};
use crate::config::schema::{MAX_EPOCHS, MAX_SAMPLES, MAX_STEPS, NO_TRAINING, WEEK};
use crate::config::table::{SAFE, TAKEN, table};
use crate::config::values::{Auto, Duration, Strict};

/// A remedy for a run of length 0.
const EVALUATE: &str = "to only evaluate, use `ddprun eval`";
// Lightning and transformers do not clip then; PyTorch's function leaves nothing of the gradients.
const NO_CLIPPING: &str = "for no clipping, remove it, or pass `~{key}` on the command line";

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
        /// gpt: options that are not given are read from the config.json beside the weights, and an
        /// unsupported architecture (routed experts, quantised weights, ...) is refused. gpt:
        /// GPT-2's weights load in the formats of transformers and nanoGPT; extra positions are cut
        /// off at `data.seq_len`. Or a name on the Hugging Face hub, which is fetched once:
        /// "hf:ORG/NAME", with "@REVISION" for a branch, tag or commit and "/FILE" for one file,
        /// such as `hf:timm/resnet18.a1_in1k`. Or the weights of one of your runs: "run:NAME",
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

table! {
    /// For how long, in which batches and precision.
    #[schemars(extend("x-eval" = NO_TRAINING))]
    pub struct Train {
        /// Epochs to train. One of `epochs`, `steps` and `time` is required; the first limit
        /// reached ends the run.
        #[schemars(
            range(min = 1, max = MAX_EPOCHS), example = 50,
            extend(
                "x-resume" = SAFE, "x-if-zero" = EVALUATE,
                "x-aliases" = ["num_epochs", "max_epochs"],
            ),
        )]
        pub epochs: Option<u64>,
        /// Optimizer steps to train.
        #[schemars(
            range(min = 1, max = MAX_STEPS), example = 10_000,
            extend("x-aliases" = ["max_steps"], "x-resume" = SAFE, "x-if-zero" = EVALUATE),
        )]
        pub steps: Option<u64>,
        /// Wall-clock time to train: "90s", "30m", "2h", summed over all starts of the run; after a
        /// restart or `ddprun resume`, the time of earlier starts counts up to their checkpoint.
        /// `ddprun resume train.time=4h` continues a run that reached its limit.
        #[schemars(extend(
            "exclusiveMinimum" = 0, "maximum" = 52 * WEEK, "examples" = ["2h"], "x-resume" = SAFE,
        ))]
        pub time: Option<Duration>,
        /// Samples per pass (forward and backward) and rank: the micro-batch. Of these three keys,
        /// give two, or one of the batch sizes: each rank then makes one pass per step and shard.
        /// The third follows from
        /// `global_batch_size = batch_size x gradient_accumulation_steps x ranks`.
        #[schemars(extend("x-aliases" = ["bs"], "minimum" = 1, "maximum" = MAX_SAMPLES))]
        pub batch_size: Auto<u32> = Auto::Auto,
        /// Samples per step, over all ranks and passes.
        #[schemars(extend("minimum" = 1, "maximum" = MAX_SAMPLES))]
        pub global_batch_size: Auto<u32> = Auto::Auto,
        /// Passes per step and rank.
        #[schemars(extend(
            "minimum" = 1, "maximum" = 65_536, "x-aliases" = ["accumulate_grad_batches"],
        ))]
        pub gradient_accumulation_steps: Auto<u32> = Auto::Auto,
        /// Clip the global gradient norm (L2, over all parameters) to this value.
        #[schemars(
            example = 1.0, extend("exclusiveMinimum" = 0.0, "x-if-zero" = NO_CLIPPING),
        )]
        pub clip_grad_norm: Option<f64>,
        /// Clip each gradient element to this absolute value.
        #[schemars(
            example = 0.5, extend("exclusiveMinimum" = 0.0, "x-if-zero" = NO_CLIPPING),
        )]
        pub clip_grad_value: Option<f64>,
        /// Gaussian noise added to clipped gradients, with variance `gradient_noise` / (1 + t)^0.55
        /// after t steps (Neelakantan et al. 2015 use 0.01, 0.3 or 1.0); the same on every rank.
        /// Computed on the CPU.
        #[schemars(example = 0.01, extend("exclusiveMinimum" = 0.0))]
        pub gradient_noise: Option<f64>,
        /// Precision of matrix products and convolutions: "fp32", "bf16", "fp16" or "amp": bf16 on
        /// GPUs, on CPUs with AMX and on AMD CPUs with AVX512-BF16, else fp32. fp16 on a CPU, and
        /// bf16 on one without AMX or AVX512-BF16, is emulated by rounding fp32, which is slower
        /// than fp32. Weights, norms, losses and reductions are always 32-bit.
        #[schemars(extend("x-eval" = TAKEN))]
        pub precision: PrecisionChoice = PrecisionChoice::Fp32,
        /// "fast": the fastest algorithm for each convolution; for 3x3 kernels with stride 1 that
        /// is Winograd's, whose rounding error is about thirty times that of a plain sum (3e-5 of a
        /// typical value instead of 1e-6). "direct": plain sums only, to compare results with
        /// another framework.
        #[schemars(
            with = "String", extend("enum" = ["fast", "direct"], "x-eval" = TAKEN),
        )]
        pub convolutions: Convolutions = Convolutions::Fast,
        /// Keep only the inputs of a model's blocks (such as residual blocks) and recompute their
        /// activations in backward: bitwise identical results with less memory, in about a third
        /// more time. `ddprun plan` shows how much is saved.
        pub activation_checkpointing: bool = false,
        /// Replay forward and backward of a pass on a GPU in one launch, as a CUDA graph. "auto":
        /// if the pass does not depend on the CPU and the first replays are bitwise identical to
        /// the pass itself. true: required, or the run fails (possible with several ranks, too, but
        /// without overlap). false: never. docs/gpu.md lists the conditions.
        pub cuda_graph: Auto<bool> = Auto::Auto,
        /// If loss or gradient is NaN or infinite: "stop" ends the run (exit 4), "skip" skips the
        /// update and continues.
        pub on_non_finite: OnNonFinite = OnNonFinite::Stop,
    }
}

/// `train.precision`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrecisionChoice {
    /// 32-bit everywhere.
    Fp32,
    /// bfloat16 autocast.
    Bf16,
    /// half-precision autocast with a gradient scaler.
    Fp16,
    /// The fastest that the device has: bf16 on GPUs, on CPUs with AMX and on AMD's with
    /// AVX512-BF16, else fp32.
    Amp,
}

/// Policy for losses and gradients that are not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// Stop all ranks, exit 4.
    Stop,
    /// Leave the parameters as they are and go on with the next step.
    Skip,
}
