//! Messages between leaders beside gradients: votes, barriers, and broadcasts of rank 0.
//!
//! Up to eight machines send small messages from each to each. More use a tree of eight children
//! each, so that messages grow with the number of machines, and steps with its logarithm: every
//! leader tells the one above that it is here; then the bytes go up, and those of all come down.
//! Broadcasts go down the same tree.

use std::ops::Range;
use std::sync::MutexGuard;

use super::{InterNodeGroup, State};
use crate::collective::links::Message;
use crate::collective::message::Target;
use crate::collective::{Call, Error, Op};

/// Bytes that go down the tree at a time, while the next come.
pub(super) const PIECE: usize = 4 << 20;

impl InterNodeGroup {
    /// A call that moves no data.
    pub(in crate::collective) fn synchronize(
        &self,
        op: Op,
        bytes: usize,
        tag: u64,
    ) -> Result<MutexGuard<'_, State>, Error> {
        let (call, mut state) = self.begin(op, bytes, tag)?;
        let done = self.gather(&mut state, &call, None);
        state.record(done)?;
        Ok(state)
    }

    /// The `mine` of all machines. `None`, on all, if all that counts is that all make this call.
    pub(super) fn gather(
        &self,
        state: &mut State,
        call: &Call,
        mine: Option<&[u8]>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = vec![Vec::new(); self.machines()];
        if self.machines() <= FEW {
            let theirs = all.iter_mut().enumerate().filter(|(machine, _)| *machine != self.machine);
            let both = |(machine, bytes)| Message {
                peer: self.link(machine),
                out: Some(mine.unwrap_or_default()),
                into: Some(Target::Vec(bytes)),
            };
            state.links.exchange(&self.round(call, 0, 0), theirs.map(both).collect())?;
            all[self.machine] = mine.unwrap_or_default().to_vec();
            return Ok(all);
        }
        let told = self.gather_by_tree(state, call, mine)?;
        let damaged = || Error::Connections { what: "what machines told is damaged".to_owned() };
        for (machine, bytes) in unpack(&told).ok_or_else(damaged)? {
            *all.get_mut(machine).ok_or_else(damaged)? = bytes;
        }
        Ok(all)
    }

    /// Gathers through the tree; the result is packed.
    fn gather_by_tree(
        &self,
        state: &mut State,
        call: &Call,
        mine: Option<&[u8]>,
    ) -> Result<Vec<u8>, Error> {
        let me = self.machine;
        let machines = self.machines();
        let above = parent(me).map(|above| self.link(above));
        let below = children(me, machines);
        // First only who is here, so that a leader knows which of its children is not.
        let here = above.map(|peer| Message { peer, out: Some(&[]), into: None });
        let theirs = below.clone().map(|child| Message {
            peer: self.link(child),
            out: None,
            into: Some(Target::Slice(&mut [])),
        });
        let messages = here.into_iter().chain(theirs).collect();
        state.links.exchange(&self.round(call, 0, 0), messages)?;
        let mut told = vec![Vec::new(); below.len()];
        let theirs = below.clone().zip(&mut told).map(|(child, bytes)| Message {
            peer: self.link(child),
            out: None,
            into: Some(Target::Vec(bytes)),
        });
        let round = self.round(call, 1, height(me, machines));
        state.links.exchange(&round, theirs.collect())?;
        let own = mine.map_or(Vec::new(), |mine| pack(&[(me, mine.to_vec())]));
        let mut all = [own, told.concat()].concat();
        if let Some(peer) = above {
            let up = Message { peer, out: Some(&all), into: None };
            state.links.exchange(&round, vec![up])?;
            let round = self.round(call, 2, height(0, machines) + depth(me));
            all = Vec::new();
            let down = Message { peer, out: None, into: Some(Target::Vec(&mut all)) };
            state.links.exchange(&round, vec![down])?;
        }
        let down =
            below.map(|child| Message { peer: self.link(child), out: Some(&all), into: None });
        state.links.exchange(&self.round(call, 2, 0), down.collect())?;
        Ok(all)
    }

    /// Passes what comes from above on, piece by piece.
    fn broadcast_by_tree(
        &self,
        state: &mut State,
        call: &Call,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let above = parent(self.machine).map(|above| self.link(above));
        let n = bytes.len().div_ceil(PIECE).max(1);
        let steps = depth(self.machine);
        for piece in 0..n {
            let range = piece * PIECE..((piece + 1) * PIECE).min(bytes.len());
            let piece_bytes = &mut bytes[range];
            let round = self.round(call, piece as u64, steps);
            if let Some(peer) = above {
                let into = Some(Target::Slice(&mut *piece_bytes));
                state.links.exchange(&round, vec![Message { peer, out: None, into }])?;
            }
            let down = children(self.machine, self.machines()).map(|child| Message {
                peer: self.link(child),
                out: Some(&*piece_bytes),
                into: None,
            });
            state.links.exchange(&round, down.collect())?;
        }
        Ok(())
    }

    /// Sends rank 0's bytes to all.
    pub(super) fn send_to_all(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let (call, mut state) = self.begin(Op::Broadcast, bytes.len(), 0)?;
        let done = if self.machines() > FEW {
            self.broadcast_by_tree(&mut state, &call, bytes)
        } else if self.machine == 0 {
            let both = |machine| Message {
                peer: self.link(machine),
                out: Some(&*bytes),
                into: Some(Target::Slice(&mut [])),
            };
            let messages = self.others().map(both).collect();
            state.links.exchange(&self.round(&call, 0, 0), messages)
        } else {
            let mut first = Some(bytes);
            let both = |machine| Message {
                peer: self.link(machine),
                out: Some(&[][..]),
                into: Some(Target::Slice(first.take().unwrap_or_default())),
            };
            // The first of the others is rank 0.
            let messages = self.others().map(both).collect();
            state.links.exchange(&self.round(&call, 0, 0), messages)
        };
        state.record(done)
    }
}

/// Up to this number of machines each talks to each, in one step; more use the tree.
pub(super) const FEW: usize = 8;
const CHILDREN: usize = 8;

/// The leader above that of `machine`.
fn parent(machine: usize) -> Option<usize> {
    machine.checked_sub(1).map(|before| before / CHILDREN)
}

/// The leaders below that of `machine`, of so many.
fn children(machine: usize, machines: usize) -> Range<usize> {
    let first = CHILDREN * machine + 1;
    first.min(machines)..(first + CHILDREN).min(machines)
}

/// Steps from the leader of `machine` to the first.
fn depth(machine: usize) -> u32 {
    std::iter::successors(parent(machine), |machine| parent(*machine)).count() as u32
}

/// Steps from the leader of `machine` to the farthest below it.
pub(super) fn height(machine: usize, machines: usize) -> u32 {
    let mut first = children(machine, machines);
    let mut height = 0;
    while !first.is_empty() {
        height += 1;
        first = children(first.start, machines);
    }
    height
}

/// Packs the bytes of some machines, each with the machine's number, into one message.
fn pack(told: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (machine, of_machine) in told {
        bytes.extend((*machine as u64).to_le_bytes());
        bytes.extend((of_machine.len() as u64).to_le_bytes());
        bytes.extend(of_machine);
    }
    bytes
}

/// Unpacks a message of [`pack`]; `None` if it is damaged.
fn unpack(mut bytes: &[u8]) -> Option<Vec<(usize, Vec<u8>)>> {
    let mut told = Vec::new();
    while !bytes.is_empty() {
        let (machine, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (one, rest) = rest.split_at_checked(length)?;
        told.push((usize::try_from(u64::from_le_bytes(*machine)).ok()?, one.to_vec()));
        bytes = rest;
    }
    Some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_but_the_first_has_one_above_it_that_knows_it() {
        for machines in 1..300 {
            for machine in 0..machines {
                let above = parent(machine);
                assert_eq!(above.is_none(), machine == 0);
                assert!(above.is_none_or(|above| children(above, machines).contains(&machine)));
            }
            let below: usize = (0..machines).map(|machine| children(machine, machines).len()).sum();
            assert_eq!(below, machines - 1);
            let deepest = (0..machines).map(depth).max();
            assert_eq!(deepest, Some(height(0, machines)), "{machines} machines");
        }
        assert_eq!([9, 10, 73, 74, 1024].map(|machines| height(0, machines)), [1, 2, 2, 3, 4]);
    }

    #[test]
    fn what_is_packed_is_unpacked_and_what_is_cut_is_not() {
        let told = vec![(3, b"abc".to_vec()), (0, vec![]), (1024, vec![7; 20])];
        let bytes = pack(&told);
        assert_eq!(unpack(&bytes), Some(told));
        assert_eq!(unpack(&bytes[..bytes.len() - 1]), None);
        assert_eq!(unpack(&[]), Some(vec![]));
    }
}
