//! `ModelPlan -> forward function + Params`: the registry and the models that come with it.
//!
//! Images arrive as (n, channels, height, width); models turn them to NHWC at their entry.
//! Parameters carry the names of the public original, so that its weights load.
//!
//! A model of your own is a struct of options that builds named parameters and a forward function:
//!
//! ```
//! use candle_core::{Result, Tensor};
//! use ddprun_plan::config::kind::{Choice, Kind};
//! use ddprun_train::model::{Architecture, Model, Models};
//! use candle_train::nn::{Builder, ForwardContext, Linear};
//! use ddprun_plan::plan::ModelPlan;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! /// A linear layer over all values of a sample.
//! #[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields, default)]
//! struct LinearConfig {}
//!
//! impl Kind for LinearConfig {
//!     const NAME: &'static str = "linear";
//! }
//!
//! impl Architecture for LinearConfig {
//!     fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
//!         let n = plan.input.iter().product();
//!         Ok(Box::new(Net(Linear::new(&builder.pp("fc"), n, plan.outputs)?)))
//!     }
//! }
//!
//! struct Net(Linear);
//!
//! impl Model for Net {
//!     fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
//!         self.0.forward(&input.flatten_from(1)?, pass)
//!     }
//! }
//!
//! let mut models = Models::default();
//! models.add::<LinearConfig>();
//! let plan = ModelPlan::new(Choice::of(&LinearConfig {}), &[1, 8, 8], 10);
//! let facts = models.describe(&plan).unwrap();
//! assert_eq!(facts.lengths().sum::<usize>(), 650);
//! ```

mod airbench94;
mod architecture;
mod base;
mod cnn;
mod conv_norm;
mod convnext;
mod densenet;
mod dlinear;
mod efficientnet;
mod informer_encoder;
mod gpt;
mod graph;
mod hub;
mod inverted_residual;
mod itransformer;
pub mod layers;
mod llama;
mod mlp;
mod mobilenet_v2;
mod mobilenet_v3;
mod names;
pub mod padded_frames;
mod patchtst;
pub mod peft;
mod preference_model;
mod pretrained;
mod recurrent;
mod regnet;
mod resnet;
mod series;
#[cfg(test)]
mod tests;
mod timebridge;
mod var_builder;
mod vgg;
mod vit;
mod whitening;

use candle_core::{Result, Tensor, bail};

use crate::nn::{ForwardContext, Params};
use crate::onnx::{Graph, Value};
use crate::registry::Registry;
use crate::rng::Key;

pub use airbench94::{Airbench94Config, Width};
pub use architecture::{
    Architecture, BACKBONE_MODE, BackboneMode, Error, Head, ModelFamily, Models, TorchvisionModel,
    check_backbone_mode, check_heads,
};
pub use base::base_hash;
pub use cnn::SimpleCnnConfig;
pub use convnext::{ConvNextConfig, ConvNextSize};
pub use densenet::{DenseNetConfig, DenseNetSize};
pub use dlinear::DLinearConfig;
pub use efficientnet::{EfficientNetConfig, EfficientNetSize};
pub use gpt::{Gelu, GptConfig};
pub use graph::GraphConfig;
pub use hub::trained_on;
pub use itransformer::ITransformerConfig;
pub use llama::{HiddenAct, LayerType, LlamaConfig, LlamaFamily, RopeScaling, RopeType};
pub use mlp::MlpConfig;
pub use mobilenet_v2::MobileNetV2Config;
pub use mobilenet_v3::{MobileNetV3Config, MobileNetV3Size};
pub use names::{ExportedWeights, Library, Naming};
pub use patchtst::PatchTstConfig;
pub use peft::Lora;
pub use preference_model::{PreferenceModel, Reference};
pub use pretrained::{DescriptionError, InferredOptions, PretrainedError, inherited_options};
pub use recurrent::{RecurrentConfig, RecurrentNetwork};
pub use regnet::{RegNetConfig, RegNetSize};
pub use resnet::{Backbone, Block, HeadKind, ResNetConfig, Shortcut, Stem, Variant};
pub use timebridge::TimeBridgeConfig;
pub use var_builder::VarBuilderModel;
pub use vgg::{VggConfig, VggSize};
pub use vit::{VitConfig, VitSize};
pub use whitening::Whitening;

/// A forward function over parameters that were registered when it was built.
pub trait Model: Send + Sync {
    /// (n, ...) f32 -> (n, outputs) f32; a forecast is (n, time steps, series).
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor>;

    /// Outputs and targets of the loss for a batch: by default those of [`Model::forward`], and
    /// `targets`. A model with another training task (predicting noise, or masked tokens) overrides
    /// it. `draws` are the keys of the samples' random numbers, derived from seed, epoch and
    /// sample, so that they are the same at any world size; in evaluations the epoch does not
    /// matter.
    fn compare(
        &self,
        inputs: &Tensor,
        targets: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Comparison> {
        let _ = draws;
        Ok(Comparison { outputs: self.forward(inputs, pass)?, targets: targets.clone() })
    }

    /// Predictions for `inputs`, in the shape of the targets, if they are not the outputs of
    /// [`Model::compare`]; evaluations measure their errors. `draws` as there.
    fn predict(
        &self,
        inputs: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Option<Tensor>> {
        let _ = (inputs, draws, pass);
        Ok(None)
    }

    /// Writes [`Model::forward`] in evaluation mode into an ONNX graph, node by node; `input` has
    /// the shape that `forward` takes. Layers of [`crate::nn`] have an `onnx` of their own. Without
    /// it the model cannot be exported as ONNX.
    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let _ = (graph, input);
        bail!("it does not say how it is written (`Model::onnx`)")
    }

    /// Parameters of the copy that it is compared with, which are to have the values of the start.
    fn reference(&self) -> Option<&Params> {
        None
    }

    /// True if [`Model::predict`] takes many passes, so that not every evaluation calls it.
    fn samples_in_steps(&self) -> bool {
        false
    }
}

/// Predictions of `model` for `inputs`; each sample draws from its key, if the model draws.
pub fn predict(
    model: &dyn Model,
    inputs: &Tensor,
    draws: &[Key],
    pass: &ForwardContext,
) -> Result<Tensor> {
    match model.predict(inputs, draws, pass)? {
        Some(answer) => Ok(answer),
        None => model.forward(inputs, pass),
    }
}

/// Arguments of a loss.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Outputs, in the graph.
    pub outputs: Tensor,
    pub targets: Tensor,
}

impl Default for Models {
    /// The models that come with ddprun.
    fn default() -> Self {
        let mut all = Self(Registry::empty());
        all.add::<MlpConfig>();
        all.add::<SimpleCnnConfig>();
        all.add::<Airbench94Config>();
        resnet::register(&mut all);
        convnext::register(&mut all);
        all.add::<MobileNetV2Config>();
        mobilenet_v3::register(&mut all);
        efficientnet::register(&mut all);
        regnet::register(&mut all);
        densenet::register(&mut all);
        vgg::register(&mut all);
        vit::register(&mut all);
        all.add::<DLinearConfig>();
        recurrent::register(&mut all);
        all.add::<ITransformerConfig>();
        all.add::<PatchTstConfig>();
        all.add::<TimeBridgeConfig>();
        all.add::<GptConfig>();
        all.add::<LlamaConfig>();
        all.add::<GraphConfig>();
        all
    }
}
