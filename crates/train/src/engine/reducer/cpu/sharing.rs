//! Where each parameter has an owner (`distributed.zero_stage`): what ranks tell each other beside the
//! gradients.

use super::{CpuReducer, Divided};
use crate::engine::error::Error;
use crate::engine::ownership::gather;
use crate::nn::{Param, change_all};
use crate::optim::{ParameterState, Part, Update};
use crate::units::Rank;

impl CpuReducer {
    /// Tells the other ranks the sums of squares of this rank's parameters, and hears theirs.
    pub(super) fn share_squares(&self) -> Result<(), Error> {
        let Some(Divided { ownership, .. }) = self.sums.divided.as_deref() else { return Ok(()) };
        let mut state = self.store.state();
        let squares = &mut state.squares;
        let mine: Vec<f64> =
            ownership.of(self.sums.collective.rank()).map(|parameter| squares[parameter]).collect();
        let all = self.sums.collective.all_gather(bytemuck::cast_slice(&mine))?;
        for (rank, bytes) in (0..).map(Rank).zip(&all) {
            let told = bytemuck::pod_collect_to_vec::<u8, f64>(bytes);
            for (parameter, told) in ownership.of(rank).zip(told) {
                squares[parameter] = told;
            }
        }
        Ok(())
    }

    /// Gives the parameters that this rank has moved to the others, takes theirs, and moves the
    /// averages of theirs, as if it were this rank that moved them.
    pub(super) fn share(
        &self,
        update: &Update<'_>,
        params: &[Param],
        states: &mut [ParameterState],
    ) -> Result<(), Error> {
        let Some(Divided { ownership, .. }) = self.sums.divided.as_deref() else { return Ok(()) };
        let failed = |source| Error::Tensor { phase: "sharing", step: 0, source };
        let vars: Vec<_> =
            params.iter().map(Param::var).collect::<Result<_, _>>().map_err(failed)?;
        let trained = self.store.state().progress.trained.clone();
        let length = |(param, &is_trained): (&Param, &bool)| {
            if is_trained { param.elem_count() } else { 0 }
        };
        let lengths: Vec<usize> = params.iter().zip(&trained).map(length).collect();
        let owners: Vec<Rank> = (0..params.len()).map(|index| ownership.owner(index)).collect();
        let mut gathered = Ok(());
        change_all(&vars, |values| {
            let mut all: Vec<&mut [f32]> = values.iter_mut().map(Vec::as_mut_slice).collect();
            gathered = gather(self.sums.collective.as_ref(), &owners, &lengths, &mut all);
            let all = all.into_iter().zip(states).zip(params).enumerate();
            let others = all.filter(|(index, _)| gathered.is_ok() && !ownership.is_mine(*index));
            update.apply(others.map(|(index, ((values, state), param))| Part {
                values,
                gradient: &[],
                state,
                index,
                shape: param.shape(),
                count: None,
            }));
        })
        .map_err(failed)?;
        Ok(gathered?)
    }
}
