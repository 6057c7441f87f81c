//! Your own model under ddprun's engine: several ranks, checkpoints, resume, curves, all from TOML.
//!
//! ```text
//! cargo run --release --example custom_model -- examples/custom_model.toml
//! cargo run --release --example custom_model -- resume
//! ```
//!
//! The model below mixes ddprun's layers with plain Candle operations. Its options are fields: they
//! stand in `[model]` of the TOML file, are checked like those of the models that come with ddprun,
//! and are listed by `schema`.

use std::process::ExitCode;

use candle_core::{Result, Tensor};
use ddprun::config::kind::Kind;
use ddprun::kinds::Kinds;
use ddprun::memory::Allocator;
use ddprun::model::{Architecture, Head, Model};
use ddprun::nn::{Builder, ForwardContext, Init, Linear, Param};
use ddprun::plan::ModelPlan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keeps large blocks of memory from step to step; leave it out to use another.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// A residual MLP over flattened pixels: x + scale * silu(W x), `depth` times, then a linear head.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ResidualMlpConfig {
    /// width of every hidden layer.
    #[schemars(range(min = 1, max = 65536))]
    width: usize,
    /// residual blocks.
    #[schemars(range(min = 1, max = 1024))]
    depth: usize,
}

impl Default for ResidualMlpConfig {
    fn default() -> Self {
        Self { width: 128, depth: 2 }
    }
}

impl Kind for ResidualMlpConfig {
    const NAME: &'static str = "residual_mlp";
}

impl Architecture for ResidualMlpConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let width = self.width;
        let block = |index: usize| {
            let builder = builder.pp("blocks").pp(index);
            let scale = builder.param("scale", &[width], Init::Constant(0.1))?;
            Ok((Linear::new(&builder.pp("linear"), width, width)?, scale))
        };
        Ok(Box::new(ResidualMlp {
            stem: Linear::new(&builder.pp("stem"), plan.input.iter().product(), width)?,
            blocks: (0..self.depth).map(block).collect::<Result<_>>()?,
            head: Linear::new(&builder.pp("head"), width, plan.outputs)?,
        }))
    }

    fn head(&self) -> Head {
        Head::Keys(&["head."])
    }
}

struct ResidualMlp {
    stem: Linear,
    blocks: Vec<(Linear, Param)>,
    head: Linear,
}

impl Model for ResidualMlp {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let mut x = self.stem.forward(&input.flatten_from(1)?, pass)?;
        for (linear, scale) in &self.blocks {
            let y = linear.forward(&x, pass)?.silu()?;
            x = (x + y.broadcast_mul(&scale.tensor()?)?)?;
        }
        self.head.forward(&x, pass)
    }
}

/// ddprun's kinds, and this one.
pub(crate) fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.models.add::<ResidualMlpConfig>();
    kinds
}

fn main() -> ExitCode {
    ddprun::cli::run(std::env::args_os(), &kinds())
}
