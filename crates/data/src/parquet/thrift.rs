//! Thrift's compact protocol, in which parquet files describe themselves.

/// Deepest nesting of what is passed over.
const MAX_DEPTH: usize = 32;
/// Kinds of values.
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
pub(super) const I32: u8 = 5;
pub(super) const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;

/// Unread bytes.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn pass(&mut self, n: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(n).ok()?..)?;
        Some(())
    }

    /// Seven bits a byte, the lowest first.
    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// 0, -1, 1, -2 ... as 0, 1, 2, 3 ...
    pub(super) fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Number and kind of the values of a list.
    pub(super) fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let n = if head >> 4 == 15 { self.unsigned()? } else { u64::from(head >> 4) };
        Some((n, head & 15))
    }

    /// Calls `field` at the value of each field of a struct, with its number and kind.
    pub(super) fn fields(
        &mut self,
        field: &mut dyn FnMut(&mut Self, i64, u8) -> Option<()>,
    ) -> Option<()> {
        let mut id = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            id = match head >> 4 {
                0 => self.signed()?,
                further => id.checked_add(i64::from(further))?,
            };
            field(self, id, head & 15)?;
        }
    }

    /// Passes over a value of a field.
    pub(super) fn skip(&mut self, kind: u8) -> Option<()> {
        self.skip_within(kind, MAX_DEPTH)
    }

    fn skip_within(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // The kind of a truth is its value.
            TRUE | FALSE => Some(()),
            3 => self.pass(1),
            4..=6 => self.unsigned().map(drop),
            7 => self.pass(8),
            8 => self.unsigned().and_then(|length| self.pass(length)),
            LIST | 10 => {
                let (n, kind) = self.list()?;
                // The library passes over as many truths as a list claims, of which no file has
                // one.
                if n > 0 && kind <= FALSE {
                    return None;
                }
                (0..n).try_for_each(|_| self.skip_within(kind, depth))
            }
            STRUCT => self.fields(&mut |input, _, kind| input.skip_within(kind, depth)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_claims_more_than_there_is_or_nests_too_deeply_is_not_passed_over() {
        // A list of 2^31 truths, one of as many numbers, a text of 2^31 bytes, structs in structs.
        let many = b"\x80\x80\x80\x80\x08";
        let lists = [&b"\xf1"[..], b"\xf5"].map(|head| (LIST, [head, many].concat()));
        let others = [(8, many.to_vec()), (STRUCT, [vec![0x1c; 100], vec![0; 101]].concat())];
        for (kind, bytes) in lists.into_iter().chain(others) {
            assert_eq!(Input(&bytes).skip(kind), None, "{bytes:x?}");
        }
        assert_eq!(Input(b"\x25\x02\x04").skip(LIST), Some(()));
    }
}
