//! Your own model under ddprun's engine: several ranks, checkpoints, resume, curves, all from TOML.
//!
//! ```text
//! cargo run --release --example custom_model -- examples/custom_model.toml
//! cargo run --release --example custom_model -- resume
//! ```
//!
//! The model below mixes ddprun's layers with plain Candle operations. `[model.options]` of the TOML
//! file reaches it as it is.

use std::process::ExitCode;

use candle_core::{Result, Tensor};
use ddprun::kinds::Kinds;
use ddprun::memory::Allocator;
use ddprun::model::Model;
use ddprun::nn::{Builder, ForwardContext, Init, Linear, Param};
use ddprun::plan::ModelPlan;

/// Keeps large blocks of memory from step to step; leave it out to use another.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// A residual MLP over flattened pixels: x + scale * silu(W x), `depth` times, then a linear head.
struct ResidualMlp {
    stem: Linear,
    blocks: Vec<(Linear, Param)>,
    head: Linear,
}

fn build(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    let option = |name: &str, default: u64| {
        plan.options.get(name).and_then(serde_json::Value::as_u64).unwrap_or(default) as usize
    };
    let (width, depth) = (option("width", 128), option("depth", 2));
    let block = |index: usize| {
        let builder = builder.pp("blocks").pp(index);
        let scale = builder.param("scale", &[width], Init::Constant(0.1))?;
        Ok((Linear::new(&builder.pp("linear"), width, width)?, scale))
    };
    Ok(Box::new(ResidualMlp {
        stem: Linear::new(&builder.pp("stem"), plan.input.iter().product(), width)?,
        blocks: (0..depth).map(block).collect::<Result<_>>()?,
        head: Linear::new(&builder.pp("head"), width, plan.outputs)?,
    }))
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

fn main() -> ExitCode {
    let mut kinds = Kinds::default();
    kinds.models.register("residual_mlp", build);
    ddprun::cli::run(std::env::args_os(), &kinds)
}
