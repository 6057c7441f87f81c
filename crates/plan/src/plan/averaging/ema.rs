//! The moving average of the weights: how fast it moves, and whether it is still young.

use serde::{Deserialize, Serialize};

use crate::config::schema::Ema;
use crate::plan::arithmetic::shown;
use crate::plan::batch::counted;

/// A moving average of the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmaPlan {
    /// Share of the average that stays at an update.
    pub decay: f64,
    /// How fast the share grows up to `decay`; absent = it is `decay` from the first update on.
    pub power: Option<f64>,
    /// Whether running statistics are averaged as well; else those of the training go with the
    /// averages.
    #[serde(default)]
    pub use_buffers: bool,
}

impl EmaPlan {
    /// Share of initial weights in an average above which it says little about the training.
    const NOTABLE: f64 = 0.01;

    /// ", averaged: 0.9999 (power 0.75), with buffers"
    pub(crate) fn line(&self) -> String {
        let power = self.power.map_or(String::new(), |power| format!(" (power {})", shown(power)));
        let buffers = if self.use_buffers { ", with buffers" } else { "" };
        format!(", averaged: {}{power}{buffers}", shown(self.decay))
    }

    /// Share of the average that stays at the `count`-th update (from 1).
    ///
    /// With a `power` the average is the weights themselves at first and grows slower and slower,
    /// as `EMAModel` of diffusers has it: min(decay, 1 - (1 + t)^-power) with t = `count` - 2.
    pub fn decay_at(&self, count: u64) -> f64 {
        let Some(power) = self.power else { return self.decay };
        let t = count.saturating_sub(2) as f64;
        (1.0 - (1.0 + t).powf(-power)).clamp(0.0, self.decay)
    }

    /// Share of the initial weights in the average after so many updates; with a `power` the first
    /// one replaces them.
    pub fn initial_share(&self, updates: u64) -> f64 {
        match self.power {
            Some(_) if updates > 0 => 0.0,
            _ => self.decay.powf(updates as f64),
        }
    }

    /// Whether the average still holds so many initial weights that the weights themselves are
    /// measured beside it.
    pub fn is_young(&self, updates: u64) -> bool {
        self.initial_share(updates) > Self::NOTABLE
    }

    /// That an average after so many updates is young, in words.
    pub fn young(&self, updates: u64) -> Option<String> {
        let share = self.initial_share(updates);
        self.is_young(updates).then(|| {
            format!(
                "`ema.decay` is {}: after the {} of this run, {:.0} % of the average, which is \
                 evaluated and exported, are still initial weights (decay^steps)",
                shown(self.decay),
                counted(updates, "step", "steps"),
                (100.0 * share).max(1.0),
            )
        })
    }

    /// The same, and what decay would do.
    pub(crate) fn warning(&self, updates: u64) -> Option<String> {
        let young = self.young(updates)?;
        let fitting = Self::NOTABLE.powf(1.0 / updates.max(1) as f64);
        // Rounded down, to four digits of what is missing to 1.
        let digits = 1 - (1.0 - fitting).log10().floor() as i32;
        let unit = 10f64.powi(digits);
        let fitting = (fitting * unit).floor() / unit;
        Some(format!("{young}; choose at most {}, or `ema.power = 0.75`", shown(fitting)))
    }
}

/// The average as asked, if one is.
pub(crate) fn decide(asked: &Ema) -> Option<EmaPlan> {
    let power = asked.power;
    let use_buffers = asked.use_buffers.unwrap_or(false);
    asked.decay.map(|decay| EmaPlan { decay, power, use_buffers })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: EmaPlan = EmaPlan { decay: 0.9999, power: Some(0.75), use_buffers: false };

    #[test]
    fn the_decay_grows_as_in_diffusers_and_stays_below_its_limit() {
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
            let decay = PLAN.decay_at(before + 1);
            assert!((decay - expected).abs() < 1e-9, "{before}: {decay}");
        }
        assert_eq!(EmaPlan { decay: 0.99, power: None, ..PLAN }.decay_at(1), 0.99);
    }

    #[test]
    fn an_average_that_is_mostly_initial_weights_is_warned_of_and_a_decay_that_fits_is_named() {
        let of = |decay, power| EmaPlan { decay, power, ..PLAN };
        let words = of(0.9999, None).warning(222).unwrap();
        assert!(words.contains("`ema.decay` is 0.9999: after the 222 steps of this run, 98 %"));
        assert!(words.contains("choose at most 0.979, or"), "{words}");
        assert_eq!(of(0.979, None).warning(222), None);
        assert!(of(0.98, None).is_young(222) && !of(0.98, None).is_young(250));
        assert_eq!(of(0.9999, None).warning(50_000), None);
        assert_eq!(of(0.9999, Some(0.75)).warning(10), None, "it begins at the weights");
        assert!(of(0.9999, None).warning(1).unwrap().contains("after the 1 step"));
    }
}
