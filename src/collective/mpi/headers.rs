//! What ranks tell each other before data move: which call each makes; or, in place of it, that the
//! group has ended.

use std::ffi::c_int;

use crate::collective::{Call, Error, Op};
use crate::units::{Bytes, Rank};

/// Tag of a header.
pub(super) const HEADER_TAG: c_int = 1;
/// Tag of the message that ends the group.
pub(super) const END_TAG: c_int = 2;
/// Bytes of a header: five numbers.
pub(super) const HEADER_BYTES: usize = 5 * 8;
/// Bytes of the message that ends the group: the rank that did, and its reason.
pub(super) const END_BYTES: usize = 1024;

/// The header of a call; `length` is that of this rank's data, where lengths may differ.
pub(super) fn header(call: &Call, length: usize) -> Vec<u8> {
    let numbers = [call.seq, call.op.code(), call.bytes.0, call.tag, length as u64];
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The call of another rank, and the length of its data.
pub(super) fn read_header(bytes: &[u8]) -> Option<(Call, usize)> {
    let number = |at: usize| {
        bytes
            .get(8 * at..8 * at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_le_bytes)
    };
    let call = Call {
        seq: number(0)?,
        op: Op::of_code(number(1)?)?,
        bytes: Bytes(number(2)?),
        tag: number(3)?,
    };
    Some((call, number(4)? as usize))
}

/// The message of a rank that ends the group.
pub(super) fn end(by: Rank, reason: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = by.0.to_le_bytes().into_iter().chain(reason.bytes()).collect();
    bytes.resize(END_BYTES, 0);
    bytes
}

/// Why a rank has ended the group.
pub(super) fn read_end(bytes: &[u8]) -> Error {
    let (by, reason) = bytes.split_at_checked(4).unwrap_or_default();
    let by = Rank(by.try_into().map_or(0, u32::from_le_bytes));
    let reason = String::from_utf8_lossy(reason).trim_end_matches('\0').to_owned();
    Error::Aborted { by, reason }
}

/// Whether another rank makes the same call.
pub(super) fn compare(own: (Rank, &Call), other: (Rank, Call)) -> Result<(), Error> {
    if *own.1 == other.1 {
        return Ok(());
    }
    let mut both = [(own.0, *own.1), other];
    both.sort_by_key(|(rank, _)| *rank);
    let [first, second] = both;
    Err(Error::Mismatch { first, second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read() {
        let call = Call { seq: 7, op: Op::AllGather, bytes: Bytes(12), tag: 3 };
        assert_eq!(read_header(&header(&call, 99)), Some((call, 99)));
        assert_eq!(read_header(&[0; HEADER_BYTES]), None, "no operation has this number");
        assert_eq!(read_header(&[1; 3]), None);
        let told = read_end(&end(Rank(3), "the disk is full"));
        assert_eq!(told.to_string(), "rank 3 ended the group: the disk is full");
        assert_eq!(end(Rank(0), &"x".repeat(5000)).len(), END_BYTES);
    }

    #[test]
    fn another_call_is_named_with_the_lower_rank_first() {
        let call = |seq| Call { seq, op: Op::Barrier, bytes: Bytes(0), tag: 0 };
        assert!(compare((Rank(1), &call(4)), (Rank(0), call(4))).is_ok());
        let error = compare((Rank(1), &call(4)), (Rank(0), call(5))).unwrap_err().to_string();
        assert_eq!(error, "rank 0 is in `barrier` (call 5), but rank 1 is in `barrier` (call 4)");
    }
}
