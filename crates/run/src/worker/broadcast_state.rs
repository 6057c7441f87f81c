//! Broadcasts from rank 0: over several machines it alone reads checkpoints.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::collective::{self, Collective};
use crate::engine::TrainState;
use crate::optim::{NamedTensor, ParameterState};
use crate::worker::Error;

/// Everything about a restored state but its long vectors.
#[derive(Serialize, Deserialize)]
struct Outline {
    state: TrainState,
    parameters: Vec<ParameterOutline>,
}

/// Shapes of the state of a parameter.
#[derive(Serialize, Deserialize)]
struct ParameterOutline {
    /// Names and shapes of the optimizer's state tensors.
    tensors: Vec<(String, Vec<usize>)>,
    /// Elements of the average.
    average: usize,
}

/// Returns rank 0's `restored` on every rank. Parameters and buffers are shared by `Engine::new`.
pub(crate) fn broadcast_state(
    collective: &dyn Collective,
    restored: Option<(TrainState, Vec<ParameterState>)>,
) -> Result<Option<(TrainState, Vec<ParameterState>)>, Error> {
    let is_first = collective.rank().is_first();
    let outline = restored.as_ref().filter(|_| is_first).map(|(state, states)| Outline {
        state: state.clone(),
        parameters: states.iter().map(outline).collect(),
    });
    let Some(Outline { state, parameters }) = broadcast_value(collective, &outline)? else {
        return Ok(None);
    };
    let mut states = match restored {
        Some((_, states)) if is_first => states,
        _ => parameters.into_iter().map(zeroed).collect(),
    };
    for ParameterState { tensors, average } in &mut states {
        let tensors = tensors.iter_mut().map(|tensor| &mut tensor.values);
        for values in tensors.chain([average]) {
            collective.broadcast(bytemuck::cast_slice_mut(values))?;
        }
    }
    Ok(Some((state, states)))
}

/// Returns rank 0's value on every rank.
pub(crate) fn broadcast_value<T: Serialize + DeserializeOwned>(
    collective: &dyn Collective,
    mine: &T,
) -> Result<T, Error> {
    let is_first = collective.rank().is_first();
    let bytes = if is_first { serde_json::to_vec(mine).unwrap_or_default() } else { Vec::new() };
    let all = collective.all_gather(&bytes)?;
    serde_json::from_slice(&all[0]).map_err(|error| {
        let what = format!("cannot parse rank 0's message: {error}");
        collective::Error::Connections { what }.into()
    })
}

fn outline(state: &ParameterState) -> ParameterOutline {
    let tensor = |tensor: &NamedTensor| (tensor.name.clone(), tensor.shape.clone());
    let tensors = state.tensors.iter().map(tensor).collect();
    ParameterOutline { tensors, average: state.average.len() }
}

fn zeroed(ParameterOutline { tensors, average }: ParameterOutline) -> ParameterState {
    let zeros = |(name, shape)| NamedTensor::zeros(name, shape);
    let tensors = tensors.into_iter().map(zeros).collect();
    ParameterState { tensors, average: vec![0.0; average] }
}
