//! Calls of the collectives, as ranks compare them before data moves.

use std::fmt;

use crate::units::Bytes;

/// Operation of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `Collective::segments`: lengths are compared.
    Segments,
    /// `Collective::all_reduce`
    AllReduce,
    /// `Collective::reduce_scatter`
    ReduceScatter,
    /// `Collective::broadcast`
    Broadcast,
    /// `Collective::all_gather`
    AllGather,
    /// `Collective::barrier`
    Barrier,
    /// A sum by a library on devices; named in errors, never compared.
    SumOnDevices,
}

impl Op {
    const ALL: [Self; 6] = [
        Self::Segments,
        Self::AllReduce,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::AllGather,
        Self::Barrier,
    ];

    /// The operation's number in headers.
    pub(super) fn code(self) -> u64 {
        self as u64 + 1
    }

    pub(super) fn of_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.code() == code)
    }
}

/// One call of a rank: what is compared between ranks before data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Position in the sequence of the group's calls, from 1.
    pub seq: u64,
    pub op: Op,
    /// Length of the data; 0 where lengths may differ.
    pub bytes: Bytes,
    /// Segment of an `all_reduce` or `reduce_scatter`; hash of all lengths for `segments`; else 0.
    pub tag: u64,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segments => "segments",
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::Barrier => "barrier",
            Self::SumOnDevices => "sum on devices",
        })
    }
}

impl fmt::Display for Call {
    /// `` `all_reduce` (call 414, 25.00 MiB, bucket 3) ``
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (call {}", self.op, self.seq)?;
        if self.bytes.0 > 0 {
            write!(f, ", {}", self.bytes)?;
        }
        if matches!(self.op, Op::AllReduce | Op::ReduceScatter) {
            write!(f, ", bucket {}", self.tag)?;
        }
        f.write_str(")")
    }
}

/// A hash of the lengths of segments, by which ranks compare them.
pub(super) fn lengths_tag(lengths: &[usize]) -> u64 {
    let bytes: Vec<u8> = lengths.iter().flat_map(|&n| (n as u64).to_le_bytes()).collect();
    let hash = blake3::hash(&bytes);
    hash.as_bytes()[..8].iter().fold(0, |tag, &byte| tag << 8 | u64::from(byte))
}
