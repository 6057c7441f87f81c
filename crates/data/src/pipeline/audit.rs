//! Check that the ranks together take each sample of an epoch once, disjoint and complete, by the
//! samples that each of them is about to load.

use serde::{Deserialize, Serialize};

use crate::pipeline::sampler::EpochOrder;
use crate::rng::{Key, Purpose};
use crate::units::Rank;

/// Digest of a rank's samples in an epoch that does not depend on their order: sums over the
/// samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleDigest {
    samples: u64,
    sums: [u64; 2],
}

/// Partition of an epoch's samples among the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Samples that some rank takes.
    pub samples: u64,
    /// Samples that are left out: the incomplete last step under `drop_last`.
    pub left_out: u64,
    /// Samples that are taken a second time, to give each rank as many (`sampler = "torch"`), or
    /// because they are drawn.
    pub repeated: u64,
}

impl SampleDigest {
    /// Digest of the samples of `rank` in all steps of the epoch.
    pub fn by(order: &EpochOrder, rank: Rank) -> Self {
        let mut taken = Self::default();
        for step in 0..order.steps() {
            for pass in order.passes(step, rank) {
                pass.samples.iter().for_each(|&sample| taken.add(sample));
            }
        }
        taken
    }

    pub fn add(&mut self, sample: u32) {
        self.samples += 1;
        // Random numbers of the sample: sets that differ have other sums, but for one in 2^128.
        let key = Key::new(sample.into(), Purpose::Shuffle, 0, 0);
        for (sum, place) in self.sums.iter_mut().zip(0..) {
            *sum = sum.wrapping_add(key.bits(place));
        }
    }

    fn and(self, other: &Self) -> Self {
        let [a, b] = self.sums;
        let sums = [a.wrapping_add(other.sums[0]), b.wrapping_add(other.sums[1])];
        Self { samples: self.samples + other.samples, sums }
    }
}

/// Compares what all ranks take with the epoch's order, which must hold each of the `n` samples.
pub fn audit(order: &EpochOrder, n: usize, all: &[SampleDigest]) -> Result<Partition, String> {
    let covered = order.covered();
    let mut times = vec![0u32; n];
    let mut expected = SampleDigest::default();
    for &sample in covered {
        let times = times.get_mut(sample as usize).ok_or(format!("there is no sample {sample}"))?;
        *times += 1;
        expected.add(sample);
    }
    let together = all.iter().fold(SampleDigest::default(), SampleDigest::and);
    if together != expected {
        let found = together.samples;
        let wanted = expected.samples;
        return Err(format!("ranks take {found} samples that are not the {wanted} of the epoch"));
    }
    let left_out = times.iter().filter(|&&times| times == 0).count() as u64;
    let repeated = expected.samples + left_out - n as u64;
    if !order.draws() && repeated > 0 && repeated >= all.len() as u64 {
        return Err(format!("{repeated} samples are taken more than once"));
    }
    Ok(Partition { samples: expected.samples, left_out, repeated })
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;
    use crate::pipeline::sampler::tests::{batch, data};
    use crate::pipeline::weighted_sampling::SampleWeights;
    use crate::plan::Sampler;
    use crate::units::WorldSize;

    /// Audits an epoch of `n` samples in steps of 12 on four ranks, after `change` of their
    /// samples.
    fn audited(
        n: usize,
        sampler: Sampler,
        drop_last: bool,
        change: impl Fn(&mut Vec<SampleDigest>),
    ) -> Result<Partition, String> {
        let world = WorldSize::new(4).unwrap();
        let order =
            EpochOrder::new(&data(n, sampler, true, drop_last), &batch(3, 1, 4, 4), world, 7, 2);
        let mut all: Vec<SampleDigest> =
            (0..4).map(|rank| SampleDigest::by(&order, Rank(rank))).collect();
        change(&mut all);
        audit(&order, n, &all)
    }

    #[test]
    fn samples_that_are_dealt_out_once_pass_and_what_is_left_or_repeated_is_counted() {
        let shards = |drop_last| audited(50, Sampler::Shards, drop_last, |_| ()).unwrap();
        assert_eq!(shards(true), Partition { samples: 48, left_out: 2, repeated: 0 });
        assert_eq!(shards(false), Partition { samples: 50, left_out: 0, repeated: 0 });
        let torch = audited(50, Sampler::Torch, false, |_| ()).unwrap();
        assert_eq!(torch, Partition { samples: 52, left_out: 0, repeated: 2 });
    }

    #[test]
    fn samples_that_are_drawn_may_come_again() {
        let order = |world| {
            let plan = data(50, Sampler::Balanced, true, false);
            let order = EpochOrder::new(&plan, &batch(3, 1, 4, 4), world, 7, 2);
            order.with_weighted_draws(&SampleWeights::new((1..=50).map(f64::from)), 7, 2)
        };
        let order = order(WorldSize::new(4).unwrap());
        let all: Vec<SampleDigest> =
            (0..4).map(|rank| SampleDigest::by(&order, Rank(rank))).collect();
        let Partition { samples, left_out, repeated } = audit(&order, 50, &all).unwrap();
        assert!(samples == 50 && left_out == repeated && repeated > 9, "{repeated}");
        assert_refused(
            audit(&order, 50, &all[1..]),
            "ranks take 38 samples that are not the 50 of the epoch",
        );
    }

    #[test]
    fn a_sample_that_two_ranks_take_or_none_takes_is_found() {
        let fails = |change: &dyn Fn(&mut Vec<SampleDigest>)| {
            audited(50, Sampler::Shards, true, |all| change(all)).unwrap_err()
        };
        let missing = fails(&|all| all.truncate(3));
        assert_eq!(missing, "ranks take 36 samples that are not the 48 of the epoch");
        assert!(fails(&|all| all[1] = all[0]).contains("ranks take 48 samples that are not"));
        assert!(fails(&|all| all[2].add(3)).contains("ranks take 49"));
    }
}
