//! `[expect]`: values of metrics that a run must reach, and whether it has reached them.

use crate::config::{Loaded, Problem};
use crate::plan::{Expectation, LossPlan, Plan};

impl Plan {
    /// The entries of `[expect]` that a run missed, in words. `measured` returns the last value of
    /// a metric, or the best value of the metric that ranks checkpoints.
    pub fn missed_expectations(&self, measured: impl Fn(&str) -> Option<f64>) -> Option<String> {
        let missed = |(metric, expected): (&String, &Expectation)| {
            missed(metric, measured(metric), expected)
        };
        let missed: Vec<String> = self.expect.iter().filter_map(missed).collect();
        (!missed.is_empty()).then(|| missed.join("; "))
    }
}

/// A sentence about how `value` misses the expectation of `metric`; `None` if it does not.
fn missed(metric: &str, value: Option<f64>, expected: &Expectation) -> Option<String> {
    let Some(value) = value else { return Some(format!("`{metric}` was never measured")) };
    let low = expected.at_least.filter(|least| value < *least);
    let high = expected.at_most.filter(|most| value > *most);
    let low = low.map(|least| format!("`{metric}` is {value:.4}, expected at least {least}"));
    low.or_else(|| high.map(|most| format!("`{metric}` is {value:.4}, expected at most {most}")))
}

/// Problems of a loss that is never negative but expected to be at most a negative number.
pub(super) fn impossible_losses<'a>(
    loaded: &'a Loaded,
    loss: &'a LossPlan,
) -> impl Iterator<Item = Problem> + 'a {
    loaded.experiment.expect.iter().filter_map(|(metric, expected)| {
        let is_below = expected.at_most.is_some_and(|most| most < 0.0);
        (metric.ends_with("/loss") && is_below).then(|| {
            let what = format!("must be at least 0: `{}` is never less", loss.kind.name);
            loaded.problem(&format!("expect.\"{metric}\""), what)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_is_missed_on_either_side_or_when_unmeasured() {
        let expected = Expectation { at_least: Some(0.9), at_most: Some(1.0) };
        assert_eq!(missed("val/accuracy", Some(0.95), &expected), None);
        assert!(missed("val/accuracy", Some(0.8), &expected).unwrap().contains("at least 0.9"));
        assert!(missed("val/accuracy", Some(1.1), &expected).unwrap().contains("at most 1"));
        assert!(missed("val/accuracy", None, &expected).unwrap().contains("never measured"));
    }
}
