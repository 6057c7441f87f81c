//! The end of a parquet file, looked at before the library trusts it: it allocates what a schema
//! claims, and descends as deep as one is nested.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use crate::parquet::thrift::{Input, LIST, STRUCT};

/// Longest footer that is read: 64 MiB.
const MAX_FOOTER_BYTES: u64 = 1 << 26;
/// Deepest nesting of the schema; a list of lists of numbers takes five.
const MAX_DEPTH: usize = 32;
/// Length of the footer (4 bytes) and the word that ends a file.
const TAIL: u64 = 8;
/// Fields of Thrift's `FileMetaData` and `SchemaElement`.
const SCHEMA: i64 = 2;
const NUM_CHILDREN: i64 = 5;

/// Checks the nesting of the schema of `file`.
pub(super) fn check(file: &mut File) -> Result<(), String> {
    let bytes = read(file).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or("its footer is missing or damaged")?;
    let children = children(&bytes).ok_or("the description of its columns is damaged")?;
    if nests(&children) { Ok(()) } else { Err("it has unsupported nested columns".to_owned()) }
}

/// The footer's bytes; `None` where the file has no such end.
fn read(file: &mut File) -> std::io::Result<Option<Vec<u8>>> {
    let length = file.metadata()?.len();
    let Some(before) = length.checked_sub(TAIL) else { return Ok(None) };
    let mut tail = [0; TAIL as usize];
    file.seek(SeekFrom::Start(before))?;
    file.read_exact(&mut tail)?;
    let [a, b, c, d, word @ ..] = tail;
    let claimed = u64::from(u32::from_le_bytes([a, b, c, d]));
    if &word != b"PAR1" || claimed > MAX_FOOTER_BYTES || claimed > before {
        return Ok(None);
    }
    let mut bytes = vec![0; claimed as usize];
    file.seek(SeekFrom::Start(before - claimed))?;
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

/// `num_children` of each element of the schema, in their order; 0 where there is none.
fn children(footer: &[u8]) -> Option<Vec<i64>> {
    let mut input = Input(footer);
    let mut found = Vec::new();
    input.fields(&mut |input, id, kind| {
        if (id, kind) != (SCHEMA, LIST) {
            return input.skip(kind);
        }
        let (n, STRUCT) = input.list()? else { return None };
        for _ in 0..n {
            let mut children = 0;
            input.fields(&mut |input, id, kind| {
                if id != NUM_CHILDREN {
                    return input.skip(kind);
                }
                children = input.signed()?;
                Some(())
            })?;
            found.push(children);
        }
        Some(())
    })?;
    Some(found)
}

/// True if elements with these numbers of children, each before its children, are one tree that is
/// not too deep.
fn nests(children: &[i64]) -> bool {
    // How many elements are still to come below each element above.
    let mut open = vec![1i64];
    for &n in children {
        while open.last() == Some(&0) {
            open.pop();
        }
        let Some(left) = open.last_mut() else { return false };
        *left -= 1;
        if n < 0 || n > children.len() as i64 || open.len() > MAX_DEPTH {
            return false;
        }
        open.push(n);
    }
    open.iter().all(|&left| left == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_make_one_tree_of_limited_depth() {
        assert!(nests(&[2, 0, 1, 1, 0]) && nests(&[1, 0]));
        for wrong in [&[][..], &[2, 0], &[0, 0], &[1, 0, 0], &[-1, 0], &[1 << 40, 0]] {
            assert!(!nests(wrong), "{wrong:?}");
        }
        let chain = |n: usize| [vec![1; n - 1], vec![0]].concat();
        assert!(nests(&chain(MAX_DEPTH)) && !nests(&chain(MAX_DEPTH + 1)));
    }

    #[test]
    fn children_are_found_among_other_fields() {
        // 1: i32 2; 2: list of 2 structs: {4: "r", 5: i32 1} and {1: i32 5, 4: "x"}; 6: "me".
        let footer = b"\x15\x04\x19\x2c\x48\x01r\x15\x02\0\x15\x0a\x38\x01x\0\x48\x02me\0";
        assert_eq!(children(footer), Some(vec![1, 0]));
        for length in 0..footer.len() {
            assert_eq!(children(&footer[..length]), None, "{length}");
        }
        let deep = [vec![0x1c; 100], vec![0; 101]].concat();
        assert_eq!(children(&deep), None);
    }
}
