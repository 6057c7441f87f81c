//! Batch norms whose parts run on threads of their own against PyTorch's over the whole batch (f64,
//! `golden/sync_batchnorm.py`): outputs, gradients, running statistics.

use std::fmt;
use std::sync::{Arc, Barrier, Mutex};

use candle_core::{Device, Result, Tensor, Var};
use ddprun::nn::{BatchNorm2d, Builder, Conv2d, ConvShape, ForwardContext, Init};
use ddprun::ops::{Activation, BatchGroup, GradientSink, SyncGroup, Window};
use ddprun::plan::Precision;
use ddprun::rng::{Key, Purpose};
use serde_json::Value;

use crate::golden::{Collected, check_sum, fill, fill_params, flat, near, near_summary, number};

const CHANNELS: usize = 4;
/// Pixels of a sample.
const PIXELS: usize = 9;
/// Samples of each part.
const PARTS: [usize; 3] = [4, 1, 2];

/// Parts that wait for each other.
struct Parts {
    barrier: Barrier,
    values: Mutex<Vec<Vec<f64>>>,
}

struct Part(usize, Arc<Parts>);

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {}", self.0)
    }
}

impl SyncGroup for Part {
    fn all_gather(&self, mine: Vec<f64>) -> Result<Vec<Vec<f64>>> {
        let Self(index, parts) = self;
        parts.values.lock().unwrap()[*index] = mine;
        parts.barrier.wait();
        let all = parts.values.lock().unwrap().clone();
        parts.barrier.wait();
        Ok(all)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Layers {
    Plain,
    WithResidual,
    AfterConvolution,
}

/// What a part of the batch has in the end: the output, the gradients of the inputs, those of the
/// weights, the running statistics.
struct Found {
    y: Vec<f32>,
    inputs: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    running: Vec<Vec<f32>>,
}

/// The samples from `first` of a batch whose values follow from its name, channels last.
fn samples(name: &str, first: usize, n: usize) -> Var {
    let all = fill(name, PARTS.iter().sum::<usize>() * CHANNELS * PIXELS);
    let all = Tensor::from_iter(all.into_iter().map(|v| v as f32), &Device::Cpu).unwrap();
    let all = all.reshape(((), CHANNELS, 3, 3)).unwrap().permute((0, 2, 3, 1)).unwrap();
    Var::from_tensor(&all.narrow(0, first, n).unwrap().contiguous().unwrap()).unwrap()
}

/// Forward and backward of the samples from `first`, normalised together with those of the group's
/// other parts.
fn run(layers: Layers, (first, n): (usize, usize), group: Option<BatchGroup>) -> Result<Found> {
    let builder = Builder::new(1);
    let conv = if layers == Layers::AfterConvolution {
        let window = Window { stride: 1, padding: 1 };
        let shape = ConvShape { inputs: CHANNELS, outputs: CHANNELS, kernel: 3, window, groups: 1 };
        Some(Conv2d::without_bias(&builder.pp(0), shape, Init::Constant(0.0))?)
    } else {
        None
    };
    let at = if conv.is_some() { builder.pp(1) } else { builder.clone() };
    let norm = BatchNorm2d::new(&at, CHANNELS, PIXELS, 1.0)?;
    let params = builder.finish();
    fill_params(&params);
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    let mut pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
    pass.sync_batchnorm = group;
    params.begin_pass(Some(&sink));
    let (x, residual) = (samples("x", first, n), samples("residual", first, n));
    let y = match (layers, &conv) {
        (Layers::Plain, _) => norm.forward(&x, None, Activation::Identity, &pass)?,
        (_, Some(conv)) => norm.after(conv, &x, None, Activation::Relu, &pass)?,
        (_, None) => norm.forward(&x, Some(&residual), Activation::Relu, &pass)?,
    };
    let grads = (&y * samples("r", first, n).as_tensor())?.sum_all()?.backward()?;
    let inputs = [&x, &residual].into_iter().filter_map(|input| grads.get(input));
    let running = params.buffers().iter().map(|buffer| flat(buffer.var().unwrap()));
    Ok(Found {
        y: flat(&y),
        inputs: inputs.map(flat).collect(),
        weights: collected.by_index().into_values().collect(),
        running: running.collect(),
    })
}

/// The parts one after the other; the sums of their weights' gradients.
fn joined(parts: Vec<Found>) -> Found {
    let running = &parts[0].running;
    assert!(parts.iter().all(|part| part.running == *running), "running statistics differ");
    let mut parts = parts.into_iter();
    let first = parts.next().unwrap();
    parts.fold(first, |mut all, part| {
        all.y.extend(part.y);
        all.inputs.iter_mut().zip(part.inputs).for_each(|(all, part)| all.extend(part));
        for (all, part) in all.weights.iter_mut().zip(part.weights) {
            all.iter_mut().zip(part).for_each(|(all, part)| *all += part);
        }
        all
    })
}

fn on_threads(layers: Layers) -> Found {
    let n = PARTS.len();
    let values = Mutex::new(vec![Vec::new(); n]);
    let parts = Arc::new(Parts { barrier: Barrier::new(n), values });
    let found = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|index| {
                let place = (PARTS[..index].iter().sum(), PARTS[index]);
                let group: BatchGroup = Arc::new(Part(index, parts.clone()));
                scope.spawn(move || run(layers, place, Some(group)).unwrap())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    joined(found)
}

fn check(what: &str, found: &Found, golden: &Value) {
    let tensor = |values: &Vec<f32>| Tensor::new(values.as_slice(), &Device::Cpu).unwrap();
    near_summary(&format!("{what}: y"), &tensor(&found.y), &golden["y"]);
    for (gradient, golden) in found.inputs.iter().zip(golden["inputs"].as_array().unwrap()) {
        near_summary(&format!("{what}: gradient of an input"), &tensor(gradient), golden);
    }
    for (gradient, golden) in found.weights.iter().zip(golden["weights"].as_array().unwrap()) {
        let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        near(what, l2, number(golden, "l2"), 1e-4);
        near(what, check_sum(gradient), number(golden, "check"), 1e-4);
    }
    for (running, key) in found.running.iter().zip(["running_mean", "running_var"]) {
        for (actual, expected) in running.iter().zip(golden[key].as_array().unwrap()) {
            near(&format!("{what}: {key}"), f64::from(*actual), expected.as_f64().unwrap(), 1e-6);
        }
    }
}

#[test]
fn parts_of_a_batch_are_normalised_as_pytorch_normalises_the_whole() {
    let golden: Value =
        serde_json::from_str(include_str!("../golden/sync_batchnorm.json")).unwrap();
    for (layers, key) in [
        (Layers::Plain, "plain"),
        (Layers::WithResidual, "with_residual"),
        (Layers::AfterConvolution, "after_convolution"),
    ] {
        let parts = on_threads(layers);
        check(key, &parts, &golden[key]);
        let whole = run(layers, (0, PARTS.iter().sum()), None).unwrap();
        check(&format!("{key}, alone"), &whole, &golden[key]);
        assert_eq!(parts.weights.len(), golden[key]["weights"].as_array().unwrap().len());
        assert_eq!(parts.inputs.len(), golden[key]["inputs"].as_array().unwrap().len());
    }
}

#[test]
fn one_value_for_each_part_is_enough_and_one_for_all_is_refused() {
    let one = |value: f32| Tensor::new(&[[value]], &Device::Cpu).unwrap();
    let forward = |value, group| {
        let builder = Builder::new(1);
        let norm = BatchNorm2d::new(&builder, 1, 1, 1.0).unwrap();
        let mut pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
        pass.sync_batchnorm = group;
        norm.forward(&one(value), None, Activation::Identity, &pass).map(|y| flat(&y)[0])
    };
    let parts =
        |n| Arc::new(Parts { barrier: Barrier::new(n), values: Mutex::new(vec![Vec::new(); n]) });
    let alone: BatchGroup = Arc::new(Part(0, parts(1)));
    let error = forward(1.0, Some(alone)).unwrap_err().to_string();
    assert!(error.contains("needs more than one value per channel"), "{error}");
    let two = parts(2);
    std::thread::scope(|scope| {
        for (index, expected) in [-1.0, 1.0].into_iter().enumerate() {
            let group: BatchGroup = Arc::new(Part(index, two.clone()));
            scope.spawn(move || {
                let y = forward(3.0 * index as f32, Some(group)).unwrap();
                near("y", f64::from(y), expected, 1e-4);
            });
        }
    });
}
