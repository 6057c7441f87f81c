//! Pairs of texts -> log-probabilities of their answers, by a language model and by what it was at
//! the start.
//!
//! A sample is (places, 2), the chosen text and the rejected one; the model sees them as two rows
//! of one batch.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::{Comparison, Model};
use crate::nn::{ForwardContext, Mode, Params};
use crate::onnx::{Graph, Value};
use crate::ops::{self, IGNORED_LABEL};
use crate::rng::Key;

/// A model that is compared with itself as it was at the start, or with nothing.
pub struct PreferenceModel {
    policy: Box<dyn Model>,
    reference: Reference,
}

/// What the policy is compared with.
pub enum Reference {
    /// Nothing: the loss needs no reference.
    None,
    /// The policy without its adapters.
    WithoutAdapters,
    /// Another copy of the model, with the values of the start.
    Copy(Box<dyn Model>, Box<Params>),
}

impl PreferenceModel {
    /// `policy` for pairs of texts.
    pub fn new(policy: Box<dyn Model>, reference: Reference) -> Self {
        Self { policy, reference }
    }

    /// Log-probabilities (2 n) of texts by the reference, without a graph; zeros without one.
    fn by_reference(
        &self,
        texts: &Tensor,
        labels: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let mut pass =
            ForwardContext { mode: Mode::Eval, activation_checkpointing: false, ..pass.clone() };
        let model = match &self.reference {
            Reference::None => return Tensor::zeros(texts.dim(0)?, DType::F32, &Device::Cpu),
            Reference::WithoutAdapters => {
                pass.without_adapters = true;
                &self.policy
            }
            Reference::Copy(model, _) => model,
        };
        let found = ops::label_log_probs(&model.forward(texts, &pass)?.detach(), labels)?;
        Ok(found.detach())
    }
}

impl Model for PreferenceModel {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.policy.forward(input, pass)
    }

    /// Pairs (n, places, 2) and their labels -> log-probabilities (n, 2), and as targets (n, 4)
    /// those of the reference and the numbers of tokens that were added up.
    fn compare(
        &self,
        inputs: &Tensor,
        targets: &Tensor,
        _: &[Key],
        pass: &ForwardContext,
    ) -> Result<Comparison> {
        let (texts, labels) = (rows(inputs)?, rows(targets)?);
        let n = inputs.dim(0)?;
        let reference = self.by_reference(&texts, &labels, pass)?;
        let outputs = ops::label_log_probs(&self.policy.forward(&texts, pass)?, &labels)?;
        let counts = counts(&labels)?;
        let columns = [reference.reshape((n, 2))?, counts.reshape((n, 2))?];
        let targets = Tensor::cat(&columns, 1)?;
        Ok(Comparison { outputs: outputs.reshape((n, 2))?, targets })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        self.policy.onnx(graph, input)
    }

    fn reference(&self) -> Option<&Params> {
        match &self.reference {
            Reference::Copy(_, params) => Some(params),
            Reference::None | Reference::WithoutAdapters => None,
        }
    }
}

/// (n, places, 2) -> (2 n, places): the chosen text of a pair, then the rejected one.
fn rows(pairs: &Tensor) -> Result<Tensor> {
    let &[n, places, 2] = pairs.dims() else {
        bail!("pairs of texts are (n, places, 2), not {:?}", pairs.dims())
    };
    pairs.transpose(1, 2)?.contiguous()?.reshape((2 * n, places))
}

/// Number of labels of each text that count, f32.
fn counts(labels: &Tensor) -> Result<Tensor> {
    let labels = labels.to_dtype(DType::I64)?.to_vec2::<i64>()?;
    let count =
        |text: &Vec<i64>| text.iter().filter(|&&label| label != IGNORED_LABEL).count() as f32;
    let counts: Vec<f32> = labels.iter().map(count).collect();
    let n = counts.len();
    Tensor::from_vec(counts, n, &Device::Cpu)
}
