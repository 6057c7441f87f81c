//! Header of a page: the format's `PageHeader`. The library's reader goes on for as long as a
//! damaged one claims, beyond the end of the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use parquet::basic::Encoding;

use crate::parquet::thrift::{FALSE, I32, Input, STRUCT, TRUE};

/// Bytes in which it is looked for: nearly all have less than the first, some have long texts among
/// their statistics.
const LENGTHS: [u64; 2] = [1 << 9, 1 << 16];
/// Fields of `PageHeader`.
const TYPE: usize = 1;
const COMPRESSED_SIZE: usize = 3;
const DATA: usize = 5;
const DICTIONARY: usize = 7;
const DATA_V2: usize = 8;

/// Names of the encodings by their numbers; 1 was never used.
const ENCODINGS: [&str; 10] = [
    "PLAIN",
    "",
    "PLAIN_DICTIONARY",
    "RLE",
    "BIT_PACKED",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY",
    "BYTE_STREAM_SPLIT",
];

/// The numbers of a struct by their fields; a truth is 0 or 1.
type Numbers = [Option<i64>; 9];

/// Header of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Header {
    /// Bytes of the header itself.
    pub(super) length: u64,
    /// The bytes of the page behind it.
    pub(super) size: u64,
    pub(super) kind: Kind,
}

/// Kinds of pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Levels and numbers, packed together.
    Data { values: u32, encoding: Encoding, definitions: Encoding, repetitions: Encoding },
    /// Levels, and numbers that may be packed.
    DataV2 {
        values: u32,
        nulls: u32,
        rows: u32,
        encoding: Encoding,
        definition_bytes: u32,
        repetition_bytes: u32,
        is_packed: bool,
    },
    /// Numbers that others refer to.
    Dictionary { values: u32, encoding: Encoding, is_sorted: bool },
    /// Nothing that is needed.
    Index,
}

impl Kind {
    /// Numbers that the page claims to hold.
    pub(super) fn values(self) -> u32 {
        match self {
            Self::Data { values, .. }
            | Self::DataV2 { values, .. }
            | Self::Dictionary { values, .. } => values,
            Self::Index => 0,
        }
    }
}

impl Header {
    /// The header at the beginning of `place`, where it and its page must fit; `None` where there
    /// is none.
    pub(super) fn read(file: &File, place: Range<u64>) -> io::Result<Option<Self>> {
        let left = place.end - place.start;
        for length in LENGTHS {
            let mut bytes = vec![0; length.min(left) as usize];
            file.read_exact_at(&mut bytes, place.start)?;
            if let Some(header) = Self::parse(&bytes) {
                return Ok((header.size <= left - header.length).then_some(header));
            }
        }
        Ok(None)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let mut parts: [Numbers; 9] = Default::default();
        let own = numbers(&mut input, &mut |input, id, kind| match (id, kind) {
            (DATA | DICTIONARY | DATA_V2, STRUCT) => {
                parts[id] = numbers(input, &mut |input, _, kind| input.skip(kind))?;
                Some(())
            }
            _ => input.skip(kind),
        })?;
        let kind = match own[TYPE]? {
            0 => data(&parts[DATA])?,
            1 => Kind::Index,
            2 => dictionary(&parts[DICTIONARY])?,
            3 => data_v2(&parts[DATA_V2])?,
            _ => return None,
        };
        let length = (bytes.len() - input.0.len()) as u64;
        Some(Self { length, size: own[COMPRESSED_SIZE]?.try_into().ok()?, kind })
    }
}

/// The numbers of a struct; `other` passes over the rest.
fn numbers(
    input: &mut Input<'_>,
    other: &mut dyn FnMut(&mut Input<'_>, usize, u8) -> Option<()>,
) -> Option<Numbers> {
    let mut numbers = Numbers::default();
    input.fields(&mut |input, id, kind| {
        let id = usize::try_from(id).ok()?;
        let number = match kind {
            TRUE | FALSE => i64::from(kind == TRUE),
            I32 => input.signed()?,
            _ => return other(input, id, kind),
        };
        if let Some(place) = numbers.get_mut(id) {
            *place = Some(number);
        }
        Some(())
    })?;
    Some(numbers)
}

fn data(of: &Numbers) -> Option<Kind> {
    Some(Kind::Data {
        values: count(of[1])?,
        encoding: encoding(of[2])?,
        definitions: encoding(of[3])?,
        repetitions: encoding(of[4])?,
    })
}

fn dictionary(of: &Numbers) -> Option<Kind> {
    let is_sorted = of[3] == Some(1);
    Some(Kind::Dictionary { values: count(of[1])?, encoding: encoding(of[2])?, is_sorted })
}

fn data_v2(of: &Numbers) -> Option<Kind> {
    Some(Kind::DataV2 {
        values: count(of[1])?,
        nulls: count(of[2])?,
        rows: count(of[3])?,
        encoding: encoding(of[4])?,
        definition_bytes: count(of[5])?,
        repetition_bytes: count(of[6])?,
        is_packed: of[7] != Some(0),
    })
}

fn count(number: Option<i64>) -> Option<u32> {
    u32::try_from(number?).ok()
}

/// `Encoding` of the format, by its number.
fn encoding(number: Option<i64>) -> Option<Encoding> {
    ENCODINGS.get(usize::try_from(number?).ok()?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1: type 0; 2, 3: 20 and 10 bytes; 5: {1: 4 values, 2: encoding 0, 3, 4: encoding 3, 5: {5:
    /// "max"}}.
    const PAGE: &[u8] =
        b"\x15\x00\x15\x28\x15\x14\x2c\x15\x08\x15\x00\x15\x06\x15\x06\x1c\x58\x03max\x00\x00\x00";

    #[test]
    fn a_header_is_told_from_a_part_of_one() {
        let kind = Kind::Data {
            values: 4,
            encoding: Encoding::PLAIN,
            definitions: Encoding::RLE,
            repetitions: Encoding::RLE,
        };
        let header = Header { length: PAGE.len() as u64, size: 10, kind };
        assert_eq!(Header::parse(&[PAGE, b"page"].concat()), Some(header));
        for length in 0..PAGE.len() {
            assert_eq!(Header::parse(&PAGE[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_page_that_does_not_fit_has_no_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        crate::files::write_atomic(&path, &[PAGE, &[0; 10]].concat()).unwrap();
        let file = File::open(&path).unwrap();
        let all = PAGE.len() as u64 + 10;
        assert!(Header::read(&file, 0..all).unwrap().is_some());
        assert_eq!(Header::read(&file, 0..all - 1).unwrap(), None);
        let error = Header::read(&file, 0..all + 1).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
    }
}
