//! `sweep.method = "random"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::config::sweep::Values;
use crate::sweep::method::{Method, ProposalRequest};
use crate::sweep::sampler;

/// independent draws that depend only on the seed and the trial's number; none is drawn twice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Random {}

impl Kind for Random {
    const NAME: &'static str = "random";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::Parameters, Requirement::Trials];
}

impl Method for Random {
    fn propose(&self, request: &ProposalRequest<'_>) -> Option<Values> {
        sampler::random(request)
    }

    fn n_independent(&self) -> usize {
        usize::MAX
    }
}
