//! Rates that fall to the end of the run, or again and again: `scheduler.name = "linear"`,
//! `"polynomial"`, `"cosine"`, `"cosine_restarts"`, `"wsd"`, `"inverse_sqrt"`

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::optim::scheduler::Scheduler;
use crate::plan::{Span, Unfit, format_number};

/// Intervals to the end of the run.
fn total(span: &Span) -> u64 {
    span.intervals.unwrap_or(u64::MAX)
}

/// Share of the run after `t` intervals, at most 1.
fn share(t: u64, span: &Span) -> f64 {
    let total = total(span);
    t.min(total) as f64 / total.max(1) as f64
}

/// From 1 down to 0 along half a cosine.
fn half_cosine(share: f64) -> f64 {
    f64::midpoint(1.0, (PI * share).cos())
}

/// The rate that is left of a fall to `eta_min`, of which `factor` is still to come.
fn above(eta_min: f64, factor: f64, span: &Span) -> f64 {
    eta_min + (span.lr - eta_min) * factor
}

fn is_below_peak(eta_min: f64, span: &Span) -> Result<(), Unfit> {
    if eta_min <= span.lr {
        return Ok(());
    }
    let what = format!("must be at most the learning rate, {}", span.lr);
    Err(Unfit { key: "eta_min", what, help: None })
}

/// the rate falls along half a cosine to the end of the run, as PyTorch's `CosineAnnealingLR`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CosineAnnealingLr {
    /// lowest learning rate; at most the scaled `optimizer.lr`.
    #[schemars(range(min = 0.0), example = 1e-5)]
    pub eta_min: f64,
}

impl Kind for CosineAnnealingLr {
    const NAME: &'static str = "cosine";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::LastStep];
}

impl Scheduler for CosineAnnealingLr {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        above(self.eta_min, half_cosine(share(t, span)), span)
    }

    fn describe(&self, span: &Span) -> String {
        format!("cosine over {} {} to {}", total(span), span.unit(), format_number(self.eta_min))
    }

    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        is_below_peak(self.eta_min, span)
    }
}

/// the rate falls in a straight line to the end of the run, as `linear` of transformers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Linear {
    /// last learning rate; at most the scaled `optimizer.lr`.
    #[schemars(range(min = 0.0), example = 1e-5)]
    pub eta_min: f64,
}

impl Kind for Linear {
    const NAME: &'static str = "linear";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::LastStep];
}

impl Scheduler for Linear {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        above(self.eta_min, 1.0 - share(t, span), span)
    }

    fn describe(&self, span: &Span) -> String {
        format!("linear over {} {} to {}", total(span), span.unit(), format_number(self.eta_min))
    }

    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        is_below_peak(self.eta_min, span)
    }
}

/// the rate falls with a power of what is left of the run, as PyTorch's `PolynomialLR`, and
/// `polynomial` of transformers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolynomialLr {
    /// exponent: 1 is a straight line, 2 falls fast at first.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub power: f64,
    /// last learning rate; at most the scaled `optimizer.lr`.
    #[schemars(range(min = 0.0), example = 1e-7)]
    pub eta_min: f64,
}

impl Default for PolynomialLr {
    fn default() -> Self {
        Self { power: 1.0, eta_min: 0.0 }
    }
}

impl Kind for PolynomialLr {
    const NAME: &'static str = "polynomial";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::LastStep];
}

impl Scheduler for PolynomialLr {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        above(self.eta_min, (1.0 - share(t, span)).powf(self.power), span)
    }

    fn describe(&self, span: &Span) -> String {
        let [power, eta_min] = [self.power, self.eta_min].map(format_number);
        format!("polynomial: power {power} over {} {} to {eta_min}", total(span), span.unit())
    }

    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        is_below_peak(self.eta_min, span)
    }
}

/// the rate falls along half a cosine again and again (Loshchilov and Hutter 2017), as PyTorch's
/// `CosineAnnealingWarmRestarts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CosineRestarts {
    /// intervals of the first fall.
    #[schemars(range(min = 1), example = 10)]
    pub t_0: u64,
    /// each fall is longer than the one before by this factor.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub t_mult: u64,
    /// lowest learning rate; at most the scaled `optimizer.lr`.
    #[serde(default)]
    #[schemars(range(min = 0.0), example = 1e-5)]
    pub eta_min: f64,
}

fn one() -> u64 {
    1
}

impl CosineRestarts {
    /// Share of the fall that the rate after `t` intervals is in.
    fn share(&self, t: u64) -> f64 {
        let mut length = self.t_0.max(1);
        if self.t_mult <= 1 {
            return (t % length) as f64 / length as f64;
        }
        let mut since = t;
        while since >= length {
            since -= length;
            length = length.saturating_mul(self.t_mult);
        }
        since as f64 / length as f64
    }
}

impl Kind for CosineRestarts {
    const NAME: &'static str = "cosine_restarts";
}

impl Scheduler for CosineRestarts {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        above(self.eta_min, half_cosine(self.share(t)), span)
    }

    fn describe(&self, span: &Span) -> String {
        let Self { t_0, t_mult, eta_min } = self;
        let growth =
            if *t_mult > 1 { format!(", then {t_mult} times as long") } else { String::new() };
        format!(
            "cosine_restarts: every {t_0} {}{growth}, to {}",
            span.unit(),
            format_number(*eta_min)
        )
    }

    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        is_below_peak(self.eta_min, span)
    }
}

/// Form of the fall at the end of [`WarmupStableDecay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DecayType {
    /// In a straight line.
    #[serde(rename = "linear")]
    Linear,
    /// Along half a cosine.
    #[serde(rename = "cosine")]
    Cosine,
    /// With 1 - sqrt(share of the fall) (Hägele et al. 2024).
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

/// the rate stays at its peak and falls at the end of the run: warm-up, stable, decay (Hu et al.
/// 2024), as `warmup_stable_decay` of transformers. A run can be made longer from a checkpoint
/// before the fall.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WarmupStableDecay {
    /// share of the run, without its warm-up, in which the rate falls.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub decay: f64,
    /// form of the fall.
    pub decay_type: DecayType,
    /// last learning rate; at most the scaled `optimizer.lr`.
    #[schemars(range(min = 0.0), example = 1e-5)]
    pub eta_min: f64,
}

impl Default for WarmupStableDecay {
    fn default() -> Self {
        Self { decay: 0.1, decay_type: DecayType::OneMinusSqrt, eta_min: 0.0 }
    }
}

impl WarmupStableDecay {
    /// Intervals of the fall, at least 1.
    fn length(&self, span: &Span) -> u64 {
        ((self.decay * total(span) as f64).round() as u64).clamp(1, total(span).max(1))
    }
}

impl Kind for WarmupStableDecay {
    const NAME: &'static str = "wsd";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::LastStep];
}

impl Scheduler for WarmupStableDecay {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        let length = self.length(span);
        let begin = total(span).saturating_sub(length);
        let share = t.saturating_sub(begin).min(length) as f64 / length as f64;
        let left = match self.decay_type {
            DecayType::Linear => 1.0 - share,
            DecayType::Cosine => half_cosine(share),
            DecayType::OneMinusSqrt => 1.0 - share.sqrt(),
        };
        above(self.eta_min, left, span)
    }

    fn describe(&self, span: &Span) -> String {
        let form = match self.decay_type {
            DecayType::Linear => "linear",
            DecayType::Cosine => "cosine",
            DecayType::OneMinusSqrt => "1-sqrt",
        };
        let (last, of, unit) = (self.length(span), total(span), span.unit());
        format!("wsd: {form} in the last {last} of {of} {unit} to {}", format_number(self.eta_min))
    }

    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        is_below_peak(self.eta_min, span)
    }
}

/// the rate falls with the inverse square root of the step, and needs no last one, as
/// `inverse_sqrt` of transformers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InverseSqrt {
    /// steps in which the rate falls to 1 / sqrt(2) after the warm-up; by default those of the
    /// warm-up, or 10,000.
    #[schemars(range(min = 1), example = 10_000)]
    pub timescale: Option<u64>,
}

impl InverseSqrt {
    fn timescale(&self, span: &Span) -> u64 {
        let warmup = Some(span.warmup_steps).filter(|steps| *steps > 0);
        self.timescale.or(warmup).unwrap_or(10_000).max(1)
    }
}

impl Kind for InverseSqrt {
    const NAME: &'static str = "inverse_sqrt";
}

impl Scheduler for InverseSqrt {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        let timescale = self.timescale(span) as f64;
        span.lr / ((t as f64 + timescale) / timescale).sqrt()
    }

    fn describe(&self, span: &Span) -> String {
        format!("inverse_sqrt with a timescale of {} steps", self.timescale(span))
    }

    fn moves_by_steps(&self) -> bool {
        true
    }
}
