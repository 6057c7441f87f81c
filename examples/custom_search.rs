//! Your own search method and pruner: registered by your program, chosen in TOML, their options
//! checked as ddprun's own are.
//!
//! ```text
//! cargo run --release --example custom_search -- sweep examples/custom_search.toml
//! cargo run --release --example custom_search -- sweep examples/custom_search.toml sweep.halton.skp=5
//! ```
//!
//! The second command is refused: `did you mean skip?`

use std::process::ExitCode;

use ddprun::config::kind::{Kind, Requirement};
use ddprun::config::schema::Mode;
use ddprun::config::sweep::{Values, in_order};
use ddprun::kinds::Kinds;
use ddprun::sweep::{Method, ProposalRequest, Pruner, Running, is_allowed, value_at};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// points that fill the space evenly (Halton 1960): a coordinate in the base of another prime for
/// each parameter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Halton {
    /// points that are left out at the beginning.
    #[schemars(range(min = 0, max = 1000))]
    skip: u32,
}

impl Kind for Halton {
    const NAME: &'static str = "halton";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::Parameters, Requirement::Trials];
}

impl Method for Halton {
    fn propose(&self, request: &ProposalRequest<'_>) -> Option<Values> {
        // Trials are counted from 1; where constraints refuse a point, a later one takes its place.
        let first = self.skip + request.number;
        let points = (0..1000).map(|attempt| first + 10_000 * attempt);
        let mut values = points.map(|point| {
            let mut primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29].into_iter().cycle();
            in_order(&request.search.parameters, |parameter| {
                Some(value_at(&parameter.domain, digits_mirrored(point, primes.next()?)))
            })
        });
        values.find(|values| is_allowed(request.search, values, request.base))
    }

    fn n_independent(&self) -> usize {
        usize::MAX
    }
}

/// The digits of `number` in this base, mirrored at the point: 6 = 110 in base 2 gives 0.011 = 3/8.
fn digits_mirrored(mut number: u32, base: u32) -> f64 {
    let (mut share, mut digit) = (0.0, 1.0);
    while number > 0 {
        digit /= f64::from(base);
        share += digit * f64::from(number % base);
        number /= base;
    }
    share
}

/// stops a trial whose metric is worse than a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Threshold {
    /// the worst value with which a trial goes on.
    limit: f64,
}

impl Kind for Threshold {
    const NAME: &'static str = "threshold";
}

impl Pruner for Threshold {
    fn is_cut(&self, running: &Running<'_>) -> bool {
        let value = running.trial.reports[running.index].value;
        value.is_none_or(|value| match running.goal {
            Mode::Min => value > self.limit,
            Mode::Max => value < self.limit,
        })
    }
}

/// Adds these two to the kinds of a program.
pub(crate) fn register(kinds: &mut Kinds) {
    kinds.methods.add::<Halton>();
    kinds.pruners.add::<Threshold>();
}

fn main() -> ExitCode {
    let mut kinds = Kinds::default();
    register(&mut kinds);
    ddprun::cli::run(std::env::args_os(), &kinds)
}
