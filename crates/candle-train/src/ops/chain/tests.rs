//! Chains compared with the same operations in Candle's graph.

use std::sync::{Arc, Mutex};

use candle_core::Device;

use super::*;
use crate::Precision;
use crate::ops::loss::{CrossEntropy, Targets};
use crate::ops::operation::SavedForBackward;
use crate::ops::testing::{flat, values};
use crate::ops::{
    Attention, GradientSink, LinearActivation, Uses, Weight, WeightUse, add, attention_packed,
    layer_norm, linear, linear_activated, relu,
};

const WIDTH: usize = 8;

/// The gradients of weights, in the order in which they were complete.
#[derive(Default)]
struct Sink(Mutex<Vec<(usize, Vec<f32>)>>);

impl GradientSink for Sink {
    fn add(&self, index: usize, gradient: &[f32]) -> Result<()> {
        self.0.lock().unwrap().push((index, gradient.to_vec()));
        Ok(())
    }

    fn complete(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

fn variable(name: &str, shape: &[usize]) -> Var {
    let values = values(name, 0, shape.iter().product());
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Weights of a transformer's layer: norm, projections, and the two layers after them.
struct Layer {
    gamma: Var,
    qkv: Var,
    widen: Var,
    narrow: Var,
}

impl Layer {
    fn new() -> Self {
        Self {
            gamma: variable("gamma", &[WIDTH]),
            qkv: variable("qkv", &[3 * WIDTH, WIDTH]),
            widen: variable("widen", &[20, WIDTH]),
            narrow: variable("narrow", &[WIDTH, 20]),
        }
    }

    /// Two sublayers with their sums; x is used three times, and a rectifier's result twice.
    fn forward(&self, x: &Tensor, sink: &Arc<dyn GradientSink>) -> Result<Tensor> {
        let weight = |var: &Var, i| Weight::learnt(var, WeightUse::new(sink, i, &Uses::default()));
        let h = layer_norm(x, None, &weight(&self.gamma, 0), None, 1e-5)?;
        let qkv = linear(&h, &weight(&self.qkv, 1), None, Precision::Fp32)?;
        let heads = Attention { heads: 2, causal: true, dropout: None, precision: Precision::Fp32 };
        let x = add(x, &attention_packed(&qkv, heads)?)?;
        let gelu = LinearActivation::Gelu;
        let h = linear_activated(&x, &weight(&self.widen, 2), None, gelu, Precision::Fp32)?;
        let y = relu(&linear(&h, &weight(&self.narrow, 3), None, Precision::Fp32)?)?;
        add(&add(&x, &y)?, &add(&y, &y)?)
    }
}

/// Results of a pass.
#[derive(Debug, PartialEq)]
struct Outcome {
    loss: Vec<f32>,
    dx: Option<Vec<f32>>,
    /// In order of arrival.
    of_weights: Vec<(usize, Vec<f32>)>,
}

fn outcome(is_chain: bool, is_x_learnt: bool) -> Outcome {
    let (layer, sink) = (Layer::new(), Arc::new(Sink::default()));
    let x = variable("x", &[2, 3, WIDTH]);
    // Not a leaf, as within a model.
    let before = if is_x_learnt { x.affine(2.0, 0.0) } else { Ok(x.as_detached_tensor()) };
    let before = before.unwrap();
    let of_weights: Arc<dyn GradientSink> = sink.clone();
    let forward = |x: &Tensor| layer.forward(&layer.forward(x, &of_weights)?, &of_weights);
    let y = if is_chain { chain(&before, forward) } else { forward(&before) };
    let loss = y.unwrap().sqr().unwrap().sum_all().unwrap();
    let store = loss.backward().unwrap();
    let of_weights = sink.0.lock().unwrap().clone();
    Outcome { loss: flat(&loss), dx: store.get(&x).map(flat), of_weights }
}

#[test]
fn a_chain_has_the_gradients_of_its_operations_in_their_order() {
    for is_x_learnt in [true, false] {
        let (chained, plain) = (outcome(true, is_x_learnt), outcome(false, is_x_learnt));
        assert_eq!(chained.of_weights.len(), 8);
        assert_eq!(chained.dx.is_some(), is_x_learnt);
        assert_eq!(chained, plain);
    }
}

#[test]
fn a_chain_of_nothing_that_learns_is_no_node() -> Result<()> {
    let x = Tensor::new(&[1f32, -2.0], &Device::Cpu)?;
    let y = chain(&x, |x| relu(&relu(x)?))?;
    assert!(!y.track_op());
    assert_eq!(y.to_vec1::<f32>()?, [1.0, 0.0]);
    let x = variable("x", &[2]);
    assert_eq!(chain(&x, |x| Ok(x.clone()))?.id(), x.id());
    Ok(())
}

#[test]
fn another_operation_inside_a_chain_is_an_error_and_ends_it() -> Result<()> {
    let x = variable("x", &[2]);
    let inside = chain(&x, |x| relu(&(relu(x)? * 2.0)?));
    assert!(inside.unwrap_err().to_string().contains("an operation outside of it"));
    let last = chain(&x, |x| relu(x)?.neg());
    assert!(last.unwrap_err().to_string().contains("not part of it"));
    // Neither of them is recorded any more.
    let y = (relu(&x)? * 2.0)?.sum_all()?;
    assert!(y.backward()?.get(&x).is_some());
    Ok(())
}

#[test]
fn a_weight_of_candles_graph_is_refused_rather_than_lost() -> Result<()> {
    let (x, w) = (variable("x", &[2, 3]), variable("w", &[4, 3]));
    let forward = |x: &Tensor| linear(x, &Weight::from(w.as_tensor()), None, Precision::Fp32);
    let refused = chain(&x, forward)?.sum_all()?.backward();
    assert!(refused.unwrap_err().to_string().contains("a weight in a chain"));
    Ok(())
}

/// Loss, gradient of x and those of the weights of two layers and a cross-entropy, which is a link
/// of their chain or a node of its own; and whether it might have written over the logits.
fn classified(goes_on: bool, is_x_learnt: bool, ends_in_relu: bool) -> Result<(Outcome, bool)> {
    let (layer, sink) = (Layer::new(), Arc::new(Sink::default()));
    let x = variable("x", &[6, WIDTH]);
    let before = if is_x_learnt { x.affine(2.0, 0.0)? } else { x.as_detached_tensor() };
    let of_weights: Arc<dyn GradientSink> = sink.clone();
    let weight = |var, i| Weight::learnt(var, WeightUse::new(&of_weights, i, &Uses::default()));
    let logits = chain(&before, |x| {
        let h = linear(x, &weight(&layer.widen, 0), None, Precision::Fp32)?;
        let y = linear(&h, &weight(&layer.narrow, 1), None, Precision::Fp32)?;
        if ends_in_relu { relu(&y) } else { Ok(y) }
    })?;
    let labels: Vec<_> = (0..6).map(|label| (label != 4).then_some(label)).collect();
    let mut in_place = false;
    let op = |may| {
        in_place = may;
        let targets = Targets::Labels(labels);
        CrossEntropy { targets, smoothing: 0.1, divisor: 5.0, rows: SavedForBackward::default() }
    };
    let loss = if goes_on { extended(&logits, op)? } else { apply([&logits], op(false))? };
    let store = (&loss * 3.0)?.backward()?;
    let of_weights = sink.0.lock().unwrap().clone();
    Ok((Outcome { loss: flat(&loss), dx: store.get(&x).map(flat), of_weights }, in_place))
}

#[test]
fn a_chain_goes_on_with_what_follows_it() -> Result<()> {
    for is_x_learnt in [true, false] {
        for ends_in_relu in [true, false] {
            let (longer, in_place) = classified(true, is_x_learnt, ends_in_relu)?;
            let (two, _) = classified(false, is_x_learnt, ends_in_relu)?;
            assert_eq!((longer.of_weights.len(), longer.dx.is_some()), (2, is_x_learnt));
            assert_eq!(longer, two);
            assert_eq!(in_place, !ends_in_relu, "a rectifier reads its result in backward");
        }
    }
    Ok(())
}

#[test]
fn a_result_that_a_chain_went_on_with_has_no_other_use() -> Result<()> {
    let (x, w) = (variable("x", &[1, 3]), variable("w", &[2, 3]));
    let of_weights: Arc<dyn GradientSink> = Arc::new(Sink::default());
    let weight = Weight::learnt(&w, WeightUse::new(&of_weights, 0, &Uses::default()));
    let logits = chain(&x, |x| linear(x, &weight, None, Precision::Fp32))?;
    let op = |_| {
        let targets = Targets::Labels(vec![Some(1)]);
        CrossEntropy { targets, smoothing: 0.0, divisor: 1.0, rows: SavedForBackward::default() }
    };
    extended(&logits, op)?;
    let other = logits.sum_all()?.backward();
    assert!(other.unwrap_err().to_string().contains("a chain that went on"));
    Ok(())
}
