//! Softmax cross-entropy with class labels, and the scores of an evaluation.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use super::storage::{output, read, slice, tensor};

/// Mean over samples of -sum target log softmax(logits), with target = (1 - smoothing) one-hot +
/// smoothing / classes,
/// as `torch.nn.CrossEntropyLoss(label_smoothing=...)`.
///
/// logits (n, classes) f32, labels (n) u32 -> scalar f32; sums in f64.
///
/// # Errors
///
/// A label that is not a class, no samples, or shapes that do not fit.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<Tensor> {
    let labels = checked_labels(logits, labels)?;
    logits.contiguous()?.apply_op1(CrossEntropy { labels, smoothing })
}

/// Scores of the samples of one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassScores {
    /// Loss of each sample.
    pub losses: Vec<f32>,
    /// Sum of the losses.
    pub loss_sum: f64,
    /// Samples whose largest logit (the first, if several) is that of their label.
    pub n_correct: usize,
}

/// Losses and hits of each sample, without a graph. Arguments as [`cross_entropy`].
///
/// # Errors
///
/// As [`cross_entropy`].
pub fn score_classes(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<ClassScores> {
    let labels = checked_labels(logits, labels)?;
    read([logits], |[values]| {
        let mut scores = ClassScores::default();
        for (row, &label) in values.chunks_exact(values.len() / labels.len()).zip(&labels) {
            let loss = sample_loss(row, label, smoothing);
            scores.losses.push(loss as f32);
            scores.loss_sum += loss;
            scores.n_correct += usize::from(first_maximum(row) == label as usize);
        }
        Ok(scores)
    })
}

struct CrossEntropy {
    labels: Vec<u32>,
    smoothing: f64,
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let logits = slice(logits, layout)?;
        let rows = logits.chunks_exact(logits.len() / self.labels.len());
        let sum: f64 =
            rows.zip(&self.labels).map(|(row, &y)| sample_loss(row, y, self.smoothing)).sum();
        Ok(output(vec![(sum / self.labels.len() as f64) as f32], ()))
    }

    /// (softmax - target) / n, times the incoming gradient.
    fn bwd(&self, logits: &Tensor, _loss: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let scale = f64::from(dy.to_scalar::<f32>()?) / self.labels.len() as f64;
        read([logits], |[values]| {
            let classes = values.len() / self.labels.len();
            let uniform = self.smoothing / classes as f64;
            let mut gradient = Vec::with_capacity(values.len());
            for (row, &label) in values.chunks_exact(classes).zip(&self.labels) {
                let softmax = Softmax::of(row);
                for (class, &logit) in row.iter().enumerate() {
                    let hit = if class == label as usize { 1.0 - self.smoothing } else { 0.0 };
                    let probability = softmax.log(logit).exp();
                    gradient.push((scale * (probability - hit - uniform)) as f32);
                }
            }
            Ok(Some(tensor(gradient, logits.shape())?))
        })
    }
}

fn sample_loss(row: &[f32], label: u32, smoothing: f64) -> f64 {
    let softmax = Softmax::of(row);
    let hit = -softmax.log(row[label as usize]);
    if smoothing == 0.0 {
        return hit;
    }
    let mean = -row.iter().map(|&logit| softmax.log(logit)).sum::<f64>() / row.len() as f64;
    (1.0 - smoothing) * hit + smoothing * mean
}

/// What turns a row's logits into log probabilities, without overflow; NaN if any logit is.
struct Softmax {
    max: f64,
    log_sum: f64,
}

impl Softmax {
    fn of(row: &[f32]) -> Self {
        let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = row.iter().map(|&v| (f64::from(v) - max).exp()).sum();
        Self { max, log_sum: sum.ln() }
    }

    fn log(&self, logit: f32) -> f64 {
        // The large numbers are subtracted first: their difference is exact.
        f64::from(logit) - self.max - self.log_sum
    }
}

fn first_maximum(row: &[f32]) -> usize {
    let mut best = 0;
    for (class, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = class;
        }
    }
    best
}

fn checked_labels(logits: &Tensor, labels: &Tensor) -> Result<Vec<u32>> {
    let (n, classes) = logits.dims2()?;
    let labels = labels.to_vec1::<u32>()?;
    if n == 0 || labels.len() != n {
        bail!("{} labels for {n} samples", labels.len());
    }
    match labels.iter().find(|&&label| label as usize >= classes) {
        Some(label) => bail!("label {label} for a model with {classes} outputs"),
        None => Ok(labels),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::testing::{check_gradients, values};
    use super::*;

    fn labels(values: &[u32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    fn slow(x: &[f64], labels: &[u32], smoothing: f64) -> f64 {
        let classes = x.len() / labels.len();
        let loss = |(row, &y): (&[f64], &u32)| {
            let sum: f64 = row.iter().map(|v| v.exp()).sum();
            let log_p = |c: usize| row[c] - sum.ln();
            let uniform: f64 = (0..classes).map(log_p).sum::<f64>() / classes as f64;
            -(1.0 - smoothing) * log_p(y as usize) - smoothing * uniform
        };
        x.chunks(classes).zip(labels).map(loss).sum::<f64>() / labels.len() as f64
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (classes, y) in [(1, vec![0]), (3, vec![2, 0, 1, 1, 2]), (7, vec![6])] {
            for smoothing in [0.0, 0.1] {
                check_gradients(
                    &[&[y.len(), classes]],
                    |t| cross_entropy(&t[0], &labels(&y), smoothing),
                    |v| vec![slow(&v[0], &y, smoothing)],
                    1e-6,
                );
            }
        }
    }

    #[test]
    fn scores_sum_to_the_loss_and_count_the_hits() -> Result<()> {
        let logits = tensor(values("logits", 0, 12), (4, 3))?;
        let y = labels(&[0, 1, 2, 0]);
        let scores = score_classes(&logits, &y, 0.1)?;
        let mean = f64::from(cross_entropy(&logits, &y, 0.1)?.to_scalar::<f32>()?);
        assert!((scores.loss_sum / 4.0 - mean).abs() < 1e-6);
        let best = logits.argmax(1)?.to_vec1::<u32>()?;
        let hits = best.iter().zip([0, 1, 2, 0]).filter(|(a, b)| **a == *b).count();
        assert_eq!((scores.n_correct, scores.losses.len()), (hits, 4));
        Ok(())
    }

    #[test]
    fn extreme_logits_stay_finite_and_nan_stays_visible() -> Result<()> {
        let loss = |row: [f32; 2]| -> Result<f32> {
            cross_entropy(&tensor(row.to_vec(), (1, 2))?, &labels(&[1]), 0.0)?.to_scalar()
        };
        assert_eq!(loss([1e30, 1e30])?, std::f32::consts::LN_2);
        assert_eq!(loss([1e4, -1e4])?, 2e4);
        assert!(loss([f32::NAN, 0.0])?.is_nan());
        Ok(())
    }

    #[test]
    fn a_label_that_is_no_class_is_named() -> Result<()> {
        let logits = tensor(vec![0.0; 6], (2, 3))?;
        let error = cross_entropy(&logits, &labels(&[0, 3]), 0.0).unwrap_err().to_string();
        assert!(error.contains("label 3 for a model with 3 outputs"), "{error}");
        assert!(cross_entropy(&logits, &labels(&[0]), 0.0).is_err());
        Ok(())
    }
}
