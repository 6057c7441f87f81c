//! Sums over the leaders' machines.
//!
//! A reduction has two exchanges: each leader sends every other its share of the elements, summed
//! over its machine as far as the tree allows, and adds its own share of all machines in the same
//! tree as in shared memory; then it sends its sums to all. With M machines that is 2S (M-1)/M
//! bytes out and as many in, over all links at once in both directions; where the ranks of a
//! machine are several subtrees, the first exchange sends one sum of each.

use std::ops::Range;

use super::{InterNodeGroup, State};
use crate::collective::gradient_buffer::Memory;
use crate::collective::links::Message;
use crate::collective::message::Target;
use crate::collective::reduce::{finish_tree, share};
use crate::collective::{Call, Elements, Error, GradientBuffer, Op};
use crate::failpoint;
use crate::plan::AllReduce;
use crate::units::Bytes;

impl InterNodeGroup {
    /// Replaces the segment by its sums on all ranks.
    pub(super) fn sum(&self, segment: &mut GradientBuffer) -> Result<(), Error> {
        let len = segment.len();
        let index = segment.index as u64;
        let values = private(segment)?;
        if self.adds == AllReduce::Library {
            return self.sum_by_library(Op::AllReduce, values, index);
        }
        let (call, mut state) = self.begin(Op::AllReduce, 4 * len, index)?;
        let shares = self.shares(len);
        let of_each: Vec<&[f32]> = shares.iter().map(|share| &values[share.clone()]).collect();
        self.reduce_share(&mut state, &call, &of_each)?;
        failpoint::reach("collective");
        self.gather_shares(&mut state, &call, values, &shares)
    }

    /// Each rank gets the sums of its part of the segment.
    pub(super) fn sum_parts(
        &self,
        segment: &mut GradientBuffer,
        parts: &[Elements],
    ) -> Result<(), Error> {
        let len = segment.len();
        let index = segment.index as u64;
        let values = private(segment)?;
        if self.adds == AllReduce::Library {
            return self.sum_by_library(Op::ReduceScatter, values, index);
        }
        let (call, mut state) = self.begin(Op::ReduceScatter, 4 * len, index)?;
        let packed = |ranges: &Elements| -> Vec<f32> {
            ranges.iter().flat_map(|range| &values[range.clone()]).copied().collect()
        };
        let packed: Vec<Vec<f32>> = parts.iter().map(packed).collect();
        let of_each: Vec<&[f32]> = packed.iter().map(Vec::as_slice).collect();
        self.reduce_share(&mut state, &call, &of_each)?;
        failpoint::reach("collective");
        let mut sums = state.sums();
        for range in &parts[self.rank.index()] {
            let (these, after) = sums.split_at(range.len());
            values[range.clone()].copy_from_slice(these);
            sums = after;
        }
        Ok(())
    }

    /// The elements of `0..len` that each machine reduces.
    pub(in crate::collective) fn shares(&self, len: usize) -> Vec<Range<usize>> {
        let machines = self.machines();
        (0..machines).map(|machine| share(len, machine, machines)).collect()
    }

    /// A sum that the library takes, once all are known to make this call.
    fn sum_by_library(&self, op: Op, values: &mut Vec<f32>, index: u64) -> Result<(), Error> {
        let mut state = self.synchronize(op, 4 * values.len(), index)?;
        let call = Call { seq: state.seq, op, bytes: Bytes(4 * values.len() as u64), tag: index };
        failpoint::reach("collective");
        let done = state.links.sum_by_library(&self.round(&call, 1, 0), values);
        state.record(done)
    }

    /// Sends each machine the elements of its share, one after the other the sums over the subtrees
    /// of this machine; receives those of all machines of this one's share, and leaves their sum in
    /// [`State::sums`].
    pub(in crate::collective) fn reduce_share(
        &self,
        state: &mut State,
        call: &Call,
        shares: &[&[f32]],
    ) -> Result<(), Error> {
        let me = self.machine;
        let len = shares[self.machine].len() / self.starts[self.machine].len();
        let State { links, parts, .. } = state;
        for (part, starts) in parts.iter_mut().zip(&self.starts) {
            part.resize(starts.len() * len, 0.0);
        }
        parts[me].copy_from_slice(shares[me]);
        let mut messages = Vec::with_capacity(shares.len());
        for (machine, part) in parts.iter_mut().enumerate().filter(|(machine, _)| *machine != me) {
            let out: Option<&[u8]> = Some(bytemuck::cast_slice(shares[machine]));
            let into = Some(Target::Slice(bytemuck::cast_slice_mut(part)));
            messages.push(Message { peer: self.link(machine), out, into });
        }
        let done = links.exchange(&self.round(call, 0, 0), messages);
        state.record(done)?;
        if len > 0 {
            let mut sums: Vec<&mut [f32]> =
                state.parts.iter_mut().flat_map(|part| part.chunks_exact_mut(len)).collect();
            finish_tree(self.world.count(), &self.starts.concat(), &mut sums);
        }
        state.parts[0].truncate(len);
        Ok(())
    }

    /// Sends this leader's sums to all, and receives theirs into `values`.
    pub(in crate::collective) fn gather_shares(
        &self,
        state: &mut State,
        call: &Call,
        values: &mut [f32],
        shares: &[Range<usize>],
    ) -> Result<(), Error> {
        let me = self.machine;
        let State { links, parts, .. } = state;
        values[shares[me].clone()].copy_from_slice(&parts[0]);
        let out: Option<&[u8]> = Some(bytemuck::cast_slice(&parts[0]));
        let mut messages = Vec::new();
        let mut rest = values;
        for (machine, share) in shares.iter().enumerate() {
            let (theirs, after) = rest.split_at_mut(share.len());
            if machine != me {
                let into = Some(Target::Slice(bytemuck::cast_slice_mut(theirs)));
                messages.push(Message { peer: self.link(machine), out, into });
            }
            rest = after;
        }
        let done = links.exchange(&self.round(call, 1, 0), messages);
        state.record(done)
    }
}

/// Returns the memory of a segment of such a group.
fn private(segment: &mut GradientBuffer) -> Result<&mut Vec<f32>, Error> {
    match &mut segment.memory {
        Memory::Private(values) => Ok(values),
        Memory::Shared(_) => {
            Err(Error::Connections { what: "the segment is shared memory".to_owned() })
        }
    }
}
