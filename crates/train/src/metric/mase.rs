//! `val/mase`

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::metric::errors::{ERRORS_STATE, measure, of_targets};
use crate::metric::{Metric, MetricState, needs_numbers};
use crate::plan::{MetricContext, Mode};

/// Mean absolute scaled error (Hyndman and Koehler, 2006,
/// <https://doi.org/10.1016/j.ijforecast.2006.03.001>): the mean absolute error of each series over
/// that of the seasonal naive forecast of its training rows; the mean over the series that vary.
#[derive(Clone, Debug, Default)]
pub struct Mase {
    /// Errors of the naive forecast, by series.
    naive: Arc<[f64]>,
}

impl Metric for Mase {
    fn name(&self) -> &'static str {
        "mase"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        needs_numbers(context).or_else(|| {
            let what = "compares with the naive forecast of a series, but the data are none";
            (!context.has_naive_errors).then(|| what.to_owned())
        })
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn state_name(&self) -> &'static str {
        ERRORS_STATE
    }

    fn of_series(&self, naive: &[f64]) -> Option<Arc<dyn Metric>> {
        Some(Arc::new(Self { naive: naive.into() }))
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        measure(outputs, targets)
    }

    fn value(&self, all: &MetricState) -> f64 {
        let series = of_targets(all).into_iter().zip(self.naive.iter());
        let scaled: Vec<f64> = series
            .filter(|(_, naive)| **naive > 0.0)
            .map(|(errors, naive)| errors.mae() / naive)
            .collect();
        scaled.iter().sum::<f64>() / scaled.len() as f64
    }
}

/// A warning if a forecast is worse than one without a model, by the metrics of `split`: `val` or
/// `test`.
pub fn naive_forecast_warning(split: &str, metrics: &BTreeMap<String, f64>) -> Option<String> {
    let of = |name: &str| metrics.get(&format!("{split}/{name}")).copied();
    let baselines =
        [("seasonal_naive", "repeating the last season"), ("naive", "repeating the last value")];
    let worse = |(baseline, what): (&str, &str)| {
        let of_metric = |metric: &'static str| {
            let own = of(metric)?;
            let other = of(&format!("{baseline}_{metric}"))?;
            (own > other).then_some((metric, own, other))
        };
        let (metric, own, other) = of_metric("mae").or_else(|| of_metric("mse"))?;
        Some(format!("{what} ({split}/{metric} {own:.4}, without a model {other:.4})"))
    };
    let found: Vec<String> = baselines.into_iter().filter_map(worse).collect();
    (!found.is_empty()).then(|| {
        format!(
            "the forecast is worse than {}: train longer, with another learning rate, `data.seq_len` \
             or model",
            found.join(" and than ")
        )
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn errors_are_scaled_by_series_whatever_the_batches() {
        let tensor = |rows: &[[f32; 3]]| {
            let rows: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
            Tensor::new(rows, &Device::Cpu).unwrap()
        };
        let (outputs, targets) =
            ([[1.0, 2.0, 9.0], [3.0, 0.0, 9.0]], [[2.0, 2.0, 0.0], [0.0, 1.0, 0.0]]);
        let mase = Mase::default().of_series(&[4.0, 0.25, 0.0]).unwrap();
        let whole = mase.measure(&tensor(&outputs), &tensor(&targets)).unwrap();
        // Mean errors are 2 and 0.5; the third series is constant.
        assert_eq!(mase.value(&whole), f64::midpoint(0.5, 2.0));
        let mut parts = mase.measure(&tensor(&outputs[..1]), &tensor(&targets[..1])).unwrap();
        parts.add(mase.measure(&tensor(&outputs[1..]), &tensor(&targets[1..])).unwrap());
        assert_eq!(parts, whole);
        assert!(Mase::default().value(&whole).is_nan());
    }

    #[test]
    fn a_forecast_worse_than_a_naive_one_is_named() {
        let named = |metrics: &[(&str, f64)]| {
            let metrics = metrics.iter().map(|(name, value)| (format!("val/{name}"), *value));
            naive_forecast_warning("val", &metrics.collect())
        };
        let naive = [("naive_mae", 0.5), ("naive_mse", 0.4), ("seasonal_naive_mae", 0.3)];
        let with = |mae, mse| [&naive[..], &[("mae", mae), ("mse", mse)]].concat();
        assert_eq!(named(&with(0.2, 0.3)), None);
        assert_eq!(named(&[("mae", 9.0)]), None);
        let season =
            "worse than repeating the last season (val/mae 0.4000, without a model 0.3000):";
        assert!(named(&with(0.4, 0.3)).unwrap().contains(season));
        let value = "than repeating the last value (val/mse 0.6000, without a model 0.4000)";
        assert!(named(&with(0.2, 0.6)).unwrap().contains(value));
    }
}
