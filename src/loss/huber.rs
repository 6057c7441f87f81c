//! `loss.name = "huber"`

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::loss::Loss;
use crate::ops;
use crate::plan::Targets;

/// half the squared error of numbers up to `delta`, and linear beyond (Huber 1964), as `torch.nn.HuberLoss`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Huber {
    /// threshold between the quadratic and the linear part.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub delta: f64,
}

impl Default for Huber {
    fn default() -> Self {
        Self { delta: 1.0 }
    }
}

impl Kind for Huber {
    const NAME: &'static str = "huber";
}

impl Loss for Huber {
    fn targets(&self) -> Targets {
        Targets::Numbers
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        ops::huber(outputs, targets, self.delta)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use serde_json::Value;

    use super::*;

    fn numbers(value: &Value) -> Vec<f64> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    }

    /// Value and gradient are those of `tests/golden/losses.py`.
    #[track_caller]
    fn check(name: &str, loss: &Huber) {
        let golden: Value =
            serde_json::from_str(include_str!("../../tests/golden/losses.json")).unwrap();
        let tensor = |name: &str| {
            let values = numbers(&golden[name]).iter().map(|&value| value as f32).collect();
            Tensor::from_vec(values, (4, 3), &Device::Cpu).unwrap()
        };
        let outputs = Var::from_tensor(&tensor("outputs")).unwrap();
        let value = loss.mean(&outputs, &tensor("targets")).unwrap();
        let gradients = value.backward().unwrap();
        let gradient = gradients.get(&outputs).unwrap().flatten_all().unwrap();
        let expected = golden[name]["value"].as_f64().unwrap();
        assert!((f64::from(value.to_scalar::<f32>().unwrap()) - expected).abs() < 1e-7);
        let expected = numbers(&golden[name]["gradient"]);
        for (slope, expected) in gradient.to_vec1::<f32>().unwrap().iter().zip(expected) {
            assert!((f64::from(*slope) - expected).abs() < 1e-8, "{slope}, not {expected}");
        }
    }

    #[test]
    fn it_is_pytorchs() {
        check("huber", &Huber::default());
        check("huber_d.3", &Huber { delta: 0.3 });
    }
}
