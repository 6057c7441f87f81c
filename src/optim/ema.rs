//! How fast the average of the weights follows them.

use crate::plan::EmaPlan;

/// Share of the average that stays at the `count`-th update (from 1).
///
/// With a `power` the average is the weights themselves at first and grows slower and slower, as
/// `EMAModel` of diffusers has it: min(decay, 1 - (1 + t)^-power) with t = `count` - 2.
pub fn ema_decay(plan: &EmaPlan, count: u64) -> f64 {
    let Some(power) = plan.power else { return plan.decay };
    let t = count.saturating_sub(2) as f64;
    (1.0 - (1.0 + t).powf(-power)).clamp(0.0, plan.decay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decay_grows_as_in_diffusers_and_stays_below_its_limit() {
        let plan = EmaPlan { decay: 0.9999, power: Some(0.75), use_buffers: false };
        let golden = [
            (0, 0.0),
            (1, 0.0),
            (2, 0.405_396_442_5),
            (3, 0.561_308_662_3),
            (10, 0.822_172_059),
            (100, 0.968_377_223_4),
            (10_000, 0.999),
            (300_000, 0.9999),
        ];
        for (before, expected) in golden {
            let decay = ema_decay(&plan, before + 1);
            assert!((decay - expected).abs() < 1e-9, "{before}: {decay}");
        }
        assert_eq!(ema_decay(&EmaPlan { decay: 0.99, power: None, ..plan }, 1), 0.99);
    }
}
