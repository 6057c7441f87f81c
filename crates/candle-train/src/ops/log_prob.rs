//! Log-probabilities of whole texts, as losses of preferences compare them.

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::loss::{CrossEntropy, Targets, checked};
use super::operation::{Gradients, Input, Operation, SavedForBackward};
use super::storage::{read, tensor};

/// Sum of log softmax(logits) at the labels of each text, over its places that count.
///
/// logits (n, places, classes) f32, labels (n, places) u32 or i64 -> (n) f32; sums over places in
/// f64. The logits are not copied: backward makes their gradient, and nothing else of their size.
///
/// # Errors
///
/// A label that is neither a class nor [`super::IGNORED_LABEL`], or shapes that do not fit.
pub fn label_log_probs(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (n, places, classes) = logits.dims3()?;
    if labels.dims() != [n, places] {
        bail!("labels {:?} for logits {:?}", labels.dims(), logits.dims());
    }
    let labels = checked((n * places, classes), &labels.flatten_all()?)?;
    let targets = Targets::Labels(labels);
    let rows = SavedForBackward::default();
    chain::apply([logits], LogProbs(CrossEntropy { targets, smoothing: 0.0, divisor: 1.0, rows }))
}

/// The negative sums of the losses of a text's rows.
pub(super) struct LogProbs(CrossEntropy);

impl Operation for LogProbs {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "log-probabilities";

    fn forward(&self, [logits]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let (n, places, classes) = logits.shape.dims3()?;
        let (losses, rows): (Vec<f64>, _) =
            self.0.losses(logits.values, classes)?.into_iter().unzip();
        self.0.rows.keep(rows);
        let sum = |of: &[f64]| -of.iter().sum::<f64>() as f32;
        Ok((losses.chunks_exact(places).map(sum).collect(), n.into()))
    }

    fn backward(&self, [logits]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let Some(rows) = self.0.rows.get() else {
            bail!("backward of log-probabilities that were not computed")
        };
        let dy = dy.to_vec1::<f32>()?;
        let places = rows.len() / dy.len().max(1);
        let scale = |row: usize| -f64::from(dy[row / places]);
        let gradient = read([logits], |[x]| Ok(self.0.gradient(x, None, rows, scale)))?;
        Ok([Some(tensor(gradient, logits.shape())?)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use test_support::assert_refused;

    use super::*;
    use crate::ops::testing::check_gradients;

    #[test]
    fn texts_have_the_sums_of_their_labels() {
        let labels = [[2i64, 0, -100], [-100, -100, 1], [-100; 3]];
        let labels = Tensor::new(&labels, &Device::Cpu).unwrap();
        let slow = |x: &[f64]| {
            let log_p = |row: usize, label: usize| {
                let row = &x[4 * row..4 * row + 4];
                row[label] - row.iter().map(|v| v.exp()).sum::<f64>().ln()
            };
            vec![log_p(0, 2) + log_p(1, 0), log_p(5, 1), 0.0]
        };
        check_gradients(&[&[3, 3, 4]], |t| label_log_probs(&t[0], &labels), |v| slow(&v[0]), 1e-6);
    }

    #[test]
    fn labels_that_do_not_fit_are_refused() {
        let logits = Tensor::zeros((1, 2, 3), DType::F32, &Device::Cpu).unwrap();
        let labels = |labels: &[u32]| Tensor::from_slice(labels, (1, labels.len()), &Device::Cpu);
        assert_refused(label_log_probs(&logits, &labels(&[0, 3]).unwrap()), "label 3");
        assert_refused(label_log_probs(&logits, &labels(&[0]).unwrap()), "labels [1, 1]");
    }
}
