//! The small convolutional network of PyTorch's MNIST example.
//!
//! `conv1` 3x3 (32) - relu - `conv2` 3x3 (64) - relu - max-pool 2 - dropout 0.25 - flatten (NCHW) -
//! `fc1` (128) -
//! relu - dropout 0.5 - `fc2`. No padding, so 28x28 leaves 64 x 12 x 12 = 9216 values for `fc1`.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::{Architecture, Head, Model};
use crate::config::kind::Kind;
use crate::nn::{Builder, Conv2d, ConvShape, Dropout, ForwardContext, Linear};
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, LinearActivation, Window};
use crate::plan::{Modality, ModelPlan};

const DENSE: Window = Window { stride: 1, padding: 0 };

/// The small convolutional network of PyTorch's MNIST example.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SimpleCnnConfig {}

impl Kind for SimpleCnnConfig {
    const NAME: &'static str = "simple_cnn";
}

impl Architecture for SimpleCnnConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        let (Some(rows), Some(cols)) = (height.checked_sub(4), width.checked_sub(4)) else {
            bail!("images of {height}x{width} are too small, at least 6x6 is needed")
        };
        let pooled = (rows / 2) * (cols / 2);
        if pooled == 0 {
            bail!("images of {height}x{width} are too small, at least 6x6 is needed");
        }
        let conv = |name: &str, inputs, outputs| {
            Conv2d::new(
                &builder.pp(name),
                ConvShape { inputs, outputs, kernel: 3, window: DENSE, groups: 1 },
            )
        };
        Ok(Box::new(SimpleCnn {
            conv1: conv("conv1", channels, 32)?,
            conv2: conv("conv2", 32, 64)?,
            dropout1: Dropout::new(&builder.pp("dropout1"), 0.25),
            fc1: Linear::new(&builder.pp("fc1"), 64 * pooled, 128)?,
            dropout2: Dropout::new(&builder.pp("dropout2"), 0.5),
            fc2: Linear::new(&builder.pp("fc2"), 128, plan.outputs)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["fc2."])
    }

    fn has_blocks(&self) -> bool {
        false
    }
}

struct SimpleCnn {
    conv1: Conv2d,
    conv2: Conv2d,
    dropout1: Dropout,
    fc1: Linear,
    dropout2: Dropout,
    fc2: Linear,
}

impl Model for SimpleCnn {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let features = ops::chain(input, |x| {
            let x = ops::nchw_to_nhwc(x)?;
            let x = ops::relu(&self.conv1.autocast(&x, pass)?)?;
            let x = ops::relu(&self.conv2.autocast(&x, pass)?)?;
            let x = ops::max_pool2d(&x, 2, Window { stride: 2, padding: 0 })?;
            ops::nhwc_to_nchw(&self.dropout1.forward(&x, pass)?)
        })?;
        ops::chain(&features.flatten_from(1)?, |x| {
            let x = ops::relu(&self.fc1.forward(x, pass)?)?;
            self.fc2.forward(&self.dropout2.forward(&x, pass)?, pass)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let x = self.conv1.onnx(graph, &x, [0; 2])?;
        let x = graph.unary("Relu", &x, &[]);
        let x = self.conv2.onnx(graph, &x, [0; 2])?;
        let x = graph.unary("Relu", &x, &[]);
        let x = graph.max_pool(&x, &Sliding::new(&[2, 2], &[2, 2], &[0, 0], &[1, 1]));
        let x = graph.planes(&x);
        let x = graph.flattened(&x, 1);
        let x = self.fc1.onnx_activated(graph, &x, LinearActivation::Relu)?;
        self.fc2.onnx(graph, &x)
    }
}
