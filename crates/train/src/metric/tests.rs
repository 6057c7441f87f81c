//! Metrics against scikit-learn's, in batches of different sizes.

use candle_core::{Device, Tensor};
use serde_json::Value;

use super::*;
use crate::plan::Targets;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../../tests/golden/metrics.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// (n, k)
fn table(value: &Value, k: usize) -> Tensor {
    let values = numbers(value);
    let shape = (values.len() / k, k);
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Outputs and targets of the part `name` of the file.
fn given(name: &str) -> (Tensor, Tensor) {
    let part = &golden()[name];
    let k = part["k"].as_u64().unwrap() as usize;
    let targets = if part["labels"].is_array() {
        let labels: Vec<u32> = serde_json::from_value(part["labels"].clone()).unwrap();
        let n = labels.len();
        Tensor::from_vec(labels, n, &Device::Cpu).unwrap()
    } else {
        table(&part["targets"], k)
    };
    (table(&part["outputs"], k), targets)
}

fn measurable(name: &str) -> MetricContext {
    let targets = match name {
        "classes" | "two_classes" => Targets::Classes,
        "several" => Targets::MultiLabel,
        _ => Targets::Numbers,
    };
    MetricContext {
        targets,
        classes: if name == "two_classes" { 2 } else { 12 },
        samples: 40,
        labels_in_sequence: false,
        is_standardized: false,
        has_token_bytes: false,
        has_naive_errors: false,
    }
}

/// Every metric that `tests/golden/metrics.py` recorded of the part, measured in batches of `size`.
#[track_caller]
fn check(name: &str, size: usize) -> Vec<MetricState> {
    let golden = golden();
    let expected = golden[name]["metrics"].as_object().unwrap();
    let wanted: Vec<String> = expected.keys().cloned().collect();
    let metrics = Metrics::default().of(&measurable(name), &wanted);
    let (outputs, targets) = given(name);
    let n = outputs.dims()[0];
    let batch = |from: usize| {
        let part = |tensor: &Tensor| tensor.narrow(0, from, size.min(n - from)).unwrap();
        measure(&metrics, &part(&outputs), &part(&targets)).unwrap()
    };
    let mut all = batch(0);
    for from in (size..n).step_by(size) {
        all.iter_mut().zip(batch(from)).for_each(|(all, more)| all.add(more));
    }
    let values: std::collections::BTreeMap<_, _> = values(&metrics, &all, &[]).collect();
    for (metric, value) in expected {
        let (found, value) = (values[metric.as_str()], value.as_f64().unwrap());
        assert!(
            (found - value).abs() < 1e-6 * value.abs().max(1.0),
            "{metric}: {found}, not {value}"
        );
    }
    all
}

#[test]
fn metrics_are_scikit_learns() {
    for name in ["classes", "two_classes", "several", "numbers"] {
        check(name, 40);
        check(name, 7);
    }
}

/// A share of an outcome.
type Part = fn(&Outcome) -> f64;

#[test]
fn values_of_classes_are_scikit_learns() {
    let golden = golden();
    let of = |name: &str, key: &str| -> Vec<f64> {
        serde_json::from_value(golden[name]["by_class"][key].clone()).unwrap()
    };
    for name in ["classes", "several"] {
        let (outputs, targets) = given(name);
        let classes =
            of_classes(&ClassScore::f1(Average::Macro).measure(&outputs, &targets).unwrap());
        let parts: [(&str, Part); 3] =
            [("precision", Outcome::precision), ("recall", Outcome::recall), ("f1", Outcome::f1)];
        for (key, part) in parts {
            let found = classes.iter().map(part);
            let close = |(found, expected): (f64, &f64)| (found - expected).abs() < 1e-12;
            assert!(found.zip(&of(name, key)).all(close), "{name}, {key}");
        }
    }
}

#[test]
fn a_ranking_without_both_kinds_of_samples_has_no_value() {
    let outputs = Tensor::new(&[[1f32, 0.0], [0.5, 0.5]], &Device::Cpu).unwrap();
    let labels = Tensor::new(&[0u32, 0], &Device::Cpu).unwrap();
    let metrics = Metrics::default().of(&measurable("two_classes"), &["auroc".to_owned()]);
    let all = measure(&metrics, &outputs, &labels).unwrap();
    assert!(values(&metrics, &all, &[]).all(|(name, _)| name != "auroc"));
}

#[test]
fn an_answer_that_no_probability_could_tell_from_another_has_its_place() {
    // The softmax of all of these is 1 in 32 bits.
    let outputs = Tensor::new(&[[60f32, 0.0], [50.0, 0.0], [40.0, 0.0]], &Device::Cpu).unwrap();
    let labels = Tensor::new(&[0u32, 0, 1], &Device::Cpu).unwrap();
    let metrics = Metrics::default().of(&measurable("two_classes"), &["auroc".to_owned()]);
    let all = measure(&metrics, &outputs, &labels).unwrap();
    assert!(values(&metrics, &all, &[]).any(|value| value == ("auroc", 1.0)));
}
