//! `sweep.pruner = "none"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::sweep::pruner::{Pruner, Running};

/// no trial is stopped early.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NoPruner {}

impl Kind for NoPruner {
    const NAME: &'static str = "none";
}

impl Pruner for NoPruner {
    fn is_cut(&self, _: &Running<'_>) -> bool {
        false
    }

    fn is_off(&self) -> bool {
        true
    }
}
