//! Gradients exchanged in half precision, as by the communication hooks of PyTorch's DDP
//! (`fp16_compress_hook` and `bf16_compress_hook` of
//! `torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py`).
//!
//! Each rank divides its gradients by the number of ranks and rounds them; their sum, taken in f32
//! in the tree of the group, is rounded again and multiplied back, since gradients stay sums here.
//! All ranks hold the same bits; they are not those without a hook, and depend on the number of
//! ranks.

use std::sync::Arc;

use crate::collective::{Collective, Elements, Error, GradientBuffer};
use crate::ops::{ROUNDED_TOGETHER as BLOCK, round_block};
use crate::plan::{CommHook, Precision};
use crate::units::{Rank, WorldSize};

/// The group with the communication hook `hook`: its reductions are in half precision. Without a
/// hook, and in a world of one, it is unchanged. A group that sums on GPUs got its hook when it was
/// opened.
pub fn compressed(group: Arc<dyn Collective>, hook: CommHook) -> Arc<dyn Collective> {
    if hook == CommHook::None || group.world_size() == WorldSize::ONE {
        return group;
    }
    Arc::new(Compressed { group, hook })
}

/// A group whose reductions are those of half-precision numbers.
struct Compressed {
    group: Arc<dyn Collective>,
    hook: CommHook,
}

impl Compressed {
    /// Prepares this rank's values for the sum.
    fn compress(&self, values: &mut [f32]) {
        round(values, 1.0 / self.world_size().get() as f32, self.hook);
    }

    /// The sum, as it comes out.
    fn expand(&self, values: &mut [f32]) {
        round(values, 1.0, self.hook);
        let world = self.world_size().get() as f32;
        for value in values {
            *value *= world;
        }
    }
}

/// Multiplies the values by `factor` and rounds them to what `hook` sends, on the calling thread.
pub(super) fn round(values: &mut [f32], factor: f32, hook: CommHook) {
    let precision = match hook {
        CommHook::None => Precision::Fp32,
        CommHook::Bf16 => Precision::Bf16,
        CommHook::Fp16 => Precision::Fp16,
    };
    for block in values.chunks_mut(BLOCK) {
        for value in &mut *block {
            *value *= factor;
        }
        round_block(block, precision);
    }
}

impl Collective for Compressed {
    fn rank(&self) -> Rank {
        self.group.rank()
    }

    fn world_size(&self) -> WorldSize {
        self.group.world_size()
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        self.group.segments(lengths)
    }

    fn all_reduce(&self, segment: &mut GradientBuffer) -> Result<(), Error> {
        self.compress(segment);
        self.group.all_reduce(segment)?;
        self.expand(segment);
        Ok(())
    }

    fn reduce_scatter(
        &self,
        segment: &mut GradientBuffer,
        parts: &[Elements],
    ) -> Result<(), Error> {
        self.compress(segment);
        self.group.reduce_scatter(segment, parts)?;
        let mine = parts.get(self.rank().index()).into_iter().flatten();
        mine.for_each(|range| self.expand(&mut segment[range.clone()]));
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.group.broadcast(bytes)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.group.all_gather(mine)
    }

    fn lags(&self) -> Vec<f64> {
        self.group.lags()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.group.barrier()
    }

    fn describe(&self) -> Option<String> {
        let how = format!("gradients are exchanged as {}", self.hook.name());
        Some(self.group.describe().unwrap_or(how))
    }

    #[cfg(any(feature = "cuda", test))]
    fn on_gpu(&self) -> Option<&dyn crate::collective::OnGpu> {
        self.group.on_gpu()
    }

    fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }

    fn give_up(&self) {
        self.group.give_up();
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn values_are_what_the_half_type_holds_in_blocks_and_in_the_rest() {
        let mut values: Vec<f32> = (0..BLOCK + 3).map(|i| 1.0 + i as f32 / 3000.0).collect();
        let before = values.clone();
        round(&mut values, 0.5, CommHook::Bf16);
        for (value, before) in values.iter().zip(&before) {
            assert_eq!(*value, bf16::from_f32(before * 0.5).to_f32());
        }
        let mut values = [70_000.0, 1e-9, f32::NAN, 1.000_1];
        round(&mut values, 1.0, CommHook::Fp16);
        assert!(values[0].is_infinite() && values[1] == 0.0 && values[2].is_nan());
        assert_eq!(values[3], 1.0);
    }
}
