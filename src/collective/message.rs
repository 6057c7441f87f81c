//! A partly sent or received message between two ranks. Sockets are non-blocking.
//!
//! ```text
//! header: operation, round, call, length, tag, payload's length   48 bytes  MAC
//! payload, in pieces of 256 KiB, each                                       MAC
//! ```

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
#[cfg(any(feature = "cuda", test))]
use rustix::net::RecvFlags;
use rustix::net::SendFlags;

use crate::collective::{Call, Error, Op};
use crate::transport::auth::{MAC_BYTES, MessageAuth};
use crate::units::{Bytes, Rank};

/// Bytes of a header.
const HEADER_BYTES: usize = 48;
/// Payload under one MAC: a change in transit is noticed before more is read.
const PIECE_BYTES: usize = 256 << 10;
/// Operation of a message that ends the group.
const END: u64 = 0xE0D;
/// Longest reason for an end that is sent.
const MAX_REASON_BYTES: usize = 16 << 10;

/// Where a payload goes.
pub(super) enum Target<'a> {
    /// Its length is known.
    Slice(&'a mut [u8]),
    /// Its sender decides.
    Vec(&'a mut Vec<u8>),
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

/// A message that is being sent.
pub(super) struct Outgoing<'a> {
    header: [u8; HEADER_BYTES],
    payload: &'a [u8],
    /// Number of the present part; 0 is the header.
    part: usize,
    /// Bytes of it, and of its MAC, that are sent.
    sent: usize,
    tag: Option<[u8; MAC_BYTES]>,
}

impl<'a> Outgoing<'a> {
    /// This rank's message in the `round`-th exchange of a call.
    pub(super) fn of_call(call: &Call, round: u64, payload: &'a [u8]) -> Self {
        let Call { seq, op, bytes, tag } = *call;
        Self::new([op.code(), round, seq, bytes.0, tag, payload.len() as u64], payload)
    }

    /// The end of the group.
    pub(super) fn of_end(by: Rank, reason: &'a str) -> Self {
        let reason = &reason.as_bytes()[..reason.floor_char_boundary(MAX_REASON_BYTES)];
        Self::new([END, 0, 0, 0, u64::from(by.0), reason.len() as u64], reason)
    }

    fn new(fields: [u64; 6], payload: &'a [u8]) -> Self {
        Self { header: header(fields), payload, part: 0, sent: 0, tag: None }
    }

    pub(super) fn is_done(&self) -> bool {
        self.part == parts(self.payload.len())
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.part == 0 && self.sent == 0 && self.tag.is_none()
    }

    /// Sends what can be sent now, and returns whether anything was.
    pub(super) fn push(
        &mut self,
        socket: &OwnedFd,
        mut auth: Option<&mut MessageAuth>,
    ) -> io::Result<bool> {
        let mut has_advanced = false;
        while !self.is_done() {
            let part = match self.part {
                0 => &self.header[..],
                part => &self.payload[piece(part, self.payload.len())],
            };
            if self.tag.is_none() {
                self.tag = auth.as_deref_mut().map(|auth| auth.tag(part));
            }
            let tag = self.tag.as_ref().map_or(&[][..], |tag| &tag[..]);
            let (rest, is_last) = match self.sent.checked_sub(part.len()) {
                None => (&part[self.sent..], tag.is_empty()),
                Some(of_tag) => (&tag[of_tag..], true),
            };
            let is_last = is_last && self.part + 1 == parts(self.payload.len());
            let more = if is_last { SendFlags::empty() } else { SendFlags::MORE };
            match rustix::net::send(socket, rest, SendFlags::NOSIGNAL | more) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return Ok(has_advanced),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            has_advanced = true;
            if self.sent == part.len() + tag.len() {
                (self.part, self.sent, self.tag) = (self.part + 1, 0, None);
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
    /// Bytes of it, and of its MAC, that were received.
    received: usize,
    tag: [u8; MAC_BYTES],
}

impl<'a> Incoming<'a> {
    pub(super) fn new(target: Target<'a>) -> Self {
        let (header, reason, tag) = ([0; HEADER_BYTES], Vec::new(), [0; MAC_BYTES]);
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
        mut auth: Option<&mut MessageAuth>,
    ) -> io::Result<bool> {
        let had_begun = self.has_begun();
        let mut has_advanced = false;
        loop {
            if self.has_begun() && (!had_begun || self.part == parts(self.len())) {
                return Ok(has_advanced);
            }
            let tag_len = if auth.is_some() { MAC_BYTES } else { 0 };
            let (received, mut tag) = (self.received, self.tag);
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
                let part = self.present_part();
                if auth.as_deref_mut().is_some_and(|auth| !auth.verify(part, &tag)) {
                    let text = "a message was altered, replayed or inserted in transit";
                    return Err(io::Error::new(ErrorKind::InvalidData, text));
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

    /// Whether the next message of the socket, of which nothing was received yet, is the end of the
    /// group. It is left unread.
    ///
    /// # Errors
    ///
    /// The other end is gone.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn begins_with_end(socket: &OwnedFd) -> io::Result<bool> {
        let mut bytes = [0; HEADER_BYTES];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(socket, &mut bytes, flags) {
            Ok((0, _)) => Err(ErrorKind::UnexpectedEof.into()),
            Ok((n, _)) => Ok(n == HEADER_BYTES && fields(&bytes)[0] == END),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether this may still be the end of the group.
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
        let [op, its_round, seq, bytes, tag, len] = fields(&self.header);
        if op == END {
            return self.end().map_or(Ok(()), Err);
        }
        let op = Op::of_code(op).ok_or_else(|| Error::Connections {
            what: format!("rank {other} sent an unknown operation"),
        })?;
        let theirs = Call { seq, op, bytes: Bytes(bytes), tag };
        if theirs != *call || its_round != round {
            let (mut first, mut second) = ((own, *call), (other, theirs));
            if other < own {
                (first, second) = (second, first);
            }
            return Err(Error::Mismatch { first, second });
        }
        match &self.target {
            Target::Slice(slice) if slice.len() != len as usize => Err(Error::Connections {
                what: format!("rank {other} sends {len} bytes in {call}, not {}", slice.len()),
            }),
            _ => Ok(()),
        }
    }
}
