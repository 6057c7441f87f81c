//! `DLinear` (Zeng et al., AAAI 2023, <https://arxiv.org/abs/2205.13504>): a moving average takes a
//! series apart, and one linear layer over time predicts each part; all series share them.
//!
//! Keys: `Linear_Seasonal.{weight,bias}`, `Linear_Trend.{weight,bias}`.

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::series::Window;
use super::{Architecture, Model};
use crate::config::kind::Kind;
use crate::nn::{Builder, ForwardContext, Init, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Average};
use crate::plan::{Modality, ModelPlan};

/// Time steps of the moving average.
const KERNEL: usize = 25;

/// `DLinear`: a moving average decomposes each series into trend and remainder; one linear layer
/// over time predicts each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DLinearConfig {}

impl Kind for DLinearConfig {
    const NAME: &'static str = "dlinear";
}

impl Architecture for DLinearConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let window = Window::of(plan)?;
        let linear = |name: &str| {
            let weight = Init::Constant(1.0 / window.seq_len as f64);
            let bias = Init::torch_default(window.seq_len);
            Linear::with_init(
                &builder.pp(name),
                window.seq_len,
                window.pred_len,
                weight,
                Some(bias),
            )
        };
        Ok(Box::new(DLinear {
            window,
            seasonal: linear("Linear_Seasonal")?,
            trend: linear("Linear_Trend")?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Series]
    }

    // Both of its layers depend on what is predicted, so neither is a head.

    fn has_blocks(&self) -> bool {
        false
    }
}

struct DLinear {
    window: Window,
    seasonal: Linear,
    trend: Linear,
}

impl Model for DLinear {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = ops::transpose_adjacent(&self.window.series(input)?, 1)?;
        let trend = ops::moving_average(&x, KERNEL, Average::Centred)?;
        let seasonal = (x - &trend)?;
        ops::chain(&trend, |trend| {
            let trend = self.trend.forward(trend, pass)?;
            ops::transpose_adjacent(&ops::add(&trend, &self.seasonal.forward(&seasonal, pass)?)?, 1)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = self.window.series_onnx(graph, input);
        let x = graph.transposed(&x, &[0, 2, 1]);
        let trend = Average::Centred.onnx(graph, &x, KERNEL);
        let seasonal = graph.sub(&x, &trend);
        let trend = self.trend.onnx(graph, &trend)?;
        let seasonal = self.seasonal.onnx(graph, &seasonal)?;
        let y = graph.add(&trend, &seasonal);
        Ok(graph.transposed(&y, &[0, 2, 1]))
    }
}
