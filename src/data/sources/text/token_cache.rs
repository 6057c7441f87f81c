//! Tokens of large texts, cut once and read by all ranks where they lie: cutting a gigabyte takes
//! minutes.
//!
//! The files are `tokens/<hash>` beside the listings (`listing/cache.rs`), named by a hash of what
//! the text and the tokenizer's file hold, so that a change of either is seen; complete or absent;
//! and may be removed at any time. An index, `tokens/of-<hash of both paths>`, says which of them
//! belongs to files of these sizes and times, so that not every rank reads the text to hash it. The
//! survey of a start checks the tokens; ranks look at their header only.

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::data::error::Error;
use crate::data::listing::cache::user_folder;
use crate::data::read;
use crate::data::sources::text::token_file::TokenFile;
use crate::files;

/// What a kept file begins with: another one is not read.
const FORMAT: &[u8; 16] = b"ddprun tokens 1\n";
/// Shorter texts are cut in a moment.
const MIN_BYTES: usize = 1 << 20;
/// Bytes before the tokens: the format, and the number of training tokens.
const HEADER_BYTES: usize = FORMAT.len() + 8;
/// Bytes of the checksum at the end.
const CHECKSUM: usize = blake3::OUT_LEN;
/// What an entry of the index begins with.
const INDEX_FORMAT: &str = "ddprun tokens of 1";
/// Age of the last change of a file from which on its times tell every later change.
const SETTLED: Duration = Duration::from_secs(5);

/// The tokens of the training and the validation part.
pub(super) type Parts = [Vec<u32>; 2];

/// Where tokens are kept, and of which texts.
#[derive(Clone, Debug)]
pub(super) struct TokenCache {
    folder: PathBuf,
    least_bytes: usize,
}

impl TokenCache {
    /// The user's; `None` where it is switched off or there is no place for it.
    pub(super) fn of_user() -> Option<Self> {
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

/// Tokens of both parts.
#[derive(Debug)]
pub(super) enum Cut {
    /// In memory.
    Held(Parts),
    /// In a kept file.
    Kept(Kept),
}

/// A kept file.
#[derive(Debug)]
pub(super) struct Kept {
    name: String,
    /// The tokens of both parts.
    pub(super) tokens: TokenFile,
    /// Those of the training part.
    pub(super) n_train: usize,
}

/// The tokens of `text` by what `tokenizer`, a file, holds: kept ones, or what `cut` gives, which
/// is kept then.
///
/// # Errors
///
/// Those of `cut`.
pub(super) fn tokens(
    cache: Option<&TokenCache>,
    text: &str,
    tokenizer: &[u8],
    cut: impl FnOnce() -> Result<Parts, Error>,
) -> Result<Cut, Error> {
    let Some(cache) = cache.filter(|cache| text.len() >= cache.least_bytes) else {
        return Ok(Cut::Held(cut()?));
    };
    let file = cache.file(text, tokenizer);
    if is_whole(&file)
        && let Some(kept) = Kept::open(&file)
    {
        return Ok(Cut::Kept(kept));
    }
    let parts = cut()?;
    // Tokens that cannot be kept are cut anew the next time.
    let kept = files::create_folder(&cache.folder)
        .and_then(|()| files::write_atomic(&file, &encode(&parts)));
    let kept = kept.ok().and_then(|()| Kept::open(&file));
    Ok(kept.map_or(Cut::Held(parts), Cut::Kept))
}

/// Format, number of training tokens, all tokens in 32 bits each, checksum; numbers little-endian.
fn encode(parts: &Parts) -> Vec<u8> {
    let n: usize = parts.iter().map(Vec::len).sum();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + 4 * n + CHECKSUM);
    bytes.extend_from_slice(FORMAT);
    bytes.extend_from_slice(&(parts[0].len() as u64).to_le_bytes());
    parts.iter().flatten().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    bytes
}

/// Whether the file at `path` is as it was written.
fn is_whole(path: &Path) -> bool {
    let check = || -> io::Result<bool> {
        let mut file = read::open(path)?;
        let body = file.metadata()?.len().saturating_sub(CHECKSUM as u64);
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader((&mut file).take(body))?;
        let mut checksum = Vec::new();
        file.read_to_end(&mut checksum)?;
        Ok(hasher.finalize().as_bytes()[..] == *checksum)
    };
    check().unwrap_or(false)
}

impl Kept {
    /// The file at `path`, of which no more than the header is looked at.
    fn open(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_owned();
        let file = read::open(path).ok()?;
        let bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let n_train = header.strip_prefix(FORMAT)?.try_into().ok().map(u64::from_le_bytes)?;
        let (n, rest) = (bytes.checked_sub(HEADER_BYTES + CHECKSUM)? / 4, bytes % 4);
        let n_train = usize::try_from(n_train).ok().filter(|&n_train| n_train <= n && rest == 0)?;
        Some(Self { name, tokens: TokenFile::at(file, HEADER_BYTES as u64, n), n_train })
    }

    /// Whether it is as it was written.
    pub(super) fn is_whole(&self, cache: &TokenCache) -> bool {
        is_whole(&cache.folder.join(&self.name))
    }
}

impl TokenCache {
    /// The tokens of the file `text` by the file `tokenizer`, if the index has them.
    pub(super) fn known(&self, text: &Path, tokenizer: &Path) -> Option<Kept> {
        let entry = fs::read_to_string(self.index(text, tokenizer)?).ok()?;
        let [format, name, stamp] = entry.lines().collect::<Vec<_>>()[..] else { return None };
        let is_name = name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_same = format == INDEX_FORMAT && stamp == Stamp::of(text, tokenizer)?.text;
        if is_same && is_name { Kept::open(&self.folder.join(name)) } else { None }
    }

    /// Enters tokens, made of what the files were at `stamp`, into the index.
    pub(super) fn enter(&self, text: &Path, tokenizer: &Path, stamp: &Stamp, kept: &Kept) {
        if let Some(index) = self.index(text, tokenizer).filter(|_| stamp.is_settled) {
            let entry = format!("{INDEX_FORMAT}\n{}\n{}\n", kept.name, stamp.text);
            // Without an entry the text is hashed the next time.
            let _ = files::write_atomic(&index, entry.as_bytes());
        }
    }

    /// Where the index says what belongs to these files. A newer program may cut otherwise.
    fn index(&self, text: &Path, tokenizer: &Path) -> Option<PathBuf> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
        for path in [text, tokenizer] {
            hasher.update(b"\0").update(fs::canonicalize(path).ok()?.as_os_str().as_bytes());
        }
        Some(self.folder.join(format!("of-{}", &hasher.finalize().to_hex().as_str()[..32])))
    }
}

/// Identities, sizes and times of a text and its tokenizer.
#[derive(Debug)]
pub(super) struct Stamp {
    text: String,
    /// Whether any later change would be seen.
    is_settled: bool,
}

impl Stamp {
    /// Of the files as they are now.
    pub(super) fn of(text: &Path, tokenizer: &Path) -> Option<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let mut stamp = Self { text: String::new(), is_settled: true };
        for path in [text, tokenizer] {
            let meta = fs::metadata(path).ok()?;
            let times = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
            let (device, inode, size) = (meta.dev(), meta.ino(), meta.size());
            stamp.text += &format!("{device} {inode} {size} {times:?} ");
            let last = times.map(|(seconds, _)| seconds).into_iter().max().unwrap_or(i64::MAX);
            let age = (now.as_secs() as i64).saturating_sub(last);
            stamp.is_settled &= age > SETTLED.as_secs() as i64;
        }
        Some(stamp)
    }
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
        let parts = match tokens(Some(cache), text, tokenizer, cut).unwrap() {
            Cut::Held(parts) => parts,
            Cut::Kept(kept) => read(&kept),
        };
        (parts, was_cut)
    }

    fn read(kept: &Kept) -> Parts {
        let mut train = kept.tokens.read(0, kept.tokens.len()).unwrap();
        let val = train.split_off(kept.n_train);
        [train, val]
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
    }

    #[test]
    fn a_damaged_file_is_replaced_and_an_absent_folder_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let (parts, _) = asked(&cache, "the cat", b"{}");
        let file = cache.file("the cat", b"{}");
        let whole = fs::read(&file).unwrap();
        let damaged = |bytes: &[u8]| {
            files::write_atomic(&file, bytes).unwrap();
            assert!(!is_whole(&file));
            // Ranks look at the header only, and must not be brought down by what they find.
            drop(Kept::open(&file).map(|kept| read(&kept)));
        };
        (0..whole.len()).for_each(|length| damaged(&whole[..length]));
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            damaged(&flipped);
        }
        assert_eq!(asked(&cache, "the cat", b"{}"), (parts.clone(), true));
        assert_eq!(fs::read(&file).unwrap(), whole);
        let nowhere = TokenCache { folder: file.join("below"), ..cache };
        assert_eq!(asked(&nowhere, "the cat", b"{}"), (parts, true));
    }

    #[test]
    fn ranks_open_what_the_index_has_unless_text_or_tokenizer_changed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let (text, rules) = (folder.path().join("text"), folder.path().join("rules"));
        files::write_atomic(&text, b"the cat").unwrap();
        files::write_atomic(&rules, b"{}").unwrap();
        let cut = || Ok([vec![1, 2], vec![70_000]]);
        let Cut::Kept(kept) = tokens(Some(&cache), "the cat", b"{}", cut).unwrap() else {
            panic!("not kept")
        };
        let fresh = Stamp::of(&text, &rules).unwrap();
        assert!(!fresh.is_settled, "it was written just now");
        cache.enter(&text, &rules, &fresh, &kept);
        assert!(cache.known(&text, &rules).is_none());
        cache.enter(&text, &rules, &Stamp { is_settled: true, ..fresh }, &kept);
        let known = cache.known(&text, &rules).unwrap();
        assert_eq!(read(&known), [vec![1, 2], vec![70_000]]);
        assert!(known.is_whole(&cache));
        assert!(cache.known(&rules, &text).is_none());
        files::write_atomic(&text, b"the cot").unwrap();
        assert!(cache.known(&text, &rules).is_none());
    }
}
