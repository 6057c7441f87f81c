//! The formula behind the golden numbers, and comparisons with them: every weight and every input
//! is a function of its name, so that no weight file is needed.
#![expect(clippy::unwrap_used, reason = "a helper may stop the test")]

use std::collections::BTreeMap;
use std::sync::Mutex;

use candle_core::{Device, Result, Tensor};
use ddprun::kinds::Kinds;
use ddprun::model::{Model, Models};
use ddprun::nn::Params;
use ddprun::ops::GradientSink;
use ddprun::plan::ModelPlan;
use ddprun::rng::name_hash;
use serde_json::{Value, json};

/// Values in [-1, 1) that depend on the name alone.
pub(crate) fn fill(name: &str, n: usize) -> Vec<f64> {
    let hash = name_hash(name);
    (1..=n as u64)
        .map(|i| {
            let mut z = hash.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^= z >> 31;
            (z >> 40) as f64 / 8_388_608.0 - 1.0
        })
        .collect()
}

pub(crate) fn weight(name: &str, shape: &[usize]) -> Vec<f32> {
    let scale: f64 = 1.0 / (shape.iter().skip(1).product::<usize>() as f64).sqrt();
    let value = |u: f64| match shape.len() {
        2.. => u * scale,
        _ if name.ends_with("running_var") => 1.0 + 0.5 * u,
        _ if name.ends_with(".weight") => 1.0 + 0.1 * u,
        _ => 0.1 * u,
    };
    fill(name, shape.iter().product()).into_iter().map(|u| value(u) as f32).collect()
}

/// A model of this name without dropout, with nothing else asked of it but its shapes, which are
/// those of one sample.
pub(crate) fn model_plan(
    name: &str,
    outputs: usize,
    input: &[usize],
    target: Vec<usize>,
) -> ModelPlan {
    let none =
        json!({ "dropout": 0.0, "attn_dropout": 0.0, "head_dropout": [0.0, 0.0], "hidden": [] });
    let kind = Kinds::default().models.with_options(name, &serde_json::from_value(none).unwrap());
    ModelPlan { target, ..ModelPlan::new(kind, input, outputs) }
}

/// `plan` with `options` of its model.
pub(crate) fn with(mut plan: ModelPlan, options: &Value) -> ModelPlan {
    for (key, value) in options.as_object().unwrap() {
        plan.kind.set(key, value);
    }
    plan
}

pub(crate) fn filled(plan: &ModelPlan) -> (Box<dyn Model>, Params) {
    let (model, params) = Models::default().instantiate(plan, 1).unwrap();
    fill_params(&params);
    (model, params)
}

/// Gives every parameter and buffer the values of its name.
pub(crate) fn fill_params(params: &Params) {
    let parameters = params.parameters().iter().map(|p| (p.name(), p.shape(), p.var().unwrap()));
    // Positions are formulas of their own.
    let is_place = |name: &str| ["pe", "pos_grid"].contains(&name.rsplit('.').next().unwrap_or(""));
    let buffers = params.buffers().iter().filter(|b| !is_place(b.name()));
    let buffers = buffers.map(|b| (b.name(), b.shape(), b.var().unwrap()));
    for (name, shape, var) in parameters.chain(buffers) {
        var.set(&Tensor::from_vec(weight(name, shape), shape, &Device::Cpu).unwrap()).unwrap();
    }
}

/// Gradients by parameter index, and the order in which they came.
#[derive(Default)]
pub(crate) struct Collected(Mutex<Vec<(usize, Vec<f32>)>>);

impl GradientSink for Collected {
    fn add(&self, index: usize, gradient: &[f32]) -> Result<()> {
        self.0.lock().unwrap().push((index, gradient.to_vec()));
        Ok(())
    }

    fn complete(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

impl Collected {
    /// What came, in its order.
    pub(crate) fn all(&self) -> Vec<(usize, Vec<f32>)> {
        self.0.lock().unwrap().clone()
    }

    /// The sum of each parameter's parts.
    pub(crate) fn by_index(&self) -> BTreeMap<usize, Vec<f32>> {
        let mut sums: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
        for (index, part) in self.all() {
            let sum = sums.entry(index).or_insert_with(|| vec![0.0; part.len()]);
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        sums
    }
}

pub(crate) fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn check_sum(values: &[f32]) -> f64 {
    values.iter().zip(fill("check", values.len())).map(|(&v, c)| f64::from(v) * c).sum()
}

pub(crate) fn number(golden: &Value, key: &str) -> f64 {
    golden[key].as_f64().unwrap()
}

#[track_caller]
pub(crate) fn near(what: &str, actual: f64, expected: f64, tolerance: f64) {
    assert!((actual - expected).abs() <= tolerance, "{what}: {actual} instead of {expected}");
}

#[track_caller]
pub(crate) fn near_summary(what: &str, tensor: &Tensor, golden: &Value) {
    let values = flat(tensor);
    let rms = number(golden, "rms");
    for (actual, expected) in values.iter().zip(golden["first"].as_array().unwrap()) {
        near(what, f64::from(*actual), expected.as_f64().unwrap(), 1e-4 * rms);
    }
    let allowed = 1e-4 * rms * (values.len() as f64).sqrt();
    near(what, check_sum(&values), number(golden, "check"), allowed);
    let squares: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
    near(what, (squares / values.len() as f64).sqrt(), rms, 1e-4 * rms);
}
