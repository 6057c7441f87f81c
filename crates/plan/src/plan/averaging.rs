//! Averages of the weights, which stand for them in evaluations: `[ema]`, `[swa]`, `[lookahead]`. A
//! run has one at most.

pub(super) mod ema;
pub(super) mod lookahead;
pub(super) mod swa;

use crate::plan::Plan;
pub use ema::EmaPlan;
pub use lookahead::LookaheadPlan;
pub use swa::{SwaPlan, SwaRate};

/// An average that a run keeps of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Average {
    /// First part of its tensors' names in a checkpoint.
    pub name: &'static str,
    /// Whether there is one of each running statistic as well.
    pub of_buffers: bool,
}

impl Plan {
    /// What `ddprun plan` says of it behind the optimizer.
    pub(crate) fn average_line(&self) -> String {
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
