//! Recordings that are padded to one length: their frames and lengths, and means over what is no
//! padding.
//!
//! A sample is (2, frames + 1, bands): features of clean and of noisy speech; the first number of
//! the last row is the number of frames that are not padding.

use candle_core::{Result, Tensor};

use crate::onnx::{Attribute, Graph, Value};

/// Clean (0) or noisy (1) speech of a batch, (n, frames, mels), and the lengths of its samples.
pub fn frames_and_lengths(inputs: &Tensor, kind: usize) -> Result<(Tensor, Vec<usize>)> {
    let (_, _, rows, _) = inputs.dims4()?;
    let speech = inputs.narrow(1, kind, 1)?.squeeze(1)?;
    let lengths = speech.narrow(1, rows - 1, 1)?.narrow(2, 0, 1)?.flatten_all()?;
    let lengths = lengths.to_vec1::<f32>()?.into_iter().map(|length| length as usize).collect();
    Ok((speech.narrow(1, 0, rows - 1)?.contiguous()?, lengths))
}

/// [`frames_and_lengths`] in a graph of ONNX; lengths are (n, 1).
pub fn frames_and_lengths_onnx(graph: &mut Graph, inputs: &Value, kind: usize) -> (Value, Value) {
    let rows = inputs.dims()[2].unwrap_or(1);
    let speech = graph.narrowed(inputs, 1, kind, 1);
    let speech = graph.squeezed(&speech, &[1]);
    let last = graph.narrowed(&speech, 1, rows - 1, 1);
    let last = graph.squeezed(&last, &[1]);
    let lengths = graph.narrowed(&last, 1, 0, 1);
    let lengths = graph.unary("Floor", &lengths, &[]);
    (graph.narrowed(&speech, 1, 0, rows - 1), lengths)
}

/// Mean over the first `lengths[i]` steps of sample i, at least one: x (n, steps, c) -> (n, c).
pub fn mean_within(x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
    let steps = x.dim(1)?;
    let share = |&length: &usize| {
        let length = length.clamp(1, steps);
        (0..steps).map(move |step| if step < length { 1.0 / length as f32 } else { 0.0 })
    };
    let shares: Vec<f32> = lengths.iter().flat_map(share).collect();
    let shares = Tensor::from_vec(shares, (lengths.len(), steps, 1), x.device())?;
    x.broadcast_mul(&shares)?.sum(1)
}

/// [`mean_within`] in a graph of ONNX; lengths are (n, 1).
pub fn mean_within_onnx(graph: &mut Graph, x: &Value, lengths: &Value) -> Value {
    let steps = x.dims()[1].unwrap_or(1);
    let [least, most] = [1.0, steps as f64].map(|limit| graph.scalar(limit));
    let lengths = graph.binary("Max", lengths, &least);
    let lengths = graph.binary("Min", &lengths, &most);
    let is_own = graph.is_within(steps, &lengths);
    let is_own = graph.unary("Cast", &is_own, &[Attribute::Int("to", 1)]);
    let shares = graph.div(&is_own, &lengths);
    let shares = graph.unsqueezed(&shares, &[2]);
    let shared = graph.mul(x, &shares);
    let mean = graph.reduced("ReduceSum", &shared, &[1]);
    graph.squeezed(&mean, &[1])
}
