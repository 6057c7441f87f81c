//! How far the slow weights of Lookahead go to the fast ones.

use crate::plan::LookaheadPlan;

/// The share of their way after `step` steps of `last`: `alpha`, or, with a `power`, from all of it
/// in the beginning down to `alpha` in the end.
pub fn lookahead_share(plan: &LookaheadPlan, step: u64, last: u64) -> f64 {
    let done = (step as f64 / last.max(1) as f64).min(1.0);
    1.0 - (1.0 - plan.alpha) * plan.power.map_or(1.0, |power| done.powf(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_falls_to_alpha_as_in_airbench94() {
        // 1 - 0.95^5 (step / 100)^3
        let plan = LookaheadPlan { k: 5, alpha: 1.0 - 0.95_f64.powi(5), power: Some(3.0) };
        for (step, expected) in [(5, 0.999_903_277), (50, 0.903_277_382), (100, 0.226_219_062)] {
            assert!((lookahead_share(&plan, step, 100) - expected).abs() < 1e-8, "{step}");
        }
        let constant = LookaheadPlan { power: None, alpha: 0.5, ..plan };
        assert_eq!(lookahead_share(&constant, 5, 100), 0.5);
        assert!(constant.is_due(10) && !constant.is_due(11));
    }
}
