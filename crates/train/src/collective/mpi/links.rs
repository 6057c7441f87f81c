//! Links between ranks through MPI. A message is a header, as over connections, and its payload, in
//! pieces. No call blocks: all are polled, so that every wait has a deadline, and can be ended by
//! another thread or another rank.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::collective::inter_node_group::Topology;
use crate::collective::links::{Exchange, Links, Message};
use crate::collective::message::{HEADER_BYTES, Target, check_header, header_of};
use crate::collective::mpi::end;
use crate::collective::mpi::library::{Library, Transfer};
use crate::collective::mpi::world::{World, world};
use crate::collective::{Call, Error, MissingRank};
use crate::units::Rank;

/// Tag of a message.
const TAG: c_int = 1;
/// Payload that is sent at a time: MPI counts bytes in 32 bits.
const PIECE: usize = 64 << 20;
/// Time between two looks for a message that ends the group, for each 64 ranks.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Time for which data are polled without sleeping: the library moves them only while it is called.
const BUSY: Duration = Duration::from_millis(20);
/// Time for which ranks that have sent nothing are waited for without sleeping.
const BRIEFLY: Duration = Duration::from_millis(1);
/// Time between two polls after that.
const NAP: Duration = Duration::from_micros(100);
/// No pause counts for longer: while the whole group is suspended (Ctrl-Z), so is the deadline.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The links of a rank to the first ranks of other machines.
pub(in crate::collective) struct MpiLinks {
    world: &'static World,
    others: Vec<Rank>,
    /// Memory for the next sum by the library.
    room: Vec<f32>,
}

impl MpiLinks {
    /// Opens the links of a rank, after `start`. Does not wait.
    pub(in crate::collective) fn open(topology: Topology) -> Result<Self, Error> {
        let refused = |what: &str| Error::Mpi { what: what.to_owned() };
        let world = world().ok_or_else(|| refused("this rank has not started it"))?;
        let Topology { rank, world: size, .. } = topology;
        if (world.rank, world.size) != (rank, size) {
            let what =
                format!("this is rank {rank} of {size}, and not {} of {}", world.rank, world.size);
            return Err(refused(&what));
        }
        Ok(Self { world, others: topology.others().collect(), room: Vec::new() })
    }

    /// Works until all is done.
    fn complete(
        &self,
        exchange: &Exchange<'_>,
        work: &mut impl PendingTransfers,
    ) -> Result<(), Error> {
        let mut backoff = Backoff::start();
        let mut looked = Instant::now();
        let look_interval = LOOK_INTERVAL * (1 + self.world.size.get() / 64);
        loop {
            exchange.wait_hook.map_or(Ok(()), |wait_hook| wait_hook())?;
            if work.advance(&self.world.library(), exchange)? {
                backoff.restart();
            }
            if work.is_done() {
                return Ok(());
            }
            if let Some(reason) = exchange.interrupts.reason() {
                return Err(Error::Aborted { by: self.world.rank, reason });
            }
            if looked.elapsed() >= look_interval {
                let told = end::received(self.world).map_err(|why| failed(exchange.call, &why))?;
                told.map_or(Ok(()), Err)?;
                looked = Instant::now();
            }
            if backoff.idle >= exchange.timeout || exchange.interrupts.gives_up() {
                let missing = work.missing(exchange.call);
                let call = *exchange.call;
                return Err(Error::Timeout { call, missing, waited: backoff.idle });
            }
            backoff.pause();
        }
    }
}

impl Links for MpiLinks {
    fn exchange(
        &mut self,
        exchange: &Exchange<'_>,
        messages: Vec<Message<'_>>,
    ) -> Result<(), Error> {
        let transfers_of = |Message { peer, out, into }| PeerTransfers {
            rank: self.others[peer],
            out: out.map(|payload| Outgoing::new(exchange, payload)),
            into: into.map(Incoming::new),
        };
        let mut transfers: Vec<PeerTransfers<'_>> =
            messages.into_iter().map(transfers_of).collect();
        let done = self.complete(exchange, &mut transfers);
        done.inspect_err(|error| end::notify(self.world, error))
    }

    fn sum_by_library(
        &mut self,
        exchange: &Exchange<'_>,
        values: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let len = values.len();
        let own = std::mem::take(values);
        let room = std::mem::take(&mut self.room);
        let begun = self.world.library().all_reduce(own, room);
        let done = begun.map_err(|why| failed(exchange.call, &why)).and_then(|transfer| {
            let mut sum = Sum { transfer, is_done: false };
            self.complete(exchange, &mut sum)?;
            Ok(sum.transfer.finish().unwrap_or_default())
        });
        // What a failed transfer holds on to is never given back.
        let [own, sums] = done.inspect_err(|error| {
            values.resize(len, 0.0);
            end::notify(self.world, error);
        })?;
        (*values, self.room) = (sums, own);
        Ok(())
    }

    fn end_all(&mut self, _rank: Rank, error: &Error) {
        end::notify(self.world, error);
    }

    #[cfg(any(feature = "cuda", test))]
    fn received_end(&mut self, call: &Call) -> Option<Error> {
        end::received(self.world).unwrap_or_else(|why| Some(failed(call, &why)))
    }

    fn describe(&self) -> Option<String> {
        let library = self.world.library();
        let version = &library.version;
        let file = library.file.display();
        Some(format!("gradients go through MPI: {version} ({file})"))
    }
}

/// Makes an error of the library's message.
fn failed(call: &Call, why: &str) -> Error {
    Error::Mpi { what: format!("{why}, in {call}") }
}

/// Transfers that are under way in the library.
trait PendingTransfers {
    /// Does what is possible now, and returns whether anything was.
    fn advance(&mut self, library: &Library, exchange: &Exchange<'_>) -> Result<bool, Error>;

    fn is_done(&self) -> bool;

    /// The ranks that it waits for, as far as they are known.
    fn missing(&self, call: &Call) -> Vec<MissingRank>;
}

impl PendingTransfers for Vec<PeerTransfers<'_>> {
    fn advance(&mut self, library: &Library, exchange: &Exchange<'_>) -> Result<bool, Error> {
        let mut has_advanced = false;
        for PeerTransfers { rank, out, into } in self {
            if let Some(out) = out {
                let sent = out.advance(library, *rank);
                has_advanced |= sent.map_err(|why| failed(exchange.call, &why))?;
            }
            if let Some(into) = into {
                has_advanced |= into.advance(library, exchange, *rank)?;
            }
        }
        Ok(has_advanced)
    }

    fn is_done(&self) -> bool {
        self.iter().all(PeerTransfers::is_done)
    }

    /// If some have sent nothing, only those.
    fn missing(&self, call: &Call) -> Vec<MissingRank> {
        let has_silent = self.iter().any(PeerTransfers::is_silent);
        let late = self.iter().filter(|peer| !peer.is_done());
        let late = late.filter(|peer| !has_silent || peer.is_silent());
        let missing = |peer: &PeerTransfers<'_>| MissingRank {
            rank: peer.rank,
            begun: call.seq - u64::from(peer.is_silent()),
        };
        late.map(missing).collect()
    }
}

/// A sum by the library, which does not tell whom it waits for.
struct Sum {
    transfer: Transfer<[Vec<f32>; 2]>,
    is_done: bool,
}

impl PendingTransfers for Sum {
    fn advance(&mut self, library: &Library, exchange: &Exchange<'_>) -> Result<bool, Error> {
        self.is_done = self.transfer.poll(library).map_err(|why| failed(exchange.call, &why))?;
        Ok(self.is_done)
    }

    fn is_done(&self) -> bool {
        self.is_done
    }

    fn missing(&self, _call: &Call) -> Vec<MissingRank> {
        Vec::new()
    }
}

/// The transfers to and from another rank.
struct PeerTransfers<'a> {
    rank: Rank,
    out: Option<Outgoing<'a>>,
    into: Option<Incoming<'a>>,
}

impl PeerTransfers<'_> {
    fn is_done(&self) -> bool {
        let is_sent = self.out.as_ref().is_none_or(Outgoing::is_done);
        is_sent && self.into.as_ref().is_none_or(Incoming::is_done)
    }

    /// True if the other rank has yet to send its message, and has sent nothing.
    fn is_silent(&self) -> bool {
        self.into.as_ref().is_some_and(|into| into.length.is_none())
    }
}

/// A message that is being sent.
struct Outgoing<'a> {
    /// Sent before the rest of the payload; `None` once it was.
    header: Option<[u8; HEADER_BYTES]>,
    rest: &'a [u8],
    piece: Option<Transfer<Vec<u8>>>,
}

impl<'a> Outgoing<'a> {
    fn new(exchange: &Exchange<'_>, payload: &'a [u8]) -> Self {
        let header = header_of(exchange.call, exchange.round, payload.len());
        Self { header: Some(header), rest: payload, piece: None }
    }

    fn is_done(&self) -> bool {
        self.header.is_none() && self.rest.is_empty() && self.piece.is_none()
    }

    fn advance(&mut self, library: &Library, to: Rank) -> Result<bool, String> {
        let mut memory = Vec::new();
        if let Some(mut piece) = self.piece.take() {
            if !piece.poll(library)? {
                self.piece = Some(piece);
                return Ok(false);
            }
            memory = piece.finish().unwrap_or_default();
        }
        if self.is_done() {
            return Ok(true);
        }
        memory.clear();
        memory.extend(self.header.take().into_iter().flatten());
        let (now, rest) = self.rest.split_at(self.rest.len().min(PIECE));
        memory.extend_from_slice(now);
        self.rest = rest;
        self.piece = Some(library.send(memory, to.index(), TAG)?);
        Ok(true)
    }
}

/// A message that is being received.
struct Incoming<'a> {
    target: Target<'a>,
    /// Bytes of the payload, once the header is here.
    length: Option<usize>,
    received: usize,
    piece: Option<Transfer<Vec<u8>>>,
}

impl<'a> Incoming<'a> {
    fn new(target: Target<'a>) -> Self {
        Self { target, length: None, received: 0, piece: None }
    }

    fn is_done(&self) -> bool {
        self.length == Some(self.received)
    }

    fn advance(
        &mut self,
        library: &Library,
        exchange: &Exchange<'_>,
        from: Rank,
    ) -> Result<bool, Error> {
        let broken = |why: String| failed(exchange.call, &why);
        if self.is_done() {
            return Ok(false);
        }
        let Some(mut piece) = self.piece.take() else {
            let Some(bytes) = library.message(from.index(), TAG).map_err(broken)? else {
                return Ok(false);
            };
            let begun = library.receive(Vec::new(), bytes, from.index(), TAG);
            self.piece = Some(begun.map_err(broken)?);
            return Ok(true);
        };
        if !piece.poll(library).map_err(broken)? {
            self.piece = Some(piece);
            return Ok(false);
        }
        self.take(&piece.finish().unwrap_or_default(), exchange, from)?;
        Ok(true)
    }

    /// Copies a piece into the target.
    fn take(&mut self, piece: &[u8], exchange: &Exchange<'_>, from: Rank) -> Result<(), Error> {
        let unreadable = || failed(exchange.call, &format!("rank {from} sent what is no message"));
        let mut bytes = piece;
        let length = if let Some(length) = self.length {
            length
        } else {
            let (header, rest) = piece.split_first_chunk().ok_or_else(unreadable)?;
            bytes = rest;
            check_header(header, exchange.rank, from, exchange.call, exchange.round, &self.target)?
        };
        self.length = Some(length);
        let after = self.received + bytes.len();
        if after > length {
            return Err(unreadable());
        }
        match &mut self.target {
            Target::Slice(slice) => slice[self.received..after].copy_from_slice(bytes),
            Target::Vec(all) => all.extend_from_slice(bytes),
        }
        self.received = after;
        Ok(())
    }
}

/// Pauses between polls: short at first, and after each progress.
struct Backoff {
    busy: Duration,
    idle: Duration,
    last: Instant,
}

impl Backoff {
    fn start() -> Self {
        Self { busy: BRIEFLY, idle: Duration::ZERO, last: Instant::now() }
    }

    fn restart(&mut self) {
        *self = Self { busy: BUSY, idle: Duration::ZERO, last: Instant::now() };
    }

    fn pause(&mut self) {
        if self.idle < self.busy {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
        let now = Instant::now();
        self.idle += (now - self.last).min(MAX_PAUSE);
        self.last = now;
    }
}
