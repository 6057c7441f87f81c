//! Texts of unequal lengths as tokens, of which some count.
//!
//! They are cut once, by all threads; those of large files are kept, and read by all ranks where
//! they lie (`token_cache.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::read;
use crate::sources::text::token_buffer::TokenBuffer;
use crate::sources::text::token_cache::{CHECKSUM, Cacheable};
use crate::sources::text::token_file::TokenFile;

/// Magic bytes of a cached file.
const FORMAT: &[u8; 16] = b"ddprun entries 2";
/// Bytes before the unused keys: the format, how many entries there are, and the bytes of the keys.
const HEADER_BYTES: usize = FORMAT.len() + 16;
/// Bytes of an entry before the tokens: where its tokens end, and its line.
const ENTRY_BYTES: usize = 16;
/// Bits of a place that are the line in its file; those above are the number of the file.
const LINE_BITS: u32 = 40;
/// The bit of a token that counts. Vocabularies are smaller.
const COUNTS: u32 = 1 << 31;

/// A token, and whether it counts.
pub(super) type Counted = (u32, bool);

/// An entry in tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CutEntry {
    pub(super) tokens: Vec<Counted>,
    /// Keys of it that have no effect.
    pub(super) unused: BTreeSet<String>,
}

/// All entries of one file or several.
#[derive(Debug)]
pub(super) struct Entries {
    /// Tokens of one entry after the other, with [`COUNTS`].
    tokens: TokenBuffer,
    /// End of each entry's tokens, and its place.
    ends: Vec<(u64, u64)>,
    /// Errors of entries without tokens.
    wrong: BTreeMap<usize, String>,
    /// "line", or "entry" of a list.
    unit: &'static str,
    /// Keys of some entry that have no effect.
    unused: BTreeSet<String>,
}

impl Entries {
    /// The place of an entry: the number of its file, and its line or position there.
    pub(super) fn place(file: u64, line: u64) -> u64 {
        file << LINE_BITS | line
    }

    /// Entries in their order, each with its place, whose line is called `unit`, and its tokens or
    /// what is wrong with it.
    pub(super) fn new(all: Vec<(u64, Result<CutEntry, String>)>, unit: &'static str) -> Self {
        let mut tokens = Vec::new();
        let mut ends = Vec::with_capacity(all.len());
        let mut wrong = BTreeMap::new();
        let mut unused = BTreeSet::new();
        for (index, (place, found)) in all.into_iter().enumerate() {
            match found {
                Ok(entry) => {
                    tokens.extend(entry.tokens.into_iter().map(with_bit));
                    unused.extend(entry.unused);
                }
                Err(why) => drop(wrong.insert(index, why)),
            }
            ends.push((tokens.len() as u64, place));
        }
        Self { tokens: TokenBuffer::memory(tokens), ends, wrong, unit, unused }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The line or position of an entry in its file.
    pub(super) fn line(&self, index: usize) -> u64 {
        self.ends[index].1 & ((1 << LINE_BITS) - 1)
    }

    /// The number of the file that an entry is in.
    pub(super) fn file(&self, index: usize) -> usize {
        (self.ends[index].1 >> LINE_BITS) as usize
    }

    /// What is wrong with an entry, if something is.
    pub(super) fn wrong(&self, index: usize) -> Option<&str> {
        self.wrong.get(&index).map(String::as_str)
    }

    /// The first entry that cannot be used, why, and how many there are.
    pub(super) fn first_wrong(&self) -> Option<(usize, &str, usize)> {
        let (&index, why) = self.wrong.first_key_value()?;
        Some((index, why, self.wrong.len()))
    }

    /// "line", or "entry" of a list.
    pub(super) fn unit(&self) -> &'static str {
        self.unit
    }

    /// Keys of some entry that have no effect.
    pub(super) fn unused(&self) -> &BTreeSet<String> {
        &self.unused
    }

    /// Bytes that each rank holds in memory.
    pub(super) fn held(&self) -> u64 {
        let tokens = match &self.tokens {
            TokenBuffer::Memory(..) => 4 * self.tokens.len(),
            TokenBuffer::File(..) => 0,
        };
        (tokens + ENTRY_BYTES * self.ends.len()) as u64
    }

    /// Number of tokens of an entry.
    pub(super) fn n_tokens(&self, index: usize) -> usize {
        (self.ends[index].0 - self.start(index)) as usize
    }

    fn start(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(0, |before| self.ends[before].0)
    }

    /// At most so many tokens of an entry, from its first on.
    pub(super) fn read(&self, index: usize, most: usize) -> std::io::Result<Vec<Counted>> {
        let n = self.n_tokens(index).min(most);
        let tokens = self.tokens.read(self.start(index) as usize, n)?;
        Ok(tokens.into_iter().map(without_bit).collect())
    }

    /// Numbers of tokens of the entries that can be used.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        let used = (0..self.len()).filter(|&index| self.wrong(index).is_none());
        used.map(|index| self.n_tokens(index))
    }

    /// "up to 512 tokens (median 97)"
    pub(super) fn length_words(&self, seq_len: usize) -> String {
        let lengths: Vec<usize> = self.lengths().collect();
        let median = if lengths.is_empty() { 0 } else { median(lengths) };
        format!("up to {seq_len} tokens (median {median})")
    }
}

fn with_bit((token, counts): Counted) -> u32 {
    if counts { token | COUNTS } else { token }
}

fn without_bit(stored: u32) -> Counted {
    (stored & !COUNTS, stored & COUNTS != 0)
}

/// Format, number of entries, bytes of the unused keys, these keys in lines, end and place of each
/// entry in 64 bits, all tokens in 32 bits; numbers little-endian.
impl Cacheable for Entries {
    fn open(path: &Path) -> Option<Self> {
        let file = read::open(path).ok()?;
        let bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let (n, n_keys) = header.strip_prefix(FORMAT)?.split_at(8);
        let [n, n_keys] = [n, n_keys].map(|bytes| usize::try_from(number(bytes)).ok());
        let n_keys = n_keys?;
        let body = bytes.checked_sub(HEADER_BYTES + CHECKSUM)?.checked_sub(n_keys)?;
        let of_entries = n?.checked_mul(ENTRY_BYTES)?;
        let n_tokens = body.checked_sub(of_entries).filter(|rest| rest % 4 == 0)? / 4;
        let mut keys = vec![0; n_keys];
        file.read_exact_at(&mut keys, HEADER_BYTES as u64).ok()?;
        let unused = String::from_utf8(keys).ok()?.lines().map(str::to_owned).collect();
        let start = HEADER_BYTES + n_keys;
        let mut stored = vec![0; of_entries];
        file.read_exact_at(&mut stored, start as u64).ok()?;
        let entry = |entry: &[u8]| (number(&entry[..8]), number(&entry[8..]));
        let ends: Vec<(u64, u64)> = stored.chunks_exact(ENTRY_BYTES).map(entry).collect();
        let ascends = ends.is_sorted_by_key(|(end, _)| *end);
        let last = ends.last().map_or(0, |(end, _)| *end);
        if !ascends || last != n_tokens as u64 {
            return None;
        }
        let tokens = TokenFile::at(file, (start + of_entries) as u64, n_tokens);
        let (tokens, wrong) = (TokenBuffer::file(tokens), BTreeMap::new());
        Some(Self { tokens, ends, wrong, unit: "line", unused })
    }

    fn encode(&self) -> Option<Vec<u8>> {
        if !self.wrong.is_empty() {
            return None;
        }
        let mut bytes = FORMAT.to_vec();
        // A key with a line end is not worth a form of its own.
        let keys: String = self.unused.iter().map(|key| key.replace('\n', " ") + "\n").collect();
        for n in [self.ends.len(), keys.len()] {
            bytes.extend_from_slice(&(n as u64).to_le_bytes());
        }
        bytes.extend_from_slice(keys.as_bytes());
        for (end, line) in &self.ends {
            bytes.extend_from_slice(&end.to_le_bytes());
            bytes.extend_from_slice(&line.to_le_bytes());
        }
        self.tokens.append_to(&mut bytes)?;
        Some(bytes)
    }
}

/// The median of some numbers, at least one.
pub(super) fn median(mut of: Vec<usize>) -> usize {
    of.sort_unstable();
    of[of.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(place: u64, tokens: &[Counted]) -> (u64, Result<CutEntry, String>) {
        (place, Ok(CutEntry { tokens: tokens.to_vec(), ..CutEntry::default() }))
    }

    fn entries() -> Entries {
        let all = vec![cut(1, &[(7, false), (8, true)]), cut(3, &[]), cut(4, &[(1 << 20, true)])];
        let unused = ["id", "messages.name"].map(str::to_owned).into();
        Entries { unused, ..Entries::new(all, "line") }
    }

    fn read(entries: &Entries) -> Vec<(u64, Vec<Counted>)> {
        (0..entries.len()).map(|i| (entries.line(i), entries.read(i, 9).unwrap())).collect()
    }

    #[test]
    fn kept_entries_are_read_again_and_damaged_ones_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        let bytes = [entries().encode().unwrap(), vec![0; CHECKSUM]].concat();
        let opened = |bytes: &[u8]| {
            crate::files::write_atomic(&path, bytes).unwrap();
            Entries::open(&path).map(|entries| (read(&entries), entries.unused().clone()))
        };
        assert_eq!(opened(&bytes), Some((read(&entries()), entries().unused().clone())));
        (0..bytes.len()).for_each(|length| drop(opened(&bytes[..length])));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                drop(opened(&flipped));
            }
        }
    }
}
