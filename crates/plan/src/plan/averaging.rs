//! Averages of the weights that replace them in evaluations: `[ema]`, `[swa]`, `[lookahead]`. A run
//! has at most one.

use serde::{Deserialize, Serialize};

use crate::config::schema::Ema;
use crate::config::values;
use crate::config::{Loaded, Problem};
use crate::plan::{AnnealStrategy, BatchPlan, Interval, LengthPlan, OptimizerPlan, Plan, scale_lr};
use crate::terminal::counted;
use crate::terminal::format_number;

/// An average that a run keeps of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Average {
    /// First part of its tensors' names in a checkpoint.
    pub name: &'static str,
    /// True if running statistics are averaged as well.
    pub of_buffers: bool,
}

impl Plan {
    /// The average as `ddprun plan` shows it behind the optimizer.
    pub(super) fn average_line(&self) -> String {
        let ema = self.ema.map_or(String::new(), |ema| ema.line());
        let swa = self.swa.map_or(String::new(), |swa| swa.line());
        let lookahead = self.lookahead.map_or(String::new(), |lookahead| lookahead.line());
        ema + &swa + &lookahead
    }

    /// The average of the weights, if one is kept.
    pub fn average(&self) -> Option<Average> {
        let ema = self.ema.map(|ema| Average { name: "ema", of_buffers: ema.use_buffers });
        let whole = |name| Average { name, of_buffers: true };
        let swa = || self.swa.map(|_| whole("swa"));
        ema.or_else(swa).or_else(|| self.lookahead.map(|_| whole("lookahead")))
    }
}

/// An exponential moving average of the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmaPlan {
    /// Share of the average that stays at an update.
    pub decay: f64,
    /// Speed at which the share grows up to `decay`; absent = it is `decay` from the first update
    /// on.
    pub power: Option<f64>,
    /// True if running statistics are averaged as well; else those of the training go with the
    /// averages.
    #[serde(default)]
    pub use_buffers: bool,
}

impl EmaPlan {
    /// Share of initial weights in an average above which it says little about the training.
    const NOTABLE: f64 = 0.01;

    /// ", averaged: 0.9999 (power 0.75), with buffers"
    fn line(&self) -> String {
        let power =
            self.power.map_or(String::new(), |power| format!(" (power {})", format_number(power)));
        let buffers = if self.use_buffers { ", with buffers" } else { "" };
        format!(", averaged: {}{power}{buffers}", format_number(self.decay))
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
    fn initial_share(&self, updates: u64) -> f64 {
        match self.power {
            Some(_) if updates > 0 => 0.0,
            _ => self.decay.powf(updates as f64),
        }
    }

    /// True if the average still holds so much of the initial weights that the weights themselves
    /// are evaluated beside it.
    pub fn is_young(&self, updates: u64) -> bool {
        self.initial_share(updates) > Self::NOTABLE
    }

    /// A warning that the average is still young after so many updates.
    pub fn young(&self, updates: u64) -> Option<String> {
        let share = self.initial_share(updates);
        self.is_young(updates).then(|| {
            format!(
                "`ema.decay` is {}: after the {} of this run, {:.0} % of the average, which is \
                 evaluated and exported, are still initial weights (decay^steps)",
                format_number(self.decay),
                counted(updates, "step"),
                (100.0 * share).max(1.0),
            )
        })
    }

    /// The same warning with a decay that fits the run.
    pub(super) fn warning(&self, updates: u64) -> Option<String> {
        let young = self.young(updates)?;
        let fitting = Self::NOTABLE.powf(1.0 / updates.max(1) as f64);
        // Rounded down, to four digits of what is missing to 1.
        let digits = 1 - (1.0 - fitting).log10().floor() as i32;
        let unit = 10f64.powi(digits);
        let fitting = (fitting * unit).floor() / unit;
        Some(format!("{young}; choose at most {}, or `ema.power = 0.75`", format_number(fitting)))
    }
}

/// The plan of `[ema]`, if it has a decay.
pub(super) fn ema(config: &Ema) -> Option<EmaPlan> {
    let power = config.power;
    let use_buffers = config.use_buffers.unwrap_or(false);
    config.decay.map(|decay| EmaPlan { decay, power, use_buffers })
}

/// Stochastic weight averaging: the plain average of the weights at the end of some epochs or steps
/// (Izmailov et al. 2018).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwaPlan {
    /// Steps before the first average.
    pub start: u64,
    /// Interval at which the weights join the average.
    pub every: Interval,
    /// The learning rate from the start on, if it is not the schedule's.
    pub rate: Option<SwaRate>,
}

/// A learning rate that goes from the schedule's to another one, and stays there, as
/// `torch.optim.swa_utils.SWALR`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwaRate {
    /// Final rate, after scaling by the global batch size.
    pub lr: f64,
    /// Epochs that the transition takes.
    pub anneal_epochs: u64,
    /// Shape of the transition.
    pub anneal_strategy: AnnealStrategy,
}

impl SwaPlan {
    /// True if the weights after `step` steps join the average.
    pub fn is_due(&self, step: u64, steps_per_epoch: u64) -> bool {
        let ends_epoch = step.is_multiple_of(steps_per_epoch.max(1));
        let epoch = step / steps_per_epoch.max(1);
        step > self.start && self.every.is_due(step, epoch, ends_epoch)
    }

    /// The first step whose weights join the average.
    fn first(&self, steps_per_epoch: u64) -> u64 {
        let unit = match self.every {
            Interval::Epochs(n) => n.saturating_mul(steps_per_epoch),
            Interval::Steps(n) => n,
            Interval::Never => u64::MAX,
        };
        (self.start / unit.max(1) + 1).saturating_mul(unit)
    }

    /// ", averaged: SWA each epoch after step 160"
    fn line(&self) -> String {
        let every = match self.every {
            Interval::Epochs(1) => "each epoch".to_owned(),
            Interval::Epochs(n) => format!("every {n} epochs"),
            Interval::Steps(1) => "each step".to_owned(),
            Interval::Steps(n) => format!("every {n} steps"),
            Interval::Never => String::new(),
        };
        let rate = self.rate.map_or(String::new(), |SwaRate { lr, anneal_epochs, .. }| {
            let epochs = counted(anneal_epochs, "epoch");
            format!(", to lr {} within {epochs}", format_number(lr))
        });
        format!(", averaged: SWA {every} after step {}{rate}", self.start)
    }
}

/// The plan of `[swa]`, if it has a start.
pub(super) fn swa(
    loaded: &Loaded,
    length: &LengthPlan,
    batch: &BatchPlan,
    optimizer: &OptimizerPlan,
) -> Result<Option<SwaPlan>, Problem> {
    let config = &loaded.experiment.swa;
    let per_epoch = length.steps_per_epoch;
    let start = match config.start {
        None | Some(values::Interval::Never) => return Ok(None),
        Some(values::Interval::Epochs(n)) => n.saturating_mul(per_epoch),
        Some(values::Interval::Steps(n)) => n,
    };
    let scaled = |lr| scale_lr(optimizer.scaling, lr, optimizer.base_batch_size, batch.global);
    let rate = config.lr.map(|lr| SwaRate {
        lr: scaled(lr),
        anneal_epochs: config.anneal_epochs.unwrap_or(10),
        anneal_strategy: config.anneal_strategy.unwrap_or_default(),
    });
    let every = config.every.map_or(Interval::Epochs(1), Interval::from);
    let plan = SwaPlan { start, every, rate };
    let first = plan.first(per_epoch);
    let total = length.total_steps;
    if length.is_bounded() && first > total {
        let what =
            format!("the first weights to average are those of step {first}, the run has {total}");
        return Err(loaded.problem("swa.start", what).help("start earlier, or train longer"));
    }
    Ok(Some(plan))
}

/// Slow weights that fast ones come back to (Zhang et al. 2019).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookaheadPlan {
    /// Steps between two updates of the slow weights.
    pub k: u64,
    /// Step size of slow weights towards the fast ones, from 0 to 1.
    pub alpha: f64,
    /// Exponent by which the step size falls from 1 to `alpha` over the run; absent = it is always
    /// `alpha`.
    pub power: Option<f64>,
}

impl LookaheadPlan {
    /// True if slow weights are updated after `step` steps.
    pub fn is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.k.max(1))
    }

    /// ", lookahead every 5 steps by 0.5"
    fn line(&self) -> String {
        let power =
            self.power.map_or(String::new(), |power| format!(" (power {})", format_number(power)));
        format!(", lookahead every {} steps by {}{power}", self.k, format_number(self.alpha))
    }
}

/// The plan of `[lookahead]`, if it has a `k`.
pub(super) fn lookahead(
    loaded: &Loaded,
    length: &LengthPlan,
) -> Result<Option<LookaheadPlan>, Problem> {
    let config = &loaded.experiment.lookahead;
    let Some(k) = config.k else { return Ok(None) };
    if config.power.is_some() && !length.is_bounded() {
        let what = "needs a last step, which `train.time` alone does not give";
        let help = "give `train.epochs` or `train.steps`, or leave it out";
        return Err(loaded.problem("lookahead.power", what.to_owned()).help(help));
    }
    Ok(Some(LookaheadPlan { k, alpha: config.alpha.unwrap_or(0.5), power: config.power }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMA: EmaPlan = EmaPlan { decay: 0.9999, power: Some(0.75), use_buffers: false };

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
            let decay = EMA.decay_at(before + 1);
            assert!((decay - expected).abs() < 1e-9, "{before}: {decay}");
        }
        assert_eq!(EmaPlan { decay: 0.99, power: None, ..EMA }.decay_at(1), 0.99);
    }

    #[test]
    fn an_average_that_is_mostly_initial_weights_is_warned_of_and_a_decay_that_fits_is_named() {
        let of = |decay, power| EmaPlan { decay, power, ..EMA };
        let words = of(0.9999, None).warning(222).unwrap();
        assert!(words.contains("`ema.decay` is 0.9999: after the 222 steps of this run, 98 %"));
        assert!(words.contains("choose at most 0.979, or"), "{words}");
        assert_eq!(of(0.979, None).warning(222), None);
        assert!(of(0.98, None).is_young(222) && !of(0.98, None).is_young(250));
        assert_eq!(of(0.9999, None).warning(50_000), None);
        assert_eq!(of(0.9999, Some(0.75)).warning(10), None, "it begins at the weights");
        assert!(of(0.9999, None).warning(1).unwrap().contains("after the 1 step"));
    }

    #[test]
    fn weights_join_after_the_start_at_the_ends_of_epochs_or_at_steps() {
        let due = |start, every| -> Vec<u64> {
            let plan = SwaPlan { start, every, rate: None };
            let due: Vec<u64> = (1..=24).filter(|&step| plan.is_due(step, 4)).collect();
            assert_eq!(due.first().copied(), Some(plan.first(4)).filter(|&first| first <= 24));
            due
        };
        assert_eq!(due(8, Interval::Epochs(1)), [12, 16, 20, 24]);
        assert_eq!(due(9, Interval::Epochs(2)), [16, 24]);
        assert_eq!(due(0, Interval::Epochs(3)), [12, 24]);
        assert_eq!(due(10, Interval::Steps(5)), [15, 20]);
        assert!(due(24, Interval::Steps(5)).is_empty());
    }
}
