//! `scheduler.name = "constant"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::optim::scheduler::Scheduler;
use crate::plan::Span;

/// the same rate throughout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Constant {}

impl Kind for Constant {
    const NAME: &'static str = "constant";
}

impl Scheduler for Constant {
    fn lr(&self, _: u64, span: &Span) -> f64 {
        span.lr
    }

    fn describe(&self, _: &Span) -> String {
        Self::NAME.to_owned()
    }
}
