//! What the model answers to samples, one by one, without a loss over all of them.

use candle_core::{DType, Device, Tensor};

use crate::data::Batch;
use crate::engine::batch_to_device::DeviceBatch;
use crate::engine::evaluate::EVALUATION;
use crate::engine::pass::{draws, scalar};
use crate::engine::{Engine, Error};
use crate::loss::counted;
use crate::model::asked;
use crate::nn::ForwardContext;

impl Engine {
    /// Runs `work` with the weights that are evaluated: the averages, where they are complete.
    pub fn with_evaluated<T>(&mut self, work: impl FnOnce(&Self) -> T) -> Result<T, Error> {
        let step = self.state.step;
        let result = self.averaged(|engine| work(engine));
        result.map_err(|source| Error::Tensor { phase: "prediction", step, source })
    }

    /// The answer to each sample of `batch`, its numbers one after the other, with the weights at
    /// hand; as evaluations compare it.
    pub fn answers_to(&self, batch: &Batch) -> Result<Vec<Vec<f32>>, Error> {
        self.told(|| {
            let answers = self.asked(batch)?;
            let answers = answers.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            answers.flatten_from(1)?.to_vec2()
        })
    }

    /// The mean loss of each sample of `batch`, a text, and how many tokens it is the mean of.
    pub fn token_losses(&self, batch: &Batch) -> Result<Vec<(f64, u64)>, Error> {
        self.told(|| {
            let outputs = self.asked(batch)?;
            let one = |at| {
                let output = outputs.narrow(0, at, 1)?;
                let target = batch.targets.narrow(0, at, 1)?;
                let tokens = match target.dtype() {
                    DType::I64 => counted(&target)?,
                    _ => target.elem_count(),
                };
                Ok((f64::from(scalar(&self.loss.measured(&output, &target)?)?), tokens as u64))
            };
            (0..batch.samples.len()).map(one).collect()
        })
    }

    fn asked(&self, batch: &Batch) -> candle_core::Result<Tensor> {
        let pass = ForwardContext {
            convolutions: self.plan.convolutions,
            ..ForwardContext::eval(self.plan.precision)
        };
        let draws = draws(&self.plan, EVALUATION, &batch.samples);
        let DeviceBatch { inputs, .. } = self.batch_on_device(batch)?;
        asked(&*self.model, &inputs, &draws, &pass)
    }

    fn told<T>(&self, work: impl FnOnce() -> candle_core::Result<T>) -> Result<T, Error> {
        let step = self.state.step;
        work().map_err(|source| Error::Tensor { phase: "prediction", step, source })
    }
}
