//! Normalisation layers whose statistics are those of one sample: the same in training and
//! evaluation.

use candle_core::{Result, Tensor};

use super::{Builder, Init, Param};
use crate::onnx::{Graph, Value};
use crate::ops;

/// `torch.nn.LayerNorm` over the last axis: `weight` (c) of ones, `bias` (c) of zeros or none, eps
/// 1e-5.
pub struct LayerNorm {
    weight: Param,
    bias: Option<Param>,
    eps: f64,
}

impl LayerNorm {
    /// Registers `weight` and `bias`.
    pub fn new(builder: &Builder, c: usize) -> Result<Self> {
        let layer = Self::without_bias(builder, c)?;
        Ok(Self { bias: Some(builder.param("bias", &[c], Init::Constant(0.0))?), ..layer })
    }

    /// Registers `weight` only.
    pub fn without_bias(builder: &Builder, c: usize) -> Result<Self> {
        let weight = builder.param("weight", &[c], Init::Constant(1.0))?;
        Ok(Self { weight, bias: None, eps: 1e-5 })
    }

    /// Sets the number that is added to the variance.
    #[must_use]
    pub fn with_eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// x (..., c) -> (..., c).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.normalise(x, None)
    }

    /// The norm of x + residual, as after each sublayer of a post-norm transformer; both (..., c).
    pub fn forward_sum(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.normalise(x, Some(residual))
    }

    /// Adds [`LayerNorm::forward`] to a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let scale = self.weight.onnx(graph)?;
        let bias = self.bias.as_ref().map(|bias| bias.onnx(graph)).transpose()?;
        Ok(graph.layer_norm(x, &scale, bias.as_ref(), self.eps))
    }

    fn normalise(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        ops::layer_norm(x, residual, &self.weight.weight()?, bias.as_ref(), self.eps)
    }
}

/// `torch.nn.RMSNorm` over the last axis, or over each group of c features of it, such as those of a
/// head: `weight` (c) of ones.
pub struct RmsNorm {
    weight: Param,
    offset: f32,
    eps: f64,
}

impl RmsNorm {
    /// Registers `weight`. PyTorch's default `eps` is that of f32, 1.19e-7; models bring their own.
    pub fn new(builder: &Builder, c: usize, eps: f64) -> Result<Self> {
        let weight = builder.param("weight", &[c], Init::Constant(1.0))?;
        Ok(Self { weight, offset: 0.0, eps })
    }

    /// Gemma's: factors are 1 + `weight`, of zeros.
    pub fn plus_one(builder: &Builder, c: usize, eps: f64) -> Result<Self> {
        let weight = builder.param("weight", &[c], Init::Constant(0.0))?;
        Ok(Self { weight, offset: 1.0, eps })
    }

    /// x (..., groups c) -> the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::rms_norm_groups(x, &self.weight.weight()?, self.offset, self.eps)
    }

    /// Adds [`RmsNorm::forward`] to a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let mut scale = self.weight.onnx(graph)?;
        if self.offset != 0.0 {
            let offset = graph.scalar(f64::from(self.offset));
            scale = graph.add(&scale, &offset);
        }
        let features = x.features();
        let c = scale.features();
        if features == c {
            return Ok(graph.rms_norm(x, &scale, self.eps));
        }
        let groups = graph.reshaped(x, &[0, 0, (features / c.max(1)) as i64, c as i64]);
        let y = graph.rms_norm(&groups, &scale, self.eps);
        Ok(graph.reshaped(&y, &[0, 0, features as i64]))
    }
}

/// `torch.nn.GroupNorm`, channels last: `weight` (c) of ones, `bias` (c) of zeros, eps 1e-5.
pub struct GroupNorm {
    weight: Param,
    bias: Param,
    groups: usize,
    eps: f64,
}

impl GroupNorm {
    /// Registers `weight` and `bias`.
    pub fn new(builder: &Builder, groups: usize, c: usize) -> Result<Self> {
        Ok(Self {
            weight: builder.param("weight", &[c], Init::Constant(1.0))?,
            bias: builder.param("bias", &[c], Init::Constant(0.0))?,
            groups,
            eps: 1e-5,
        })
    }

    /// Sets the number that is added to the variance.
    #[must_use]
    pub fn with_eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// x (n, ..., c) -> (n, ..., c).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::group_norm(x, [&self.weight.weight()?, &self.bias.weight()?], self.groups, self.eps)
    }

    /// Adds [`GroupNorm::forward`] to a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let scale = self.weight.onnx(graph)?;
        let shift = self.bias.onnx(graph)?;
        Ok(graph.group_norm(x, Some([&scale, &shift]), self.groups, self.eps))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::{Embedding, Nonlinearity, Params};
    use super::*;

    fn names(params: &Params) -> Vec<&str> {
        params.parameters().iter().map(Param::name).collect()
    }

    #[test]
    fn names_and_initial_values_are_those_of_pytorch() -> Result<()> {
        let builder = Builder::new(1);
        let (norm, x) =
            (LayerNorm::new(&builder.pp("ln"), 4)?, Tensor::arange(0f32, 8.0, &Device::Cpu)?);
        RmsNorm::new(&builder.pp("rms"), 4, 1e-6)?;
        LayerNorm::without_bias(&builder.pp("ln2"), 4)?;
        let grouped = GroupNorm::new(&builder.pp("gn"), 2, 4)?;
        let table = Embedding::new(&builder.pp("wte"), 500, 4)?;
        // torch.nn.LayerNorm(4) of [0, 1, 2, 3], and torch.nn.GroupNorm(2, 4) of four channels.
        let y = norm.forward(&x.reshape((2, 4))?)?.to_vec2::<f32>()?;
        for (y, expected) in y[0].iter().zip([-1.341_635_4, -0.447_211_8, 0.447_211_8, 1.341_635_4])
        {
            assert!((y - expected).abs() < 1e-6);
        }
        let half = (&x * 0.5)?.reshape((2, 4))?;
        assert_eq!(norm.forward_sum(&half, &half)?.to_vec2::<f32>()?, y);
        let y = grouped.forward(&x.reshape((2, 1, 4))?)?.flatten_all()?.to_vec1::<f32>()?;
        for (y, expected) in y.iter().zip([-0.999_98, 0.999_98].into_iter().cycle()) {
            assert!((y - expected).abs() < 1e-6);
        }
        let weights = table.forward(&Tensor::arange(0u32, 500, &Device::Cpu)?)?;
        let weights = weights.flatten_all()?.to_vec1::<f32>()?;
        let square: f32 = weights.iter().map(|w| w * w).sum::<f32>() / weights.len() as f32;
        assert!((square - 1.0).abs() < 0.1, "{square}");
        let params = builder.finish();
        let expected = [
            "ln.weight",
            "ln.bias",
            "rms.weight",
            "ln2.weight",
            "gn.weight",
            "gn.bias",
            "wte.weight",
        ];
        assert_eq!(names(&params), expected);
        Ok(())
    }

    #[test]
    fn each_nonlinearity_is_its_operation() -> Result<()> {
        let x = Tensor::ones(3, DType::F32, &Device::Cpu)?;
        let at_one = [
            (Nonlinearity::Relu, 1.0),
            (Nonlinearity::Relu6, 1.0),
            (Nonlinearity::Hardswish, 2.0 / 3.0),
            (Nonlinearity::Hardsigmoid, 2.0 / 3.0),
            (Nonlinearity::Gelu, 0.841_344_8),
            (Nonlinearity::GeluTanh, 0.841_192),
            (Nonlinearity::Silu, 0.731_058_6),
            (Nonlinearity::Mish, 0.865_098_4),
            (Nonlinearity::Sigmoid, 0.731_058_6),
            (Nonlinearity::Tanh, 0.761_594_2),
        ];
        for (nonlinearity, expected) in at_one {
            let y = nonlinearity.forward(&x)?.to_vec1::<f32>()?;
            assert!(y.iter().all(|y: &f32| (y - expected).abs() < 1e-6), "{nonlinearity:?} {y:?}");
        }
        Ok(())
    }
}
