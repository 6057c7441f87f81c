//! Several machines: rank 0 alone reads checkpoints, and hands what it read to the others.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::collective::{self, Collective};
use crate::engine::TrainState;
use crate::optim::Moments;
use crate::worker::Error;

/// Everything about a restored state but its long vectors.
#[derive(Serialize, Deserialize)]
struct Outline {
    state: TrainState,
    /// Lengths of the vectors of each parameter's moments.
    lengths: Vec<[usize; 3]>,
}

/// What rank 0 has of `restored`, on every rank. Parameters and buffers are another matter
/// (`Engine::new` shares them).
pub(crate) fn share(
    collective: &dyn Collective,
    restored: Option<(TrainState, Vec<Moments>)>,
) -> Result<Option<(TrainState, Vec<Moments>)>, Error> {
    let is_first = collective.rank().is_first();
    let outline = restored.as_ref().filter(|_| is_first).map(|(state, moments)| Outline {
        state: state.clone(),
        lengths: moments.iter().map(lengths).collect(),
    });
    let Some(Outline { state, lengths }) = told(collective, &outline)? else { return Ok(None) };
    let mut moments = match restored {
        Some((_, moments)) if is_first => moments,
        _ => lengths.into_iter().map(zeroed).collect(),
    };
    for moments in &mut moments {
        for values in [&mut moments.first, &mut moments.second, &mut moments.average] {
            collective.broadcast(bytemuck::cast_slice_mut(values))?;
        }
    }
    Ok(Some((state, moments)))
}

/// What rank 0 has here, on every rank.
pub(crate) fn told<T: Serialize + DeserializeOwned>(
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

fn lengths(moments: &Moments) -> [usize; 3] {
    [&moments.first, &moments.second, &moments.average].map(Vec::len)
}

fn zeroed([first, second, average]: [usize; 3]) -> Moments {
    let zeros = |n| vec![0.0; n];
    Moments { first: zeros(first), second: zeros(second), average: zeros(average) }
}
