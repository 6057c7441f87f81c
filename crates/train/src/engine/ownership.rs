//! Sharded optimizer state (`distributed.zero_stage`): each parameter has an owner, which alone
//! keeps its optimizer state, gets its reduced gradient and moves it, and then sends the new values
//! to the others. Averages of the weights are kept by all: they follow from the weights.
//!
//! No number changes: sums over ranks have the same tree, squares are summed parameter by parameter
//! and then in registration order, and an update never looks beyond its parameter.

use std::ops::Range;

use crate::collective::{self, Collective, Elements};
use crate::engine::optimizer_step::planned_update;
use crate::engine::reducer::buckets::Layout;
use crate::engine::{Engine, Error};
use crate::event::Phase;
use crate::nn::{Param, Params};
use crate::optim::{NamedTensor, ParameterState, Preparation, Rates};
use crate::plan::{Plan, StateTensor, ZeroStage, owners};
use crate::units::{Bytes, Rank, WorldSize};

/// Elements that each rank gives in one exchange.
const ROUND: usize = 1 << 20;

/// Owner of each parameter.
pub(super) struct Ownership {
    rank: Rank,
    world: WorldSize,
    /// By parameter, in registration order.
    owners: Vec<Rank>,
    /// True if gradients of other ranks' parameters are freed once they are reduced.
    pub(super) frees_gradients: bool,
}

/// Division of a bucket among the ranks.
pub(super) struct Division {
    /// Elements of each rank: one range, padding between its parameters included.
    pub(super) parts: Vec<Elements>,
    /// Elements that are not this rank's.
    pub(super) others: Elements,
}

impl Ownership {
    /// Returns the ownership that the plan asks for; `None` where every rank keeps everything.
    pub(super) fn new(plan: &Plan, params: &Params, rank: Rank, world: WorldSize) -> Option<Self> {
        let stage = plan.distributed.zero_stage;
        if stage == ZeroStage::None || world == WorldSize::ONE {
            return None;
        }
        let sizes: Vec<usize> = params.parameters().iter().map(Param::elem_count).collect();
        // As the plan counts: what is never trained has nothing to be kept.
        let is_trained = |index: &usize| plan.optimizer.is_ever_trained(*index);
        let trained: Vec<usize> = (0..sizes.len()).filter(is_trained).collect();
        let lengths: Vec<usize> = trained.iter().map(|&index| sizes[index]).collect();
        let mut all = vec![Rank(0); sizes.len()];
        for (index, owner) in trained.into_iter().zip(owners(&lengths, world)) {
            all[index] = owner;
        }
        let frees_gradients = stage == ZeroStage::Gradients;
        Some(Self { rank, world, owners: all, frees_gradients })
    }

    /// True if this rank owns the parameter with this registration index.
    pub(super) fn is_mine(&self, parameter: usize) -> bool {
        self.owners[parameter] == self.rank
    }

    /// Returns the owner of the parameter with this registration index.
    pub(super) fn owner(&self, parameter: usize) -> Rank {
        self.owners[parameter]
    }

    /// The parameters of `rank`, in registration order.
    pub(super) fn of(&self, rank: Rank) -> impl Iterator<Item = usize> {
        (0..self.owners.len()).filter(move |&index| self.owners[index] == rank)
    }

    /// Drops the optimizer's state of others' parameters.
    pub(super) fn release(&self, states: &mut [ParameterState]) {
        let states = states.iter_mut().zip(0..self.owners.len());
        for (state, _) in states.filter(|(_, index)| !self.is_mine(*index)) {
            state.tensors = Vec::new();
        }
    }

    /// `layout` with what each rank owns of a bucket side by side, and how each bucket is divided.
    pub(super) fn divide(&self, layout: Layout) -> (Layout, Vec<Division>) {
        let layout = layout.sorted(|parameter| self.owners[parameter]);
        let buckets = layout.buckets.iter().zip(&layout.lengths);
        let divided = buckets.map(|(of, &length)| self.divide_bucket(&layout, of, length));
        let divided = divided.collect();
        (layout, divided)
    }

    fn divide_bucket(&self, layout: &Layout, members: &[usize], length: usize) -> Division {
        let mut parts = vec![0..0; self.world.count()];
        for &parameter in members {
            let slot = layout.slots[parameter];
            let part = &mut parts[self.owners[parameter].index()];
            let start = if part.end == 0 { slot.start } else { part.start };
            *part = start..slot.start + slot.len;
        }
        let mine = &parts[self.rank.index()];
        let others = vec![0..mine.start, mine.end..length];
        Division { parts: parts.into_iter().map(|part| vec![part]).collect(), others }
    }
}

/// True if this rank moves a parameter and keeps its optimizer state: it owns it, or no parameter
/// has an owner.
pub(super) fn is_mine(ownership: Option<&Ownership>, parameter: usize) -> bool {
    ownership.is_none_or(|ownership| ownership.is_mine(parameter))
}

/// Returns a predicate that is true for the parameters, by registration index, whose optimizer
/// state `rank` keeps under `plan`.
pub fn keeps(plan: &Plan, params: &Params, rank: Rank) -> impl Fn(usize) -> bool {
    let ownership = Ownership::new(plan, params, rank, plan.distributed.world_size);
    move |index| is_mine(ownership.as_ref(), index)
}

impl Engine {
    /// True if this rank moves a parameter and keeps its optimizer state.
    pub fn keeps(&self, parameter: usize) -> bool {
        is_mine(self.ownership.as_deref(), parameter)
    }

    /// Describes this rank's part of the optimizer state, where it is divided.
    pub(super) fn describe_ownership(&self) -> Option<String> {
        let ownership = self.ownership.as_ref()?;
        let (mut mine, mut all) = (0, 0);
        for (index, param) in self.params.parameters().iter().enumerate() {
            all += self.planned_state(index, param).map(|(_, n)| n).sum::<usize>();
            mine += self.optimizer_state[index].elem_count();
        }
        let [mine, all] = [mine, all].map(Bytes::of_f32);
        let rank = ownership.rank;
        let world = ownership.world;
        Some(format!("optimizer state in {world} parts: rank {rank} keeps {mine} of {all}"))
    }

    /// After an update of this rank's parameters: gives them to the others, takes theirs, and moves
    /// the averages of theirs.
    pub(super) fn share_updates(&mut self, step: u64, rates: Rates) -> Result<(), Error> {
        if self.ownership.is_none() {
            return Ok(());
        }
        (self.observer)(step, Phase::Reducing);
        let rule = self.optimizer.as_ref();
        let count = self.state.updates;
        let update = planned_update(rule, &self.plan, rates, Preparation::default(), count);
        let params = self.params.parameters();
        let states = &mut self.optimizer_state;
        self.reducer.share_updates(&update, params, states).map_err(|error| match error {
            Error::Tensor { phase, source, .. } => Error::Tensor { phase, step, source },
            other => other,
        })
    }

    /// The state tensors that the owner of a parameter has of it now, and their elements.
    fn planned_state(
        &self,
        index: usize,
        param: &Param,
    ) -> impl Iterator<Item = (StateTensor, usize)> {
        let planned = self.plan.optimizer.state_of(index);
        let planned = if self.trained[index] { planned } else { Vec::new() };
        planned.into_iter().map(|tensor| {
            let n = tensor.elem_count(param.shape());
            (tensor, n)
        })
    }

    /// Returns the optimizer state of all ranks together, with each vector cut to at most one
    /// element: which vectors exist decides how large a checkpoint is.
    pub fn outline_of_optimizer_state(&self) -> Vec<ParameterState> {
        let one = |n: usize| vec![0.0; n.min(1)];
        let average = |state: &ParameterState| one(state.average.len());
        let averages = self.optimizer_state.iter().map(average);
        let mut outline: Vec<ParameterState> = averages
            .map(|average| ParameterState { average, ..ParameterState::default() })
            .collect();
        for (index, param) in self.params.parameters().iter().enumerate() {
            let tensors = self.planned_state(index, param).map(|(tensor, n)| NamedTensor {
                shape: tensor.shape(param.shape()),
                name: tensor.name,
                values: one(n),
            });
            outline[index].tensors = tensors.collect();
        }
        outline
    }

    /// Gathers the optimizer's state of all parameters on the ranks in `on`, as
    /// [`Engine::optimizer_state`] of plain DDP, until [`Engine::release_optimizer_state`]. Every
    /// rank must call it; without sharding nothing happens.
    pub fn gather_optimizer_state(&mut self, on: Range<u32>) -> Result<(), Error> {
        let Some(ownership) = self.ownership.clone() else { return Ok(()) };
        self.copy_optimizer_state_to_host()?;
        let params = self.params.parameters().iter().enumerate();
        let planned: Vec<Vec<usize>> = params
            .map(|(index, param)| self.planned_state(index, param).map(|(_, n)| n).collect())
            .collect();
        let mut owners = Vec::new();
        let mut lengths = Vec::new();
        let mut vectors: Vec<&mut [f32]> = Vec::new();
        let params = self.params.parameters().iter().zip(&mut self.optimizer_state);
        for (index, ((param, state), planned)) in params.zip(planned).enumerate() {
            let owner = ownership.owner(index);
            let is_missing = owner != ownership.rank && on.contains(&ownership.rank.0);
            if is_missing && !planned.is_empty() {
                let zeros = ParameterState::zeros(&self.plan.optimizer, index, param.shape());
                state.tensors = zeros.tensors;
            }
            let mut here = state.tensors.iter_mut();
            for n in planned {
                owners.push(owner);
                lengths.push(n);
                vectors.push(here.next().map_or(&mut [], |tensor| tensor.values.as_mut_slice()));
            }
        }
        Ok(gather(self.collective.as_ref(), &owners, &lengths, &mut vectors)?)
    }

    /// Drops the optimizer's state of others' parameters.
    pub fn release_optimizer_state(&mut self) {
        if let Some(ownership) = &self.ownership {
            ownership.release(&mut self.optimizer_state);
        }
    }
}

/// Sends the elements of each of `vectors`, which its owner has, to all ranks that have room for
/// them: it may be empty elsewhere. In rounds, so that little more memory is needed.
pub(super) fn gather(
    collective: &dyn Collective,
    owners: &[Rank],
    lengths: &[usize],
    vectors: &mut [&mut [f32]],
) -> Result<(), collective::Error> {
    let me = collective.rank();
    let world = collective.world_size();
    let mut held = vec![0; world.count()];
    owners.iter().zip(lengths).for_each(|(owner, length)| held[owner.index()] += length);
    let rounds = held.into_iter().max().unwrap_or(0).div_ceil(ROUND);
    for round in 0..rounds {
        let mut mine = Vec::<f32>::new();
        for (index, elements) in pieces(owners, lengths, me, round) {
            mine.extend_from_slice(&vectors[index][elements]);
        }
        let all = collective.all_gather(bytemuck::cast_slice(&mine))?;
        for (rank, bytes) in (0..).map(Rank).zip(&all).filter(|(rank, _)| *rank != me) {
            let mut rest = bytes.as_slice();
            for (index, elements) in pieces(owners, lengths, rank, round) {
                let (these, after) = rest.split_at(4 * elements.len());
                rest = after;
                if !vectors[index].is_empty() {
                    let place = bytemuck::cast_slice_mut(&mut vectors[index][elements]);
                    place.copy_from_slice(these);
                }
            }
        }
    }
    Ok(())
}

/// Returns what `rank` sends in a round: ranges of its vectors, in their order.
fn pieces(
    owners: &[Rank],
    lengths: &[usize],
    rank: Rank,
    round: usize,
) -> Vec<(usize, Range<usize>)> {
    let from = round * ROUND;
    let to = (round + 1) * ROUND;
    let mut start = 0;
    let mut pieces = Vec::new();
    for (index, (_, &length)) in
        owners.iter().zip(lengths).enumerate().filter(|(_, (owner, _))| **owner == rank)
    {
        let end = start + length;
        let elements = from.max(start)..to.min(end);
        if !elements.is_empty() {
            pieces.push((index, elements.start - start..elements.end - start));
        }
        start = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_gives_its_vectors_one_after_the_other_in_rounds() {
        let owners = [0, 1, 0, 0].map(Rank);
        let lengths = [ROUND - 2, 7, 5, 0];
        let given = |rank, round| pieces(&owners, &lengths, Rank(rank), round);
        assert_eq!(given(0, 0), [(0, 0..ROUND - 2), (2, 0..2)]);
        assert_eq!(given(0, 1), [(2, 2..5)]);
        assert_eq!(given(1, 0), [(1, 0..7)]);
        assert_eq!(given(1, 1), []);
    }

    #[test]
    fn what_a_rank_owns_of_a_bucket_lies_side_by_side_and_all_else_is_the_others() {
        let order = [3, 2, 1, 0].to_vec();
        let layout = Layout::new(&[50, 130, 60, 7], &[order], Bytes(1 << 20), Bytes(1 << 20));
        let owners = [0, 1, 0, 2].map(Rank).to_vec();
        let divided = |rank| {
            let (world, owners) = (WorldSize::new(4).unwrap(), owners.clone());
            let all = Ownership { rank: Rank(rank), world, owners, frees_gradients: true };
            let (layout, mut divided) = all.divide(layout.clone());
            assert_eq!(layout.buckets, [[2, 0, 1, 3]]);
            divided.remove(0)
        };
        let parts = [0..114, 128..258, 320..327, 0..0];
        let [zero, one, none] = [0, 1, 3].map(divided);
        assert_eq!((zero.parts.concat(), one.parts.concat()), (parts.to_vec(), parts.to_vec()));
        assert_eq!(zero.others, [0..0, 114..384]);
        assert_eq!(one.others, [0..128, 258..384]);
        assert_eq!(none.others, [0..0, 0..384]);
    }
}
