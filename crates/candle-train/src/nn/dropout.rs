//! Dropout layer.

use candle_core::{Result, Tensor};

use super::{Builder, ForwardContext, Mode};
use crate::ops;
use crate::rng::{Key, name_hash};

/// `torch.nn.Dropout`, with a mask that is a function of the pass's key and the layer's path.
pub struct Dropout {
    p: f64,
    path: u64,
}

impl Dropout {
    /// Registers no parameter; the builder's path tells this layer from others.
    pub fn new(builder: &Builder, p: f64) -> Self {
        if p > 0.0 {
            builder.has_dropout();
        }
        Self { p, path: name_hash(builder.path()) }
    }

    /// Probability and random numbers of this pass, for an operation that drops by itself; `None`
    /// where nothing is dropped.
    pub fn drawn(&self, pass: &ForwardContext) -> Option<(f64, Key)> {
        match pass.mode {
            Mode::Train { key, .. } if self.p > 0.0 => Some((self.p, key.with(self.path))),
            _ => None,
        }
    }

    /// Any shape; the same tensor in evaluation.
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        match pass.mode {
            Mode::Eval => Ok(x.clone()),
            Mode::Train { key, .. } => ops::dropout(x, self.p, key.with(self.path)),
        }
    }
}

/// Stochastic depth, `torchvision.ops.StochasticDepth(p, "row")`: the output of a residual
/// block, dropped for whole samples.
pub struct DropPath(Dropout);

impl DropPath {
    /// Drops the output of a sample with probability `p`.
    pub fn new(builder: &Builder, p: f64) -> Self {
        Self(Dropout::new(builder, p))
    }

    /// x (n, ...); the same tensor in evaluation.
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        match pass.mode {
            Mode::Eval => Ok(x.clone()),
            Mode::Train { key, .. } => ops::drop_path(x, self.0.p, key.with(self.0.path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::Precision;
    use crate::rng::Purpose;

    #[test]
    fn layers_of_one_pass_have_their_own_masks_and_evaluation_has_none() -> Result<()> {
        let builder = Builder::new(1);
        let (a, b) = (Dropout::new(&builder.pp("a"), 0.5), Dropout::new(&builder.pp("b"), 0.5));
        let x = Tensor::ones(64, DType::F32, &Device::Cpu)?;
        let train = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
        let run =
            |layer: &Dropout, pass: &ForwardContext| layer.forward(&x, pass)?.to_vec1::<f32>();
        assert_eq!(run(&a, &train)?, run(&a, &train)?);
        assert_ne!(run(&a, &train)?, run(&b, &train)?);
        assert_eq!(run(&a, &ForwardContext::eval(Precision::Fp32))?, [1.0; 64]);
        Ok(())
    }
}
