//! Models of candle-nn and candle-transformers that a user's program registers.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test binary")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use candle_core::{Module, Result, Tensor};
use candle_nn::{Activation, BatchNorm, LayerNorm, Linear, ModuleT, VarBuilder};
use ddprun::config::kind::Kind;
use ddprun::kinds::Kinds;
use ddprun::model::{Architecture, Model, VarBuilderModel};
use ddprun::nn::Builder;
use ddprun::plan::ModelPlan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::program;

pub(crate) fn register(kinds: &mut Kinds) {
    kinds.models.add::<CandleNet>();
}

/// Two linear layers of candle-nn over flattened pixels, and a norm between them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct CandleNet {
    norm: NormKind,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum NormKind {
    #[default]
    None,
    /// `candle_nn::LayerNorm`, which has no backward.
    Layer,
    /// `candle_nn::BatchNorm`.
    Batch,
}

impl Kind for CandleNet {
    const NAME: &'static str = "candle_net";
}

impl Architecture for CandleNet {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let (inputs, outputs, norm) = (plan.input.iter().product(), plan.outputs, self.norm);
        let load = move |vb: VarBuilder| Net::new(inputs, outputs, norm, &vb);
        Ok(Box::new(VarBuilderModel::new(&builder.pp("net"), load)?))
    }

    fn has_blocks(&self) -> bool {
        false
    }
}

enum Norm {
    None,
    Layer(LayerNorm),
    Batch(BatchNorm),
}

struct Net {
    fc1: Linear,
    norm: Norm,
    fc2: Linear,
}

impl Net {
    fn new(inputs: usize, outputs: usize, norm: NormKind, vb: &VarBuilder) -> Result<Self> {
        let norm = match norm {
            NormKind::None => Norm::None,
            NormKind::Layer => Norm::Layer(candle_nn::layer_norm(32, 1e-5, vb.pp("norm"))?),
            NormKind::Batch => Norm::Batch(candle_nn::batch_norm(32, 1e-5, vb.pp("norm"))?),
        };
        let fc1 = candle_nn::linear(inputs, 32, vb.pp("fc1"))?;
        Ok(Self { fc1, norm, fc2: candle_nn::linear(32, outputs, vb.pp("fc2"))? })
    }
}

impl ModuleT for Net {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let x = self.fc1.forward(&x.flatten_from(1)?)?;
        let x = match &self.norm {
            Norm::None => x,
            Norm::Layer(norm) => norm.forward(&x)?,
            Norm::Batch(norm) => norm.forward_t(&x, train)?,
        };
        self.fc2.forward(&Activation::Gelu.forward(&x)?)
    }
}

/// The experiment of `examples/custom_model.toml`, with the model above.
fn experiment(folder: &Path, norm: &str) -> PathBuf {
    let text = std::fs::read_to_string(program::example("custom_model.toml")).unwrap();
    let (before, rest) = text.split_once("[model]").unwrap();
    let (_, after) = rest.split_once("[data]").unwrap();
    let mut own = format!("{before}[model]\nname = \"candle_net\"\nnorm = \"{norm}\"\n\n");
    write!(own, "[data]{after}").unwrap();
    let path = folder.join("candle_net.toml");
    std::fs::write(&path, own).unwrap();
    path
}

#[test]
fn a_model_of_candle_transformers_trains_to_the_same_bits_on_one_rank_and_on_two() {
    let trained = |words: &[&str]| {
        let short = ["train.steps=2", "data.train_per_class=2", "data.val_per_class=1"];
        let words = [&short, &["train.batch_size=2"][..], words].concat();
        program::trained(&program::example("candle_model.toml"), &words)
    };
    let two = trained(&["distributed.devices=2"]);
    assert!(trained(&["distributed.devices=1", "distributed.shards=2"]) == two);
}

#[test]
fn a_model_of_candle_nn_learns() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = experiment(folder.path(), "none");
    let expected = ["expect.\"val/accuracy\"={ at_least = 0.5 }", "train.epochs=10"];
    for precision in ["train.precision=fp32", "train.precision=bf16"] {
        let words = [&expected[..], &[precision]].concat();
        let ended = program::run(folder.path(), &experiment, &words);
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn a_layer_without_a_backward_is_found_by_the_parameters_that_it_cuts_off() {
    let folder = tempfile::tempdir().unwrap();
    let ended = program::run(folder.path(), &experiment(folder.path(), "layer"), &[]);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{stderr}");
    for name in ["net.fc1.weight", "net.fc1.bias", "net.norm.weight", "candle-nn's `LayerNorm`"] {
        assert!(stderr.contains(name), "{stderr}");
    }
    assert!(!stderr.contains("net.fc2.weight"), "{stderr}");
}

#[test]
fn statistics_of_one_ranks_samples_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ended = program::run(folder.path(), &experiment(folder.path(), "batch"), &[]);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{stderr}");
    let said = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("`net.norm.running_mean` belongs to a `candle_nn::BatchNorm`"),
        "{stderr}"
    );
    assert!(!said.contains("backtrace"), "{stderr}");
}
