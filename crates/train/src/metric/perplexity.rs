//! Metrics of the cross-entropy of texts: `val/perplexity`, `val/bits_per_byte`.

use std::f64::consts::LN_2;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use crate::loss::rows;
use crate::metric::{Metric, MetricState, needs_classes};
use crate::ops::score_classes;
use crate::plan::{MetricContext, Mode};

/// Exponential of the mean cross-entropy of the tokens that count.
#[derive(Debug)]
pub struct Perplexity;

impl Metric for Perplexity {
    fn name(&self) -> &'static str {
        "perplexity"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        needs_classes(context).or_else(|| {
            let what = "needs a text: a label at each position of a sample";
            (!context.labels_in_sequence).then(|| what.to_owned())
        })
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        let (outputs, labels) = rows(outputs, targets)?;
        let scores = score_classes(&outputs, &labels, 0.0)?;
        Ok(MetricState::Sums(vec![scores.loss_sum, scores.losses.len() as f64]))
    }

    fn value(&self, all: &MetricState) -> f64 {
        all.mean().exp()
    }
}

/// Cross-entropy of the tokens that count, in bits, over the bytes of their text: the same for any
/// tokenizer.
#[derive(Debug, Default)]
pub struct BitsPerByte {
    /// Bytes of each token of the vocabulary.
    bytes: Arc<[u32]>,
}

impl Metric for BitsPerByte {
    fn name(&self) -> &'static str {
        "bits_per_byte"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        needs_classes(context).or_else(|| {
            let what = "needs a text that is read by characters or by a tokenizer: the bytes of \
                        its tokens are not known";
            (!context.labels_in_sequence || !context.has_token_bytes).then(|| what.to_owned())
        })
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn of_tokens(&self, bytes: &Arc<[u32]>) -> Option<Arc<dyn Metric>> {
        Some(Arc::new(Self { bytes: bytes.clone() }))
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        let (outputs, labels) = rows(outputs, targets)?;
        let scores = score_classes(&outputs, &labels, 0.0)?;
        let labels = labels.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
        // Labels that do not count are negative.
        let counted = labels.into_iter().filter_map(|label| usize::try_from(label).ok());
        let bytes = counted.filter_map(|label| self.bytes.get(label)).map(|&n| u64::from(n));
        Ok(MetricState::Sums(vec![scores.loss_sum, bytes.sum::<u64>() as f64]))
    }

    fn value(&self, all: &MetricState) -> f64 {
        match all.sums() {
            [_, bytes] if *bytes > 0.0 => all.mean() / LN_2,
            _ => f64::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_over_the_bytes_of_counted_tokens() {
        // torch 2.15:
        // cross_entropy(scores, [2, 0, -100, 1], reduction="sum") / log(2) / (3 + 1 + 2)
        let scores = [[0.1f32, 0.7, -0.4], [1.5, -0.2, 0.3], [9.0, 9.0, 9.0], [0.0, 0.25, 0.5]];
        let scores = Tensor::new(&[scores], &Device::Cpu).unwrap();
        let labels = Tensor::new(&[[2i64, 0, -100, 1]], &Device::Cpu).unwrap();
        let metric = BitsPerByte::default().of_tokens(&[1, 2, 3].into()).unwrap();
        let kept = metric.measure(&scores, &labels).unwrap();
        let found = metric.value(&kept);
        assert!((found - EXPECTED).abs() < 1e-6, "{found}");
        assert!(metric.value(&MetricState::Sums(vec![0.0, 0.0])).is_nan());
    }

    const EXPECTED: f64 = 0.780_537_298_875_627_2;
}
