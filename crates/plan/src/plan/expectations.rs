//! What `[expect]` asks for: whether a run can reach it, and what it has missed in the end.

use crate::config::schema::Expectation;
use crate::config::{Loaded, Problem};
use crate::plan::{KindFacts, LossPlan, Plan};

impl Plan {
    /// The entries of `[expect]` that a run did not reach, in words; `measured` are its last values,
    /// of the metric that ranks checkpoints the best.
    pub fn missed_expectations(&self, measured: impl Fn(&str) -> Option<f64>) -> Option<String> {
        let missed = |(metric, expected): (&String, &Expectation)| {
            missed(metric, measured(metric), expected)
        };
        let missed: Vec<String> = self.expect.iter().filter_map(missed).collect();
        (!missed.is_empty()).then(|| missed.join("; "))
    }
}

/// How `value` misses what is expected of `metric`; `None` if it does not.
fn missed(metric: &str, value: Option<f64>, expected: &Expectation) -> Option<String> {
    let Some(value) = value else { return Some(format!("`{metric}` was never measured")) };
    let low = expected.at_least.filter(|least| value < *least);
    let high = expected.at_most.filter(|most| value > *most);
    let low = low.map(|least| format!("`{metric}` is {value:.4}, expected at least {least}"));
    low.or_else(|| high.map(|most| format!("`{metric}` is {value:.4}, expected at most {most}")))
}

/// That a loss is expected to be less than it can be.
pub(crate) fn impossible_loss<'a>(
    loaded: &'a Loaded,
    loss: &'a LossPlan,
    kinds: &dyn KindFacts,
) -> impl Iterator<Item = Problem> + 'a {
    let is_never_negative = kinds.loss(&loss.kind).is_ok_and(|facts| facts.is_never_negative);
    let expected = loaded.experiment.expect.iter().filter(move |_| is_never_negative);
    expected.filter_map(move |(metric, expected)| {
        let is_below = expected.at_most.is_some_and(|most| most < 0.0);
        let is_loss = metric.ends_with("/loss");
        (is_loss && is_below).then(|| {
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
