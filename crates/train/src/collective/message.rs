//! A partly sent or received message between two ranks. Sockets are non-blocking.
//!
//! ```text
//! header: operation, round, call, length, tag, payload's length   48 bytes
//! payload, in pieces of 128 KiB
//! ```
//!
//! Between machines the header and each piece are a sealed record.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
#[cfg(any(feature = "cuda", test))]
use rustix::net::RecvFlags;
use rustix::net::SendFlags;

use crate::collective::{Call, Error, Op};
use crate::transport::record::{RecordKey, TAG_BYTES};
use crate::units::{Bytes, Rank};

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 48;
/// Payload in one record: it stays in the processor's cache while it is sealed and sent, and a
/// change in transit is noticed before more is read.
pub(super) const PIECE_BYTES: usize = 128 << 10;
/// Operation of a message that ends the group.
const END: u64 = 0xE0D;
/// Longest reason for an end that is sent.
const MAX_REASON_BYTES: usize = 16 << 10;

/// Destination of a payload.
pub(super) enum Target<'a> {
    /// Memory for a payload whose length is known.
    Slice(&'a mut [u8]),
    /// Memory for a payload whose length the sender decides.
    Vec(&'a mut Vec<u8>),
}

/// The header of a rank's message in the `round`-th exchange of a call, with so many bytes.
pub(super) fn header_of(call: &Call, round: u64, bytes: usize) -> [u8; HEADER_BYTES] {
    let Call { seq, op, bytes: of_call, tag } = *call;
    header([op.code(), round, seq, of_call.0, tag, bytes as u64])
}

/// The bytes that a message has by its header, if its sender makes the same call as `own`.
pub(super) fn check_header(
    header: &[u8; HEADER_BYTES],
    own: Rank,
    other: Rank,
    call: &Call,
    round: u64,
    target: &Target<'_>,
) -> Result<usize, Error> {
    let [op, its_round, seq, bytes, tag, len] = fields(header);
    let op = Op::of_code(op).ok_or_else(|| Error::Connections {
        what: format!("rank {other} sent an unknown operation"),
    })?;
    let theirs = Call { seq, op, bytes: Bytes(bytes), tag };
    if theirs != *call || its_round != round {
        let mut first = (own, *call);
        let mut second = (other, theirs);
        if other < own {
            (first, second) = (second, first);
        }
        return Err(Error::Mismatch { first, second });
    }
    match target {
        Target::Slice(slice) if slice.len() != len as usize => Err(Error::Connections {
            what: format!("rank {other} sends {len} bytes in {call}, not {}", slice.len()),
        }),
        _ => Ok(len as usize),
    }
}

fn header(fields: [u64; 6]) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    for (at, field) in fields.into_iter().enumerate() {
        bytes[8 * at..8 * at + 8].copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

fn fields(header: &[u8; HEADER_BYTES]) -> [u64; 6] {
    std::array::from_fn(|at| {
        header[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    })
}

/// The `part`-th part of a message beside its header, counted from 1.
fn piece(part: usize, len: usize) -> Range<usize> {
    ((part - 1) * PIECE_BYTES).min(len)..(part * PIECE_BYTES).min(len)
}

fn parts(len: usize) -> usize {
    1 + len.div_ceil(PIECE_BYTES)
}

/// Seals the messages of a connection between machines.
pub(super) struct Sealer {
    key: RecordKey,
    /// The present record, with its tag.
    record: Vec<u8>,
}

impl Sealer {
    pub(super) fn new(key: RecordKey) -> Self {
        Self { key, record: Vec::new() }
    }

    fn seal(&mut self, part: &[u8]) -> io::Result<()> {
        self.record.clear();
        self.record.extend_from_slice(part);
        let tag = self.key.seal(&mut self.record)?;
        self.record.extend_from_slice(&tag);
        Ok(())
    }
}

/// A message that is being sent.
pub(super) struct Outgoing<'a> {
    header: [u8; HEADER_BYTES],
    payload: &'a [u8],
    /// Number of the present part; 0 is the header.
    part: usize,
    /// Bytes of it that are sent; sealed, if it is.
    sent: usize,
    is_sealed: bool,
}

impl<'a> Outgoing<'a> {
    /// This rank's message in the `round`-th exchange of a call.
    pub(super) fn of_call(call: &Call, round: u64, payload: &'a [u8]) -> Self {
        Self::new(header_of(call, round, payload.len()), payload)
    }

    /// The end of the group.
    pub(super) fn of_end(by: Rank, reason: &'a str) -> Self {
        let reason = &reason.as_bytes()[..reason.floor_char_boundary(MAX_REASON_BYTES)];
        Self::new(header([END, 0, 0, 0, u64::from(by.0), reason.len() as u64]), reason)
    }

    fn new(header: [u8; HEADER_BYTES], payload: &'a [u8]) -> Self {
        Self { header, payload, part: 0, sent: 0, is_sealed: false }
    }

    pub(super) fn is_done(&self) -> bool {
        self.part == parts(self.payload.len())
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.part == 0 && self.sent == 0 && !self.is_sealed
    }

    /// Sends what can be sent now, and returns whether anything was.
    pub(super) fn push(
        &mut self,
        socket: &OwnedFd,
        mut sealer: Option<&mut Sealer>,
    ) -> io::Result<bool> {
        let mut has_advanced = false;
        while !self.is_done() {
            let mut part = match self.part {
                0 => &self.header[..],
                part => &self.payload[piece(part, self.payload.len())],
            };
            if let Some(sealer) = sealer.as_deref_mut() {
                if !std::mem::replace(&mut self.is_sealed, true) {
                    sealer.seal(part)?;
                }
                part = &sealer.record;
            }
            let is_last = self.part + 1 == parts(self.payload.len());
            let more = if is_last { SendFlags::empty() } else { SendFlags::MORE };
            match rustix::net::send(socket, &part[self.sent..], SendFlags::NOSIGNAL | more) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return Ok(has_advanced),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            has_advanced = true;
            if self.sent == part.len() {
                (self.part, self.sent, self.is_sealed) = (self.part + 1, 0, false);
            }
        }
        Ok(has_advanced)
    }
}

/// A message that is being received.
pub(super) struct Incoming<'a> {
    header: [u8; HEADER_BYTES],
    target: Target<'a>,
    /// In place of the target, for a message that ends the group.
    reason: Vec<u8>,
    /// Number of the present part; 0 is the header.
    part: usize,
    /// Bytes of it, and of its tag, that were received.
    received: usize,
    tag: [u8; TAG_BYTES],
}

impl<'a> Incoming<'a> {
    pub(super) fn new(target: Target<'a>) -> Self {
        let header = [0; HEADER_BYTES];
        let reason = Vec::new();
        let tag = [0; TAG_BYTES];
        Self { header, target, reason, part: 0, received: 0, tag }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.part > 0
    }

    /// Bytes of the payload, once the header is here.
    fn len(&self) -> usize {
        fields(&self.header)[5] as usize
    }

    fn is_end(&self) -> bool {
        fields(&self.header)[0] == END
    }

    pub(super) fn is_done(&self) -> bool {
        self.has_begun() && !self.is_end() && self.part == parts(self.len())
    }

    /// Receives what has arrived, at first only the header, and returns whether anything was.
    pub(super) fn pull(
        &mut self,
        socket: &OwnedFd,
        mut key: Option<&mut RecordKey>,
    ) -> io::Result<bool> {
        let had_begun = self.has_begun();
        let mut has_advanced = false;
        loop {
            if self.has_begun() && (!had_begun || self.part == parts(self.len())) {
                return Ok(has_advanced);
            }
            let tag_len = if key.is_some() { TAG_BYTES } else { 0 };
            let received = self.received;
            let mut tag = self.tag;
            let part = self.present_part();
            let len = part.len();
            let rest = match received.checked_sub(len) {
                None => &mut part[received..],
                Some(of_tag) => &mut tag[of_tag..tag_len],
            };
            let is_missing = !rest.is_empty();
            match rustix::io::read(socket, rest) {
                Ok(0) if is_missing => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.received += n,
                Err(Errno::AGAIN) => return Ok(has_advanced),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            has_advanced = true;
            self.tag = tag;
            if self.received == len + tag_len {
                if let Some(key) = key.as_deref_mut() {
                    key.open(self.present_part(), tag)?;
                }
                (self.part, self.received) = (self.part + 1, 0);
            }
        }
    }

    /// The buffer of the present part.
    fn present_part(&mut self) -> &mut [u8] {
        if self.part == 0 {
            return &mut self.header;
        }
        let range = piece(self.part, self.len());
        let is_end = self.is_end();
        match &mut self.target {
            Target::Slice(bytes) if !is_end => &mut bytes[range],
            Target::Vec(bytes) if !is_end => {
                bytes.resize(range.end, 0);
                &mut bytes[range]
            }
            _ => {
                self.reason.resize(range.end, 0);
                &mut self.reason[range]
            }
        }
    }

    /// True if the next message of the socket, of which nothing was received yet, is the end of the
    /// group. It is left unread.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn begins_with_end(socket: &OwnedFd, key: Option<&RecordKey>) -> io::Result<bool> {
        let mut bytes = [0; HEADER_BYTES + TAG_BYTES];
        let expected = if key.is_some() { bytes.len() } else { HEADER_BYTES };
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(socket, &mut bytes[..expected], flags) {
            Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((n, _)) if n == expected => {}
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        let (Some(mut header), Some(&tag)) = (bytes.first_chunk().copied(), bytes.last_chunk())
        else {
            return Ok(false);
        };
        if let Some(key) = key {
            key.peek(&mut header, tag)?;
        }
        Ok(fields(&header)[0] == END)
    }

    /// True if this may still be the end of the group.
    pub(super) fn may_be_end(&self) -> bool {
        !self.has_begun() || self.is_end()
    }

    /// The end of the group, if this message is one and complete.
    pub(super) fn end(&self) -> Option<Error> {
        let [op, _, _, _, by, len] = fields(&self.header);
        let is_whole = len as usize > MAX_REASON_BYTES || self.part == parts(len as usize);
        (self.has_begun() && op == END && is_whole).then(|| {
            let reason = String::from_utf8_lossy(&self.reason).into_owned();
            Error::Aborted { by: Rank(by as u32), reason }
        })
    }

    /// Once the header was received: whether the other rank makes the same call.
    pub(super) fn check(
        &self,
        own: Rank,
        other: Rank,
        call: &Call,
        round: u64,
    ) -> Result<(), Error> {
        if !self.has_begun() {
            return Ok(());
        }
        if self.is_end() {
            return self.end().map_or(Ok(()), Err);
        }
        check_header(&self.header, own, other, call, round, &self.target).map(drop)
    }
}
