//! Whether all ranks still have the same parameters: a hash of them, compared.
//!
//! Ranks compute their updates each for itself, from the same sums. A bit that turns in one rank's memory, or a core
//! that computes wrongly, makes its parameters others, and nothing else tells.

use std::collections::BTreeMap;

use candle_core::Var;

use crate::engine::{Engine, Error};
use crate::nn::change_values;
use crate::units::{Rank, WorldSize};

impl Engine {
    /// Compares the parameters of all ranks, bit by bit through a hash. Every rank must call it at the same step; a
    /// second call at one step is free.
    ///
    /// # Errors
    ///
    /// [`Error::Diverged`] on all ranks if one differs; a collective failed.
    pub fn compare_weights(&mut self) -> Result<(), Error> {
        let step = self.state.step;
        if self.collective.world_size() == WorldSize::ONE || self.compared == Some(step) {
            return Ok(());
        }
        let collective = self.collective.clone();
        let all = self.timed(
            |time| &mut time.communication,
            |engine| Ok::<_, Error>(collective.all_gather(engine.hash(step)?.as_bytes())?),
        )?;
        let ranks = differing(&all);
        if ranks.is_empty() {
            self.compared = Some(step);
            return Ok(());
        }
        let is_mine = ranks.contains(&collective.rank());
        Err(Error::Diverged { step, equal: self.compared, ranks, is_mine })
    }

    fn hash(&self, step: u64) -> Result<blake3::Hash, Error> {
        let mut hasher = blake3::Hasher::new();
        for param in self.params.parameters() {
            param
                .var()
                .and_then(|var| hash_values(var, &mut hasher))
                .map_err(|source| Error::Tensor { phase: "comparison", step, source })?;
        }
        Ok(hasher.finalize())
    }
}

fn hash_values(var: &Var, hasher: &mut blake3::Hasher) -> Result<(), candle_core::Error> {
    if var.device().is_cpu() {
        return change_values(var, |values| {
            hasher.update(bytemuck::cast_slice(values));
        });
    }
    // A wait for the device, every so many steps.
    let values = var.flatten_all()?.to_vec1::<f32>()?;
    hasher.update(bytemuck::cast_slice(&values));
    Ok(())
}

/// The ranks that do not have what most have; where as many have the one as the other, those that differ from rank 0.
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
