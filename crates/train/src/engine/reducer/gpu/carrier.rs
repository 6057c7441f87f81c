//! Buckets of the GPU on their way through the memory that the ranks share.

use std::ops::Range;

use candle_core::Tensor;

use crate::collective::GradientBuffer;
use crate::engine::error::Error;
use crate::engine::reducer::host_staged::{Carry, Sum};
use crate::ops::cuda::{Gpu, Moment, Staging};

/// The way of each bucket.
pub(super) struct Carrier {
    pub(super) staging: Staging<GradientBuffer>,
    /// Which elements of each bucket come back, and to where.
    pub(super) back: Vec<(Range<usize>, Tensor)>,
}

/// A bucket that is away, and a moment: when it may be read, or when its sums are back.
pub(super) struct Carried {
    pub(super) moment: Moment,
    pub(super) values: Tensor,
}

impl Carried {
    /// Lets later work wait until the sums are back.
    pub(super) fn arrive(self, gpu: &Gpu) -> Result<(), Error> {
        self.moment.goes_before(gpu).map_err(failed)
    }
}

impl Carry for Carrier {
    type Moment = Carried;

    fn carry(
        &mut self,
        bucket: usize,
        Carried { moment, values }: Carried,
        sum: Sum<'_>,
    ) -> Result<Carried, Error> {
        let carried = self.staging.visit(bucket, (&values, &moment), &self.back[bucket], sum);
        let moment = carried.map_err(failed)??;
        Ok(Carried { moment, values })
    }
}

fn failed(source: candle_core::Error) -> Error {
    Error::Tensor { phase: "reduction", step: 0, source }
}
