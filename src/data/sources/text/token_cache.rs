//! Tokens of large texts, kept from one start to the next: cutting a gigabyte takes minutes, and
//! every rank of every start would do it again.
//!
//! The files are `tokens/<hash>` beside the listings (`listing_cache.rs`), named by a hash of what
//! the text and the tokenizer's file hold, so that a change of either is seen; complete or absent;
//! and may be removed at any time.

use std::fs;
use std::path::PathBuf;

use crate::data::error::Error;
use crate::data::listing::cache::user_folder;
use crate::files;

/// What a kept file begins with: another one is not read.
const FORMAT: &[u8; 16] = b"ddprun tokens 1\n";
/// Shorter texts are cut in a moment.
const MIN_BYTES: usize = 1 << 20;
/// Bytes of the checksum at the end.
const CHECKSUM: usize = blake3::OUT_LEN;

/// The tokens of the training and the validation part.
pub(crate) type Parts = [Vec<u32>; 2];

/// Where tokens are kept, and of which texts.
#[derive(Clone, Debug)]
pub(crate) struct TokenCache {
    folder: PathBuf,
    least_bytes: usize,
}

impl TokenCache {
    /// The user's; `None` where it is switched off or there is no place for it.
    pub(crate) fn of_user() -> Option<Self> {
        Some(Self { folder: user_folder()?.join("tokens"), least_bytes: MIN_BYTES })
    }

    /// Where the tokens of `text` are kept. A newer program may cut otherwise.
    fn file(&self, text: &str, tokenizer: &[u8]) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        for part in [env!("CARGO_PKG_VERSION").as_bytes(), tokenizer, text.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        self.folder.join(&hasher.finalize().to_hex().as_str()[..32])
    }
}

/// The tokens of `text` by what `tokenizer`, a file, holds: kept ones, or what `cut` gives, which
/// is kept then.
///
/// # Errors
///
/// Those of `cut`.
pub(crate) fn tokens(
    cache: Option<&TokenCache>,
    text: &str,
    tokenizer: &[u8],
    cut: impl FnOnce() -> Result<Parts, Error>,
) -> Result<Parts, Error> {
    let Some(cache) = cache.filter(|cache| text.len() >= cache.least_bytes) else { return cut() };
    let file = cache.file(text, tokenizer);
    if let Some(kept) = fs::read(&file).ok().and_then(|bytes| decode(&bytes)) {
        return Ok(kept);
    }
    let parts = cut()?;
    // Tokens that cannot be kept are cut anew the next time.
    let _ = files::create_folder(&cache.folder)
        .and_then(|()| files::write_atomic(&file, &encode(&parts)));
    Ok(parts)
}

/// Format, number of training tokens, all tokens in 32 bits each, checksum; numbers little-endian.
fn encode(parts: &Parts) -> Vec<u8> {
    let n: usize = parts.iter().map(Vec::len).sum();
    let mut bytes = Vec::with_capacity(FORMAT.len() + 8 + 4 * n + CHECKSUM);
    bytes.extend_from_slice(FORMAT);
    bytes.extend_from_slice(&(parts[0].len() as u64).to_le_bytes());
    parts.iter().flatten().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    bytes
}

/// The tokens in `bytes`, if they are whole.
fn decode(bytes: &[u8]) -> Option<Parts> {
    let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    if blake3::hash(body).as_bytes()[..] != *checksum {
        return None;
    }
    let (n_train, tokens) = body.strip_prefix(FORMAT)?.split_first_chunk::<8>()?;
    let (tokens, rest) = tokens.as_chunks::<4>();
    let n_train = usize::try_from(u64::from_le_bytes(*n_train)).ok()?;
    let (train, val) = tokens.split_at_checked(n_train).filter(|_| rest.is_empty())?;
    Some([train, val].map(|part| part.iter().map(|token| u32::from_le_bytes(*token)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(folder: &std::path::Path) -> TokenCache {
        TokenCache { folder: folder.join("tokens"), least_bytes: 4 }
    }

    /// The tokens, and whether they were cut.
    fn asked(cache: &TokenCache, text: &str, tokenizer: &[u8]) -> (Parts, bool) {
        let mut was_cut = false;
        let cut = || {
            was_cut = true;
            Ok([text.bytes().map(u32::from).collect(), vec![1 << 20, tokenizer.len() as u32]])
        };
        let parts = tokens(Some(cache), text, tokenizer, cut).unwrap();
        (parts, was_cut)
    }

    #[test]
    fn a_text_is_cut_once_for_each_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let (parts, was_cut) = asked(&cache, "the cat", b"{}");
        assert!(was_cut);
        assert_eq!(asked(&cache, "the cat", b"{}"), (parts, false));
        assert!(asked(&cache, "the cat", b"{ }").1, "another tokenizer");
        assert!(asked(&cache, "the rat", b"{}").1, "another text");
        assert!(asked(&cache, "the", b"{}").1 && asked(&cache, "the", b"{}").1, "a short text");
        let nothing: Parts = [vec![], vec![]];
        assert_eq!(decode(&encode(&nothing)), Some(nothing));
    }

    #[test]
    fn a_damaged_file_is_replaced_and_an_absent_folder_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let (parts, _) = asked(&cache, "the cat", b"{}");
        let file = cache.file("the cat", b"{}");
        let whole = fs::read(&file).unwrap();
        for length in 0..whole.len() {
            assert_eq!(decode(&whole[..length]), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert_eq!(decode(&flipped), None, "byte {at}");
        }
        files::write_atomic(&file, &whole[..30]).unwrap();
        assert_eq!(asked(&cache, "the cat", b"{}"), (parts.clone(), true));
        assert_eq!(fs::read(&file).unwrap(), whole);
        let nowhere = TokenCache { folder: file.join("below"), ..cache };
        assert_eq!(asked(&nowhere, "the cat", b"{}"), (parts, true));
    }
}
