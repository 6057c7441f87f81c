//! A model of candle-transformers under ddprun's engine: several ranks, checkpoints, resume,
//! curves, all from TOML.
//!
//! ```text
//! cargo run --release --example candle_model -- examples/candle_model.toml
//! ```
//!
//! `ConvNeXt` V2, whose layers take their tensors from a `candle_nn::VarBuilder`, with a head of
//! ddprun's layers. Parameters have timm's names, so `model.pretrained =
//! "hf:timm/convnextv2_atto.fcmae_ft_in1k"` starts from its weights.

use std::process::ExitCode;

use candle_core::{Module, Result, Tensor};
use candle_transformers::models::convnext::{Config, convnext_no_final_layer};
use ddprun::config::kind::Kind;
use ddprun::kinds::Kinds;
use ddprun::model::{Architecture, Head, Model};
use ddprun::nn::{Builder, ForwardContext, LayerNorm, Linear, VarBuilderParams, compute_dtype};
use ddprun::plan::ModelPlan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// ConvNeXt V2 of candle-transformers, for images of 64 x 64 pixels and more.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ConvNextV2Config {
    /// size of the model.
    size: Size,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Size {
    #[default]
    Atto,
    Femto,
    Pico,
}

impl Size {
    /// Its layers, and the features that it ends with.
    fn config(self) -> (Config, usize) {
        match self {
            Self::Atto => (Config::atto(), 320),
            Self::Femto => (Config::femto(), 384),
            Self::Pico => (Config::pico(), 512),
        }
    }
}

impl Kind for ConvNextV2Config {
    const NAME: &'static str = "convnext_v2";
}

impl Architecture for ConvNextV2Config {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let (config, features) = self.size.config();
        // Version 1 has `gamma`, version 2 `grn`; candle-transformers takes what it finds.
        let is_v2 = |name: &str| !name.ends_with("gamma");
        let load = |vb| convnext_no_final_layer(&config, vb);
        let body = VarBuilderParams::register(builder, is_v2, load)?;
        let head = builder.pp("head");
        Ok(Box::new(ConvNextV2 {
            norm: LayerNorm::new(&head.pp("norm"), features)?.with_eps(1e-6),
            fc: Linear::new(&head.pp("fc"), features, plan.outputs)?,
            config,
            body,
        }))
    }

    fn head(&self) -> Head {
        Head::Keys(&["head.fc."])
    }

    fn has_blocks(&self) -> bool {
        false
    }
}

struct ConvNextV2 {
    config: Config,
    body: VarBuilderParams,
    norm: LayerNorm,
    fc: Linear,
}

impl Model for ConvNextV2 {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let body = convnext_no_final_layer(&self.config, self.body.var_builder(pass))?;
        let features = body.forward(&input.to_dtype(compute_dtype(pass.precision))?)?;
        let features = features.to_dtype(candle_core::DType::F32)?;
        // candle-nn's own layer norm has no backward for a contiguous tensor, and says nothing.
        self.fc.forward(&self.norm.forward(&features)?, pass)
    }
}

/// Adds the model to a program's kinds.
pub(crate) fn register(kinds: &mut Kinds) {
    kinds.models.add::<ConvNextV2Config>();
}

fn main() -> ExitCode {
    let mut kinds = Kinds::default();
    register(&mut kinds);
    ddprun::cli::run(std::env::args_os(), &kinds)
}
