//! Tokens in memory or in a file, and a text that was cut into them.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::read;
use crate::sources::text::token_cache::{CHECKSUM, Cacheable};
use crate::sources::text::token_file::TokenFile;

/// A row of tokens.
#[derive(Clone, Debug)]
pub(super) enum TokenBuffer {
    /// A part of what is in memory.
    Memory(Arc<[u32]>, Range<usize>),
    /// A part of a file.
    File(Arc<TokenFile>, Range<usize>),
}

impl TokenBuffer {
    /// Holds `tokens` in memory.
    pub(super) fn memory(tokens: Vec<u32>) -> Self {
        let all = 0..tokens.len();
        Self::Memory(tokens.into(), all)
    }

    /// Refers to all tokens of `file`.
    pub(super) fn file(file: TokenFile) -> Self {
        let all = 0..file.len();
        Self::File(Arc::new(file), all)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Memory(_, range) | Self::File(_, range) => range.len(),
        }
    }

    /// A part of it, from 0.
    pub(super) fn part(&self, part: Range<usize>) -> Self {
        let within = |range: &Range<usize>| range.start + part.start..range.start + part.end;
        match self {
            Self::Memory(tokens, range) => Self::Memory(tokens.clone(), within(range)),
            Self::File(file, range) => Self::File(file.clone(), within(range)),
        }
    }

    /// `n` tokens from `start` on.
    pub(super) fn read(&self, start: usize, n: usize) -> io::Result<Vec<u32>> {
        match self {
            Self::Memory(tokens, range) => {
                let start = range.start + start;
                Ok(tokens[start..start + n].to_vec())
            }
            Self::File(file, range) => file.read(range.start + start, n),
        }
    }

    /// Appends them to `bytes`, 32 bits each, little-endian; `None` if they are in a file.
    pub(super) fn append_to(&self, bytes: &mut Vec<u8>) -> Option<()> {
        let Self::Memory(tokens, range) = self else { return None };
        let tokens = &tokens[range.clone()];
        bytes.reserve_exact(4 * tokens.len() + CHECKSUM);
        for token in tokens {
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        Some(())
    }
}

/// Magic bytes of a cached file.
const FORMAT: &[u8; 16] = b"ddprun tokens 1\n";
/// Bytes before the tokens: the format, and the number of training tokens.
const HEADER_BYTES: usize = FORMAT.len() + 8;

/// The tokens of a text.
#[derive(Clone, Debug)]
pub(super) struct CutText {
    pub(super) tokens: TokenBuffer,
    /// Number of tokens of the training part.
    pub(super) n_train: usize,
}

impl CutText {
    /// The tokens of the part to train on, and of the rest.
    pub(super) fn of([mut train, rest]: [Vec<u32>; 2]) -> Self {
        let n_train = train.len();
        train.extend(rest);
        Self { tokens: TokenBuffer::memory(train), n_train }
    }
}

/// Format, number of training tokens, all tokens in 32 bits each; numbers little-endian.
impl Cacheable for CutText {
    fn open(path: &Path) -> Option<Self> {
        let file = read::open(path).ok()?;
        let bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let n_train = header.strip_prefix(FORMAT)?.try_into().ok().map(u64::from_le_bytes)?;
        let body = bytes.checked_sub(HEADER_BYTES + CHECKSUM).filter(|body| body % 4 == 0)?;
        let n_train = usize::try_from(n_train).ok().filter(|&n_train| n_train <= body / 4)?;
        let file = TokenFile::at(file, HEADER_BYTES as u64, body / 4);
        Some(Self { tokens: TokenBuffer::file(file), n_train })
    }

    fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = FORMAT.to_vec();
        bytes.extend_from_slice(&(self.n_train as u64).to_le_bytes());
        self.tokens.append_to(&mut bytes)?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_text_is_read_again_and_a_damaged_one_does_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        let whole = CutText::of([vec![1, 2, 3], vec![70_000, 5]]);
        let bytes = [whole.encode().unwrap(), vec![0; CHECKSUM]].concat();
        let opened = |bytes: &[u8]| {
            crate::files::write_atomic(&path, bytes).unwrap();
            let kept = CutText::open(&path)?;
            let read = kept.tokens.read(0, kept.tokens.len()).unwrap();
            Some((kept.n_train, read))
        };
        assert_eq!(opened(&bytes), Some((3, vec![1, 2, 3, 70_000, 5])));
        let part = whole.tokens.part(1..4);
        assert_eq!((part.len(), part.read(1, 2).unwrap()), (3, vec![3, 70_000]));
        // Ranks look at the header only, and must not be brought down by what they find.
        (0..bytes.len()).for_each(|length| drop(opened(&bytes[..length])));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            drop(opened(&flipped));
        }
    }
}
