//! What the tests of losses share.

use candle_core::{Device, Tensor, Var};
use serde_json::Value;

use crate::loss::Loss;
use crate::plan::DataFacts;

/// Data of three classes that are not counted.
pub(super) fn three_classes() -> DataFacts {
    DataFacts {
        n_train: 10,
        classes: ["a", "b", "c"].map(str::to_owned).into(),
        ..DataFacts::default()
    }
}

/// What `tests/golden/losses.py` recorded.
pub(super) fn golden() -> Value {
    serde_json::from_str(include_str!("../../../../tests/golden/losses.json")).unwrap()
}

pub(super) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// (4, 3) recorded numbers.
pub(super) fn recorded(name: &str) -> Tensor {
    let values = numbers(&golden()[name]).iter().map(|&value| value as f32).collect();
    Tensor::from_vec(values, (4, 3), &Device::Cpu).unwrap()
}

/// The recorded labels, as i64.
pub(super) fn labels(name: &str) -> Tensor {
    let labels: Vec<i64> = serde_json::from_value(golden()[name].clone()).unwrap();
    let n = labels.len();
    Tensor::from_vec(labels, n, &Device::Cpu).unwrap()
}

/// Value and gradient are those of `tests/golden/losses.py`.
#[track_caller]
pub(super) fn check(name: &str, loss: &dyn Loss, targets: &Tensor) {
    let golden = golden();
    let outputs = Var::from_tensor(&recorded("outputs")).unwrap();
    let value = loss.mean(&outputs, targets).unwrap();
    let gradients = value.backward().unwrap();
    let gradient = gradients.get(&outputs).unwrap().flatten_all().unwrap();
    let expected = golden[name]["value"].as_f64().unwrap();
    let found = f64::from(value.to_scalar::<f32>().unwrap());
    assert!((found - expected).abs() < 2e-7 * expected.max(1.0), "{name}: {found}, not {expected}");
    let expected = numbers(&golden[name]["gradient"]);
    for (slope, expected) in gradient.to_vec1::<f32>().unwrap().iter().zip(expected) {
        let error = (f64::from(*slope) - expected).abs();
        assert!(error < 6e-8 * expected.abs().max(1.0), "{name}: {slope}, not {expected}");
    }
}
