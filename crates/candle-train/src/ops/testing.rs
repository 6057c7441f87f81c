//! Checks an operation against a slow f64 reference: values, and gradients by central differences.

use std::sync::{Arc, Mutex};

use candle_core::{Device, Result, Tensor, Var};
use half::{bf16, f16};

use super::stored::{StoredTensor, StoredType};
use super::weight::{GradientSink, Uses, Weight, WeightUse};
use crate::rng::{Key, Purpose, name_hash};

/// Deterministic values in [-1, 1).
pub(crate) fn values(name: &str, salt: u64, n: usize) -> Vec<f32> {
    let mut stream = Key::new(salt, Purpose::Generate, name_hash(name), n as u64).stream();
    (0..n).map(|_| stream.range(-1.0, 1.0) as f32).collect()
}

/// [`values`] as a file holds them.
pub(crate) fn stored(name: &str, dtype: StoredType, shape: &[usize]) -> StoredTensor {
    let bytes = |value: f32| match dtype {
        StoredType::F32 => value.to_le_bytes().to_vec(),
        StoredType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        StoredType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
    };
    let values = values(name, 0, shape.iter().product());
    let bytes: Vec<u8> = values.into_iter().flat_map(bytes).collect();
    let range = 0..bytes.len();
    StoredTensor::new(Arc::new(bytes), range, dtype, shape).unwrap()
}

/// Result of `f` on a pool of so many threads.
pub(crate) fn on_threads<R: Send>(n: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap().install(f)
}

/// The values of an f32 tensor, row-major.
pub(crate) fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Compares `op` with `reference`, and the gradient of `sum(y r)` for a fixed random r with central
/// differences of the reference. `tolerance` is relative to the largest entry (at least 1).
#[track_caller]
pub(crate) fn check_gradients(
    shapes: &[&[usize]],
    op: impl Fn(&[Tensor]) -> Result<Tensor>,
    reference: impl Fn(&[Vec<f64>]) -> Vec<f64>,
    tolerance: f64,
) {
    let tensors =
        |weights: &[Weight]| weights.iter().map(|w| w.tensor().clone()).collect::<Vec<_>>();
    check_weights(shapes, |weights| op(&tensors(weights)), reference, tolerance);
}

/// [`check_gradients`] of an operation that takes some of its inputs as [`Weight`]s.
#[track_caller]
pub(crate) fn check_weights(
    shapes: &[&[usize]],
    op: impl Fn(&[Weight]) -> Result<Tensor>,
    reference: impl Fn(&[Vec<f64>]) -> Vec<f64>,
    tolerance: f64,
) {
    let inputs: Vec<Vec<f32>> = shapes
        .iter()
        .enumerate()
        .map(|(i, shape)| values("input", i as u64, shape.iter().product()))
        .collect();
    let vars: Vec<Var> = inputs
        .iter()
        .zip(shapes)
        .map(|(values, shape)| Var::from_vec(values.clone(), *shape, &Device::Cpu).unwrap())
        .collect();
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    let learnt = |(i, var)| Weight::learnt(var, WeightUse::new(&sink, i, &Uses::default()));
    let weights: Vec<Weight> = vars.iter().enumerate().map(learnt).collect();
    let mut exact: Vec<Vec<f64>> =
        inputs.iter().map(|values| values.iter().map(|&v| f64::from(v)).collect()).collect();

    let y = op(&weights).unwrap();
    close("output", &y, &reference(&exact), tolerance);

    let r = values("r", 0, y.elem_count());
    let factors = Tensor::from_vec(r.clone(), y.shape(), &Device::Cpu).unwrap();
    let grads = (y * factors).unwrap().sum_all().unwrap().backward().unwrap();
    let objective = |exact: &[Vec<f64>]| -> f64 {
        reference(exact).iter().zip(&r).map(|(y, &r)| y * f64::from(r)).sum()
    };
    for (i, var) in vars.iter().enumerate() {
        let slopes: Vec<f64> = (0..inputs[i].len())
            .map(|j| {
                let at = exact[i][j];
                let mut moved = |by: f64| {
                    exact[i][j] = at + by;
                    objective(&exact)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                exact[i][j] = at;
                slope
            })
            .collect();
        let gradient = collected.of(i).or_else(|| grads.get(var).cloned()).unwrap();
        close(&format!("gradient {i}"), &gradient, &slopes, tolerance);
    }
}

/// Gradients that went to the sink, by index.
#[derive(Default)]
pub(crate) struct Collected(Mutex<Vec<(usize, Vec<f32>)>>);

impl Collected {
    pub(crate) fn of(&self, index: usize) -> Option<Tensor> {
        let collected = self.0.lock().unwrap();
        let (_, values) = collected.iter().find(|(i, _)| *i == index)?;
        Some(Tensor::new(values.as_slice(), &Device::Cpu).unwrap())
    }
}

impl GradientSink for Collected {
    fn add(&self, index: usize, gradient: &[f32]) -> Result<()> {
        self.0.lock().unwrap().push((index, gradient.to_vec()));
        Ok(())
    }

    fn complete(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

#[track_caller]
fn close(what: &str, actual: &Tensor, expected: &[f64], tolerance: f64) {
    let actual = flat(actual);
    assert_eq!(actual.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0f64, |max, v| max.max(v.abs()));
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(*a) - e).abs() / scale;
        assert!(error <= tolerance, "{what}[{i}]: {a} instead of {e}");
    }
}
