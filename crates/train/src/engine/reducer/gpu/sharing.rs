//! Messages between ranks beside the gradients, where each parameter has an owner
//! (`distributed.zero_stage`): over NCCL or, where the group does not reach the GPUs, through the
//! CPU's memory.
//!
//! Sums of squares are those of all ranks in the order of plain DDP, so the norm has its bits.

use candle_core::{Result, Tensor};

use super::GpuReducer;
use crate::collective::DeviceExchange;
use crate::engine::error::Error;
use crate::engine::ownership::gather;
use crate::nn::Param;
use crate::ops::cuda::write_gradient;
use crate::optim::Update;
use crate::units::Rank;

impl GpuReducer {
    /// Measures the summed gradients of all ranks. Those that are summed on the GPUs need not be
    /// there yet.
    pub(super) fn measure(&self) -> std::result::Result<(), Error> {
        let failed = Error::tensor("reduction", 0);
        let collective = &self.store.collective;
        let gpus = collective.on_gpu();
        if let Some(gpus) = gpus {
            gpus.join()?;
        }
        let sums = self.updater.measure().map_err(failed)?;
        match gpus {
            _ if self.ownership.is_none() => {}
            // Others have zeros where this rank has sums.
            Some(gpus) => gpus.enqueue(DeviceExchange::AllReduce(sums))?,
            None => {
                let mine: Vec<f64> = sums.to_vec1().map_err(failed)?;
                let all = collective.all_gather(bytemuck::cast_slice(&mine))?;
                let mut sums = vec![0.0; mine.len()];
                for of_rank in
                    all.iter().map(|bytes| bytemuck::pod_collect_to_vec::<u8, f64>(bytes))
                {
                    sums.iter_mut().zip(of_rank).for_each(|(sum, of_rank)| *sum += of_rank);
                }
                self.updater.set_measured(&sums).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Sends the parameters that this rank has moved to the others, and receives theirs.
    pub(super) fn share(&self, params: &[Param]) -> std::result::Result<(), Error> {
        let Some(ownership) = &self.ownership else { return Ok(()) };
        let failed = Error::tensor("sharing", 0);
        let owned =
            |&index: &usize| Ok((ownership.owner(index), params[index].var()?.as_tensor().clone()));
        let owned: Result<Vec<(Rank, Tensor)>> = self.trained.iter().map(owned).collect();
        let owned = owned.map_err(failed)?;
        match self.store.collective.on_gpu() {
            Some(gpus) => {
                gpus.enqueue(DeviceExchange::AllGather(&owned))?;
                Ok(gpus.finish()?)
            }
            None => self.share_through_cpu(&owned),
        }
    }

    fn share_through_cpu(&self, owned: &[(Rank, Tensor)]) -> std::result::Result<(), Error> {
        let failed = Error::tensor("sharing", 0);
        let collective = self.store.collective.as_ref();
        let me = collective.rank();
        let home = |(owner, values): &(Rank, Tensor)| {
            if *owner == me {
                return values.flatten_all()?.to_vec1();
            }
            Ok(vec![0.0; values.elem_count()])
        };
        let values: Result<Vec<Vec<f32>>> = owned.iter().map(home).collect();
        let mut values = values.map_err(failed)?;
        let (owners, lengths): (Vec<Rank>, Vec<usize>) =
            owned.iter().map(|(owner, values)| (*owner, values.elem_count())).unzip();
        let mut slices: Vec<&mut [f32]> = values.iter_mut().map(Vec::as_mut_slice).collect();
        gather(collective, &owners, &lengths, &mut slices)?;
        let mut others = owned.iter().zip(values).filter(|((owner, _), _)| *owner != me);
        let set = |((_, to), values): (&(Rank, Tensor), Vec<f32>)| {
            let n = values.len();
            write_gradient(to, 0, &Tensor::from_vec(values, n, to.device())?, false)
        };
        others.try_for_each(set).map_err(failed)
    }

    /// Moves the averages of what this rank does not move itself.
    pub(super) fn follow(&mut self, update: &Update<'_>) -> Result<()> {
        match (&mut self.follower, update.on_gpu(None, None)) {
            (Some(follower), Some(rule)) => {
                follower.update(rule, self.store.state().decision.as_ref(), |_| true)
            }
            _ => Ok(()),
        }
    }
}
