//! Windows of time series, as forecasting models share them.

use candle_core::{Result, Tensor, bail};

use crate::onnx::{Graph, Value};
use crate::ops::{self, Deviation};
use crate::plan::ModelPlan;

/// Sizes of a forecast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Number of input time steps.
    pub(super) seq_len: usize,
    /// Number of predicted time steps.
    pub(super) pred_len: usize,
    pub(super) series: usize,
    /// Features of the date.
    pub(super) marks: usize,
}

impl Window {
    /// Reads the sizes from the plan.
    pub(super) fn of(plan: &ModelPlan) -> Result<Self> {
        match (&plan.input[..], &plan.target[..]) {
            (&[seq_len, rows], &[pred_len, series]) if rows >= series => {
                Ok(Self { seq_len, pred_len, series, marks: rows - series })
            }
            (input, target) => bail!(
                "it predicts series: samples are (time steps, series and features of the date) \
                 and targets (time steps, series), not {input:?} and {target:?}; use `data.name = \
                 \"csv_forecast\"`"
            ),
        }
    }

    /// The series of an input (n, time steps, series + marks): (n, time steps, series).
    pub(super) fn series(&self, input: &Tensor) -> Result<Tensor> {
        ops::narrow(input, 2, 0, self.series)
    }

    /// [`Window::series`] in a graph of ONNX.
    pub(super) fn series_onnx(&self, graph: &mut Graph, input: &Value) -> Value {
        graph.narrowed(input, 2, 0, self.series)
    }
}

/// [`InstanceNorm`](crate::ops::InstanceNorm) in a graph of ONNX.
pub(super) struct InstanceNormOnnx {
    /// (n, rows, time steps)
    pub(super) rows: Value,
    /// (n, series, 1)
    mean: Value,
    /// (n, series, 1)
    scale: Value,
}

impl InstanceNormOnnx {
    /// Standardises the first `series` rows of windows x (n, time steps, rows).
    pub(super) fn new(graph: &mut Graph, x: &Value, series: usize, deviation: Deviation) -> Self {
        let steps = x.dims()[1].unwrap_or(1);
        let rows = x.features();
        let all = graph.transposed(x, &[0, 2, 1]);
        let values = graph.narrowed(&all, 1, 0, series);
        let mean = graph.reduced("ReduceMean", &values, &[2]);
        let centred = graph.sub(&values, &mean);
        let squares = graph.mul(&centred, &centred);
        let squares = graph.reduced("ReduceSum", &squares, &[2]);
        let [n, inside, outside] = deviation.numbers(steps);
        let variance = graph.scaled(&squares, 1.0 / n);
        let inside = graph.scalar(inside);
        let variance = graph.add(&variance, &inside);
        let scale = graph.unary("Sqrt", &variance, &[]);
        let outside = graph.scalar(outside);
        let divisor = graph.add(&scale, &outside);
        let mut standardised = graph.div(&centred, &divisor);
        if rows > series {
            let others = graph.narrowed(&all, 1, series, rows - series);
            standardised = graph.concatenated(&[&standardised, &others], 1);
        }
        Self { rows: standardised, mean, scale }
    }

    /// Maps a forecast (n, series, time steps) back to the scale of its window: (n, time steps,
    /// series).
    pub(super) fn denormalise(&self, graph: &mut Graph, forecast: &Value) -> Value {
        let scaled = graph.mul(forecast, &self.scale);
        let shifted = graph.add(&scaled, &self.mean);
        graph.transposed(&shifted, &[0, 2, 1])
    }
}
