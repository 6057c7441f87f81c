//! Search methods: where the values of trials come from. Each is a file of its own.

mod grid;
mod list;
mod lr_range;
mod random;
mod tpe;

use std::fmt::Debug;

use crate::config::kind::Kind;
use crate::config::sweep::{METHOD, Search, Values};
use crate::registry::{Family, Registered, Registry, Takes};
use crate::sweep::ranking::Ranking;
use crate::sweep::sampler::{BaseValues, Tried, is_allowed};
use crate::sweep::trial::Trial;

pub use grid::Grid;
pub use list::List;
pub use lr_range::LrRange;
pub use random::Random;
pub use tpe::Tpe;
pub(crate) use tpe::place_of;

/// Where the values of trials come from. What it needs of the sweep, its [`Kind::NEEDS`] say: one
/// that needs neither parameters nor a list has no trials.
///
/// It decides the same whenever it is asked the same, so that a sweep that was killed goes on as if
/// it had not been.
pub trait Method: Debug + Send + Sync {
    /// The values of all trials in their order, where they are known before any trial runs.
    fn points(&self, _search: &Search) -> Option<Vec<Values>> {
        None
    }

    /// The values of a trial; `None` if none satisfy the constraints that no trial has had. Values
    /// that a trial has had are replaced by others: see [`Asked::admits`].
    fn propose(&self, _asked: &Asked<'_>) -> Option<Values> {
        None
    }

    /// The first trials whose values do not depend on the results of others: they are checked
    /// before any is run.
    fn n_independent(&self) -> usize {
        0
    }

    /// The bounds of the learning-rate range test, if that is what is run instead of trials.
    fn range_test(&self) -> Option<&LrRange> {
        None
    }
}

/// What a method is asked: the values of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What is searched.
    pub search: &'a Search,
    /// The values of what the trials change.
    pub base: &'a BaseValues,
    /// By what trials are compared.
    pub ranking: &'a Ranking,
    /// The number of the trial, counted from 1.
    pub number: u32,
    /// The trials so far, in any order: of repeated ones (over folds or seeds) one for each setting.
    pub trials: &'a [Trial],
    /// Settings that trials have had.
    pub tried: &'a Tried,
}

impl Asked<'_> {
    /// Whether `values` satisfy the constraints and no trial has had them.
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

impl<K: Kind + Method> Takes<K> for MethodFamily {
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
