//! Checks that all ranks still hold the same values, by comparing hashes of them.
//!
//! Ranks compute their updates each for itself, from the same sums. A bit that turns in one rank's
//! memory, or a core that computes wrongly, makes its parameters others, and nothing else tells.
//! Rank 0's optimizer state, averages and counters reach the others only through a checkpoint, so
//! these are compared before each one is made.

use std::collections::BTreeMap;

use candle_core::Var;
use rayon::prelude::*;

use crate::engine::{Engine, Error, TrainState};
use crate::event::Phase;
use crate::model::base_hash;
use crate::nn::{Buffer, Param, change_values};
use crate::units::{Rank, WorldSize};

/// Bytes of a hash.
const HASH: usize = blake3::OUT_LEN;

/// Something that all ranks have in common. Running statistics are not: they are rank 0's
/// (`Engine::broadcast_buffers`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedState {
    Weights,
    OptimizerState,
    Averages,
    Frozen,
    Progress,
}

/// All of them; those that explain the others come first.
pub(super) const EVERYTHING: [SharedState; 5] = [
    SharedState::Weights,
    SharedState::OptimizerState,
    SharedState::Averages,
    SharedState::Frozen,
    SharedState::Progress,
];

/// A value that differs between ranks.
pub(super) struct Difference {
    /// "weights", "optimizer state" ...
    pub(super) what: &'static str,
    pub(super) ranks: Vec<Rank>,
}

/// The step after which all ranks had the same when they last looked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastCompared {
    weights: Option<u64>,
    everything: Option<u64>,
}

impl Engine {
    /// Compares the parameters of all ranks, bit by bit through a hash. Every rank must call it at
    /// the same step; a second call at one step is free.
    ///
    /// # Errors
    ///
    /// [`Error::Diverged`] on all ranks if one differs; a collective failed.
    pub fn compare_weights(&mut self) -> Result<(), Error> {
        let step = self.state.step;
        let last = self.compared.weights;
        if last != Some(step) {
            self.compare(&[SharedState::Weights], last)?;
            self.compared.weights = Some(step);
        }
        Ok(())
    }

    /// Compares everything that a checkpoint holds and all ranks should have in common, as
    /// [`Engine::compare_weights`] does.
    pub fn compare_everything(&mut self) -> Result<(), Error> {
        self.compare_weights()?;
        let step = self.state.step;
        let last = self.compared.everything;
        if last != Some(step) {
            self.compare(&EVERYTHING[1..], last)?;
            self.compared.everything = Some(step);
        }
        Ok(())
    }

    fn compare(&mut self, parts: &[SharedState], equal: Option<u64>) -> Result<(), Error> {
        let Some(Difference { what, ranks }) = self.difference(parts)? else { return Ok(()) };
        let is_mine = ranks.contains(&self.collective.rank());
        Err(Error::Diverged { step: self.state.step, equal, what, ranks, is_mine })
    }

    /// The first of `parts` that is not the same on all ranks.
    pub(super) fn difference(
        &mut self,
        parts: &[SharedState],
    ) -> Result<Option<Difference>, Error> {
        if self.collective.world_size() == WorldSize::ONE {
            return Ok(None);
        }
        let step = self.state.step;
        if parts.contains(&SharedState::OptimizerState) {
            self.copy_optimizer_state_to_host()?;
        }
        let collective = self.collective.clone();
        let all = self.timed(
            |time| &mut time.communication,
            |engine| {
                let mine: candle_core::Result<Vec<_>> =
                    parts.iter().map(|part| engine.hash(*part)).collect();
                let tensor_error = Error::tensor("comparison", step);
                (engine.observer)(step, Phase::Reducing);
                Ok::<_, Error>(collective.all_gather(&mine.map_err(tensor_error)?.concat())?)
            },
        )?;
        let differs = |(part, place): (&SharedState, usize)| {
            let hash = |all: &'_ Vec<u8>| all[place * HASH..(place + 1) * HASH].to_vec();
            let ranks = differing(&all.iter().map(hash).collect::<Vec<_>>());
            (!ranks.is_empty()).then(|| Difference { what: part.name(), ranks })
        };
        Ok(parts.iter().zip(0..).find_map(differs))
    }

    fn hash(&self, part: SharedState) -> candle_core::Result<[u8; HASH]> {
        let params = &self.params;
        let states = &self.optimizer_state;
        Ok(match part {
            SharedState::Weights => hash_of_vars(params.parameters().iter().map(Param::var))?,
            SharedState::Frozen => {
                let own = params.own_buffers().into_iter().filter(|buffer| buffer.is_frozen());
                let own = hash_of_vars(own.map(Buffer::var))?;
                let base = params.base().map(|base| base_hash(&base)).unwrap_or_default();
                *blake3::hash(&[&own, base.as_bytes()].concat()).as_bytes()
            }
            // What one rank alone keeps can differ from no other's.
            SharedState::OptimizerState if self.ownership.is_some() => [0; HASH],
            SharedState::OptimizerState => {
                let tensors = states.iter().flat_map(|state| &state.tensors);
                hash_of(tensors.map(|tensor| &tensor.values))
            }
            SharedState::Averages => {
                // Those of running statistics are rank 0's, as these are.
                hash_of(states.iter().take(params.parameters().len()).map(|state| &state.average))
            }
            SharedState::Progress => hash_of_progress(&self.state),
        })
    }
}

impl SharedState {
    /// The name in messages: "the weights of rank 1 differ".
    fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::OptimizerState => "optimizer state",
            Self::Averages => "averaged weights",
            Self::Frozen => "frozen weights",
            Self::Progress => "counters and metrics",
        }
    }
}

/// Each tensor has a hash of its own, so that all cores of this rank can work.
fn hash_of_vars<'a>(
    vars: impl Iterator<Item = candle_core::Result<&'a Var>>,
) -> candle_core::Result<[u8; HASH]> {
    let vars: Vec<&Var> = vars.collect::<Result<_, _>>()?;
    let hashes: Vec<_> =
        vars.into_par_iter().map(hash_of_values).collect::<candle_core::Result<_>>()?;
    Ok(*blake3::hash(hashes.as_flattened()).as_bytes())
}

fn hash_of_values(var: &Var) -> candle_core::Result<[u8; HASH]> {
    if !var.device().is_cpu() {
        // A wait for the device.
        let values = var.flatten_all()?.to_vec1::<f32>()?;
        return Ok(*blake3::hash(bytemuck::cast_slice(&values)).as_bytes());
    }
    let mut hash = [0; HASH];
    change_values(var, |values| hash = *blake3::hash(bytemuck::cast_slice(values)).as_bytes())?;
    Ok(hash)
}

fn hash_of<'a>(vectors: impl Iterator<Item = &'a Vec<f32>>) -> [u8; HASH] {
    let vectors: Vec<&Vec<f32>> = vectors.collect();
    let hash = |values: &Vec<f32>| *blake3::hash(bytemuck::cast_slice(values)).as_bytes();
    let hashes: Vec<[u8; HASH]> = vectors.into_par_iter().map(hash).collect();
    *blake3::hash(hashes.as_flattened()).as_bytes()
}

/// Hashes the progress, except for the time, which is rank 0's.
fn hash_of_progress(state: &TrainState) -> [u8; HASH] {
    let state = TrainState { seconds: None, ..state.clone() };
    // Plain data has a written form.
    *blake3::hash(&serde_json::to_vec(&state).unwrap_or_default()).as_bytes()
}

/// The ranks that do not have what most have; where as many have the one as the other, those that
/// differ from rank 0.
fn differing(all: &[Vec<u8>]) -> Vec<Rank> {
    let mut counts = BTreeMap::<&[u8], usize>::new();
    for hash in all {
        *counts.entry(hash).or_default() += 1;
    }
    let most = counts.values().max().copied().unwrap_or(0);
    let usual = all.iter().find(|hash| counts[hash.as_slice()] == most);
    let ranks = (0..).map(Rank).zip(all);
    ranks.filter(|(_, hash)| Some(*hash) != usual).map(|(rank, _)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(all: &[u8]) -> Vec<u32> {
        let all: Vec<Vec<u8>> = all.iter().map(|&hash| vec![hash]).collect();
        differing(&all).into_iter().map(|rank| rank.0).collect()
    }

    #[test]
    fn the_few_differ_from_the_many_and_from_rank_0_where_they_are_as_many() {
        assert!(named(&[1, 1, 1, 1]).is_empty());
        assert_eq!(named(&[1, 1, 2, 1]), [2]);
        assert_eq!(named(&[2, 1, 1]), [0]);
        assert_eq!(named(&[1, 2]), [1]);
        assert_eq!(named(&[2, 2, 1, 1]), [2, 3]);
        assert_eq!(named(&[1, 3, 1, 2]), [1, 3]);
    }
}
