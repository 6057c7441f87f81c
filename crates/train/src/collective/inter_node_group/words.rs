//! What leaders tell each other beside gradients: votes, barriers, and what rank 0 has for all.
//!
//! What is small goes from each to each of up to eight machines. More use a tree (`gather_tree`):
//! everyone tells the leader above that it is here; then the bytes go up, and those of all come
//! down. Broadcasts go down the same tree.

use std::sync::MutexGuard;

use super::{InterNodeGroup, State};
use crate::collective::gather_tree::{self, FEW, children, depth, height, parent};
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
        let done = self.gather(&mut state, &call, None).map(drop);
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
            let theirs = all.iter_mut().enumerate().filter(|(place, _)| *place != self.place);
            let both = |(place, bytes)| Message {
                peer: self.link(place),
                out: Some(mine.unwrap_or_default()),
                into: Some(Target::Vec(bytes)),
            };
            state.links.exchange(&self.round(call, 0, 0), theirs.map(both).collect())?;
            all[self.place] = mine.unwrap_or_default().to_vec();
            return Ok(all);
        }
        let told = self.gather_by_tree(state, call, mine)?;
        let damaged = || Error::Connections { what: "what machines told is damaged".to_owned() };
        for (place, bytes) in gather_tree::unpack(&told).ok_or_else(damaged)? {
            *all.get_mut(place).ok_or_else(damaged)? = bytes;
        }
        Ok(all)
    }

    /// The same through the tree, packed.
    fn gather_by_tree(
        &self,
        state: &mut State,
        call: &Call,
        mine: Option<&[u8]>,
    ) -> Result<Vec<u8>, Error> {
        let me = self.place;
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
        let own = mine.map_or(Vec::new(), |mine| gather_tree::pack(&[(me, mine.to_vec())]));
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
        let above = parent(self.place).map(|above| self.link(above));
        let n = bytes.len().div_ceil(PIECE).max(1);
        let steps = depth(self.place);
        for piece in 0..n {
            let range = piece * PIECE..((piece + 1) * PIECE).min(bytes.len());
            let piece_bytes = &mut bytes[range];
            let round = self.round(call, piece as u64, steps);
            if let Some(peer) = above {
                let into = Some(Target::Slice(&mut *piece_bytes));
                state.links.exchange(&round, vec![Message { peer, out: None, into }])?;
            }
            let down = children(self.place, self.machines()).map(|child| Message {
                peer: self.link(child),
                out: Some(&*piece_bytes),
                into: None,
            });
            state.links.exchange(&round, down.collect())?;
        }
        Ok(())
    }

    /// What rank 0 has goes to all.
    pub(super) fn send_to_all(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let (call, mut state) = self.begin(Op::Broadcast, bytes.len(), 0)?;
        let done = if self.machines() > FEW {
            self.broadcast_by_tree(&mut state, &call, bytes)
        } else if self.place == 0 {
            let both = |place| Message {
                peer: self.link(place),
                out: Some(&*bytes),
                into: Some(Target::Slice(&mut [])),
            };
            let messages = self.others().map(both).collect();
            state.links.exchange(&self.round(&call, 0, 0), messages)
        } else {
            let mut first = Some(bytes);
            let both = |place| Message {
                peer: self.link(place),
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
