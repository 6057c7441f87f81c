//! `scheduler.name = "one_cycle"`

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::optim::scheduler::Scheduler;
use crate::plan::{AnnealStrategy, Span, Unfit, format_number};

/// Lowest and highest momentum: the defaults of `OneCycleLR`.
const MOMENTUM: [f64; 2] = [0.85, 0.95];

/// the rate rises and falls once over the run (Smith and Topin 2018), as PyTorch's `OneCycleLR`;
/// its peak is `optimizer.lr`. Unless `cycle_momentum` is false, it also moves the optimizer's
/// momentum (Adam's first beta) from 0.95 down to 0.85 and back, overriding the configured value. A
/// warm-up precedes the cycle and rises to its first rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneCycleLr {
    /// fraction of the run in which the rate rises.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub pct_start: f64,
    /// the first rate is the peak divided by this.
    #[schemars(range(min = 1.0))]
    pub div_factor: f64,
    /// the last rate is the first divided by this.
    #[schemars(range(min = 1.0))]
    pub final_div_factor: f64,
    /// shape of the rise and the fall.
    pub anneal_strategy: AnnealStrategy,
    /// whether momentum is cycled inversely to the rate.
    pub cycle_momentum: bool,
}

impl Default for OneCycleLr {
    fn default() -> Self {
        Self {
            pct_start: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
            anneal_strategy: AnnealStrategy::Cos,
            cycle_momentum: true,
        }
    }
}

impl Kind for OneCycleLr {
    const NAME: &'static str = "one_cycle";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::LastStep];
}

/// Steps of the cycle.
fn total(span: &Span) -> u64 {
    span.intervals.unwrap_or(u64::MAX)
}

impl OneCycleLr {
    /// Value after `t` steps of a cycle from `first` over `peak` to `last`, with PyTorch's borders
    /// between the phases.
    fn at(&self, t: u64, span: &Span, [first, peak, last]: [f64; 3]) -> f64 {
        let total = total(span) as f64;
        let peak_at = self.pct_start * total - 1.0;
        let end_at = total - 1.0;
        let now = t as f64;
        let between = |from: f64, to: f64, share: f64| match self.anneal_strategy {
            AnnealStrategy::Cos => anneal(from, to, share),
            AnnealStrategy::Linear => from + (to - from) * share,
        };
        if now <= peak_at {
            between(first, peak, now / peak_at)
        } else {
            between(peak, last, ((now - peak_at) / (end_at - peak_at)).min(1.0))
        }
    }
}

impl Scheduler for OneCycleLr {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        let first = span.lr / self.div_factor;
        self.at(t, span, [first, span.lr, first / self.final_div_factor])
    }

    fn describe(&self, span: &Span) -> String {
        let rise = format_number(self.pct_start * 100.0);
        let linear = self.anneal_strategy == AnnealStrategy::Linear;
        let shape = if linear { ", linear" } else { "" };
        format!("one_cycle over {} steps, rising for {rise} %{shape}", total(span))
    }

    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        let pct_start = self.pct_start;
        let total = total(span);
        // The rate is that of the peak before the second step: PyTorch divides by zero, or leaves
        // the rise out.
        if pct_start == 0.0 || pct_start * total as f64 > 1.0 {
            return Ok(());
        }
        let what = format!("leaves no step in which the rate rises: {pct_start} of {total} steps");
        let help = Some("train for longer, or give a larger share; 0 begins at the peak");
        Err(Unfit { key: "pct_start", what, help })
    }

    fn warmup_target(&self, span: &Span) -> f64 {
        self.lr(0, span)
    }

    fn moves_by_steps(&self) -> bool {
        true
    }

    fn momentum_range(&self) -> Option<[f64; 2]> {
        self.cycle_momentum.then_some(MOMENTUM)
    }

    fn momentum(&self, t: u64, span: &Span) -> Option<f64> {
        let [low, high] = self.momentum_range()?;
        Some(self.at(t, span, [high, low, high]))
    }
}

/// Half a cosine: `from` at 0, `to` at 1.
fn anneal(from: f64, to: f64, share: f64) -> f64 {
    to + (from - to) / 2.0 * (1.0 + (PI * share).cos())
}
