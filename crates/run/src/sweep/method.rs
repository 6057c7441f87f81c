//! Search methods, which choose the values of trials: `random` and `list` here, the others one source
//! file each.

mod gp;
mod grid;
mod lr_range;
mod tpe;

use std::fmt::Debug;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::config::sweep::{METHOD, Search, Values};
use crate::registry::{Accepts, Family, Registered, Registry};
use crate::sweep::ranking::Ranking;
use crate::sweep::sampler::{self, BaseValues, Tried, is_allowed};
use crate::sweep::trial::{State, Trial};

pub use gp::Gp;
pub use grid::Grid;
pub use lr_range::LrRange;
pub use tpe::Tpe;

/// Random trials before the first that a method draws by the results of others.
const N_STARTUP_TRIALS: usize = 10;

/// Chooses the values of trials. [`Kind::REQUIREMENTS`] names what it needs of the sweep: a method that
/// needs neither parameters nor a list has no trials.
///
/// Equal requests must give equal values, so that a sweep that was killed continues as if it had
/// not been.
pub trait Method: Debug + Send + Sync {
    /// The values of all trials in order, if they are known before any trial runs.
    fn points(&self, _search: &Search) -> Option<Vec<Values>> {
        None
    }

    /// Proposes the values of a trial; `None` if no untried values satisfy the constraints. Values
    /// that a trial has had are replaced by others: see [`ProposalRequest::admits`].
    fn propose(&self, _request: &ProposalRequest<'_>) -> Option<Values> {
        None
    }

    /// Number of first trials whose values do not depend on the results of others: they are checked
    /// before any of them runs.
    fn n_independent(&self) -> usize {
        0
    }

    /// The bounds of the learning-rate range test, for the method that runs it instead of trials.
    fn range_test(&self) -> Option<&LrRange> {
        None
    }
}

/// Request for the values of a trial.
#[derive(Clone, Copy, Debug)]
pub struct ProposalRequest<'a> {
    pub search: &'a Search,
    /// Values of the experiment that the trials change.
    pub base: &'a BaseValues,
    pub ranking: &'a Ranking,
    /// Number of the trial, from 1.
    pub number: u32,
    /// Trials so far, in any order; of trials repeated over folds or seeds, one per setting.
    pub trials: &'a [Trial],
    /// Settings of earlier trials.
    pub tried: &'a Tried,
}

impl ProposalRequest<'_> {
    /// Number of trials that have a result.
    fn n_ended(&self) -> usize {
        let has_ended = |trial: &&Trial| !matches!(trial.state, State::Running | State::Failed);
        self.trials.iter().filter(has_ended).count()
    }

    /// Returns true if `values` satisfy the constraints and no trial has had them.
    pub fn admits(&self, values: &Values) -> bool {
        is_allowed(self.search, values, self.base) && !self.tried.has(values, self.base)
    }
}

/// `sweep.method`
#[derive(Debug)]
pub enum MethodFamily {}

impl Family for MethodFamily {
    const TABLE: &'static str = METHOD;
    const NOUN: &'static str = "search method";
    type Object = dyn Method;
}

impl<K: Kind + Method> Accepts<K> for MethodFamily {
    fn boxed(kind: K) -> Box<dyn Method> {
        Box::new(kind)
    }
}

/// Search methods that a program knows.
pub type Methods = Registry<MethodFamily>;

/// The search methods that come with ddprun.
impl Registered for MethodFamily {
    fn registered() -> Methods {
        let mut all = Methods::empty();
        all.add::<Grid>();
        all.add::<Random>();
        all.add::<Tpe>();
        all.add::<Gp>();
        all.add::<List>();
        all.add::<LrRange>();
        all
    }
}

/// The points of `method` that satisfy the constraints, in their order.
pub fn points(method: &dyn Method, search: &Search, base: &BaseValues) -> Option<Vec<Values>> {
    let mut points = method.points(search)?;
    points.retain(|values| is_allowed(search, values, base));
    Some(points)
}

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

/// exactly the trials that you list, each as a table `[[sweep.list]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct List {}

impl Kind for List {
    const NAME: &'static str = "list";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::List];
}

impl Method for List {
    fn points(&self, search: &Search) -> Option<Vec<Values>> {
        Some(search.list.clone())
    }
}

#[cfg(test)]
mod tests;
