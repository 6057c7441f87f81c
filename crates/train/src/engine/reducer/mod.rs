//! Gradients of a step in buckets, in the CPU's memory or a GPU's, and their sums over the ranks.

pub mod buckets;
mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(any(feature = "cuda", test))]
mod host_staged;
mod progress;

pub(super) use cpu::CpuReducer;
#[cfg(feature = "cuda")]
pub(super) use gpu::{GpuReducer, Marks};

use std::sync::Arc;
use std::time::Duration;

use crate::engine::averaging::{average_buffers, averaged_vars, swap_averages};
use crate::engine::error::Error;
use crate::nn::{Param, Params};
use crate::ops::GradientSink;
#[cfg(feature = "cuda")]
use crate::ops::cuda::{Conditions, PassNumbers};
use crate::optim::{ParameterState, Update};
use crate::plan::OptimizerPlan;

/// Collects the gradients of one step after another, sums them over the ranks, and updates the
/// parameters with them.
pub(crate) trait Reducer: Send {
    /// Returns what backward delivers gradients to.
    fn sink(&self) -> Arc<dyn GradientSink>;

    /// Describes how gradients reach the other ranks, where that is worth a line.
    fn describe(&self) -> Option<String> {
        None
    }

    /// Returns the buckets on a GPU.
    #[cfg(feature = "cuda")]
    fn buckets(&self) -> Vec<candle_core::Tensor> {
        Vec::new()
    }

    /// Returns what the CPU knows about gradients on a GPU; `None` if there are none.
    #[cfg(feature = "cuda")]
    fn marks(&self) -> Option<Marks> {
        None
    }

    /// Adopts the bookkeeping of a pass that was replayed.
    #[cfg(feature = "cuda")]
    fn set_marks(&self, _marks: &Marks) {}

    /// Chooses the parameters that take part from the next step on: buckets of others are not
    /// reduced, and there is no state of them in `states`.
    fn train_only(
        &mut self,
        plan: &OptimizerPlan,
        trained: &[bool],
        params: &Params,
        states: &[ParameterState],
    ) -> candle_core::Result<()>;

    /// Opens a step.
    fn begin_step(&self);

    /// Returns the memory in which the next pass of the step notes its results on a GPU.
    #[cfg(feature = "cuda")]
    fn next_pass(&self) -> Option<candle_core::Result<PassNumbers>> {
        None
    }

    /// Lets a GPU decide about the update of a step of so many passes, before the CPU knows what
    /// they found; whether it will.
    #[cfg(feature = "cuda")]
    fn decide(&self, _conditions: Conditions, _passes: usize) -> candle_core::Result<bool> {
        Ok(false)
    }

    /// Loss and right answers of each pass that noted them; on a GPU [`Reducer::squares`] is known
    /// from then on. The one wait of a step.
    #[cfg(feature = "cuda")]
    fn read_device_results(&self) -> candle_core::Result<Vec<[f64; 2]>> {
        Ok(Vec::new())
    }

    /// Announces the last pass of the step: from now on buckets leave when they are full.
    fn begin_last_pass(&self);

    /// Closes a shard that is not this rank's last: its sum goes one branch up the tree.
    fn end_shard(&self) -> Result<(), Error>;

    /// Waits for the buckets that have left and reduces the others. Returns the time of that:
    /// communication that backward did not hide.
    ///
    /// # Errors
    ///
    /// A collective failed; the group is then unusable.
    fn finish_step(&self) -> Result<Duration, Error>;

    /// Parameters (registration index) that take part but had no gradient on this rank in the step.
    fn unused(&self) -> Vec<usize>;

    /// Sum of the squares of all reduced gradients; not finite if one of them is not.
    fn squares(&self) -> f64;

    /// The first parameter whose reduced gradient is not finite.
    fn first_not_finite(&self) -> Option<usize>;

    /// Calls `change` with the reduced gradient of each parameter that takes part, and its
    /// registration index.
    fn change_gradients(
        &self,
        change: &mut dyn FnMut(usize, &mut [f32]),
    ) -> candle_core::Result<()>;

    /// Moves the parameters along their reduced gradients; `counts` says which update of each this
    /// is (`ParameterUpdate::count`).
    fn update(
        &mut self,
        update: &Update<'_>,
        params: &[Param],
        states: &mut [ParameterState],
        counts: &[Option<u64>],
    ) -> candle_core::Result<()>;

    /// With an owner for each parameter: sends the parameters that this rank has moved to the
    /// others, receives theirs, and moves the averages that [`Reducer::update`] did not.
    ///
    /// # Errors
    ///
    /// A collective failed; the group is then unusable. Or the device's.
    fn share_updates(
        &mut self,
        update: &Update<'_>,
        params: &[Param],
        states: &mut [ParameterState],
    ) -> Result<(), Error>;

    /// Begins the averages at what they are of, as it is.
    fn begin_averages(
        &mut self,
        params: &Params,
        states: &mut [ParameterState],
    ) -> candle_core::Result<()> {
        for (var, state) in averaged_vars(params, states.len())?.into_iter().zip(states) {
            state.average = var.flatten_all()?.to_vec1()?;
        }
        Ok(())
    }

    /// Moves the averages of the buffers, where there are some.
    fn average_buffers(
        &mut self,
        update: &Update<'_>,
        params: &Params,
        states: &mut [ParameterState],
    ) -> candle_core::Result<()> {
        average_buffers(update, params, states)
    }

    /// Puts the averages in the place of what they are of, and that in theirs. Without averages
    /// nothing happens.
    fn swap_averages(
        &mut self,
        params: &Params,
        states: &mut [ParameterState],
    ) -> candle_core::Result<()> {
        swap_averages(params, states)
    }

    /// Takes the optimizer's state over from `states`, if it is elsewhere.
    fn take_over(&mut self, _states: &[ParameterState]) -> candle_core::Result<()> {
        Ok(())
    }

    /// Copies the optimizer's state to `states`, if it is elsewhere.
    fn copy_optimizer_state_to_host(
        &self,
        _states: &mut [ParameterState],
    ) -> candle_core::Result<()> {
        Ok(())
    }
}
