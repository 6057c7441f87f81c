//! A model of candle-nn in a program of its own: see `docs/learn/candle.md`.

use std::process::ExitCode;

use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Linear, VarBuilder, conv2d, linear};
use ddprun::config::kind::Kind;
use ddprun::kinds::Kinds;
use ddprun::model::{Architecture, Model, VarBuilderModel};
use ddprun::nn::Builder;
use ddprun::plan::ModelPlan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

// The model as it was.
struct Net {
    conv: Conv2d,
    head: Linear,
}

impl Net {
    fn load(width: usize, outputs: usize, vb: &VarBuilder) -> Result<Self> {
        let half = Conv2dConfig { stride: 2, padding: 1, ..Conv2dConfig::default() };
        let conv = conv2d(3, width, 3, half, vb.pp("conv"))?;
        Ok(Self { conv, head: linear(width, outputs, vb.pp("head"))? })
    }
}

impl Module for Net {
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let features = self.conv.forward(images)?.relu()?;
        self.head.forward(&features.mean((2, 3))?)
    }
}

/// My model, as `schema` describes it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NetConfig {
    /// channels of the convolution.
    #[schemars(range(min = 1, max = 4096))]
    width: usize,
}

impl Kind for NetConfig {
    const NAME: &'static str = "net";
}

impl Architecture for NetConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let (width, outputs) = (self.width, plan.outputs);
        let model = VarBuilderModel::new(builder, move |vb| Net::load(width, outputs, &vb))?;
        Ok(Box::new(model))
    }
}

fn main() -> ExitCode {
    let mut kinds = Kinds::default();
    kinds.models.add::<NetConfig>();
    ddprun::cli::run(std::env::args_os(), &kinds)
}
