//! Tokens in a file, read where they lie: 16, 32 or 64 bits each, little-endian, as nanoGPT's
//! `prepare.py` writes them, or a NumPy array of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::read;

const EXPECTED: &str =
    "UTF-8 text (`file`), or tokens of 16, 32 or 64 bits (`train_file` and `val_file`)";
/// Magic bytes of NumPy's files.
const NUMPY: &[u8; 6] = b"\x93NUMPY";
/// Longest header of an array.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// How a token is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenDtype {
    /// 16 bits.
    Uint16,
    /// 32 bits.
    Uint32,
    /// 64 bits.
    Int64,
}

/// Largest vocabulary whose tokens have 16 bits.
const MAX_UINT16_VOCABULARY: usize = 1 << 16;

impl TokenDtype {
    const ALL: [Self; 3] = [Self::Uint16, Self::Uint32, Self::Int64];

    fn bytes(self) -> usize {
        match self {
            Self::Uint16 => 2,
            Self::Uint32 => 4,
            Self::Int64 => 8,
        }
    }

    pub(super) fn bits(self) -> usize {
        8 * self.bytes()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
        }
    }

    /// The usual type for a vocabulary of this size.
    pub(super) fn usual(vocabulary: usize) -> Self {
        if vocabulary <= MAX_UINT16_VOCABULARY { Self::Uint16 } else { Self::Uint32 }
    }

    /// The type of the tokens at `path`, of a vocabulary of this size: the usual one, unless the
    /// size of the file and the range of its first tokens are those of another.
    pub(super) fn recognised(path: &Path, vocabulary: usize) -> Result<Self, Error> {
        let usual = Self::usual(vocabulary);
        let others = Self::ALL.into_iter().filter(|other| *other != usual);
        for dtype in std::iter::once(usual).chain(others) {
            let Ok(file) = TokenFile::open(path, dtype) else { continue };
            let tokens = file.first().map_err(unreadable(path, "the tokens"))?;
            let is_known = |token: &u32| (*token as usize) < vocabulary;
            if width(&tokens, dtype).is_none() && tokens.iter().all(is_known) {
                return Ok(file.dtype);
            }
        }
        // What is wrong with it is told where it is checked.
        Ok(usual)
    }
}

/// Builds the error of `what`, the file at `path`, which cannot be read.
pub(super) fn unreadable(path: &Path, what: &'static str) -> impl Fn(io::Error) -> Error {
    Error::reading(what, path, EXPECTED)
}

/// Tokens in an open file.
#[derive(Debug)]
pub(super) struct TokenFile {
    file: File,
    /// The byte at which the first token stands.
    start: u64,
    dtype: TokenDtype,
    /// Tokens.
    len: usize,
}

impl TokenFile {
    /// `len` tokens of 32 bits from the byte `start` on.
    pub(super) fn at(file: File, start: u64, len: usize) -> Self {
        Self { file, start, dtype: TokenDtype::Uint32, len }
    }

    /// The tokens in the file at `path`, of `dtype` if it is no array of NumPy.
    pub(super) fn open(path: &Path, dtype: TokenDtype) -> Result<Self, Error> {
        let failed = unreadable(path, "the tokens");
        let file = read::open(path).map_err(&failed)?;
        let bytes = file.metadata().map_err(&failed)?.len();
        let unusable = |what| Error::Format { path: path.to_owned(), what };
        if let Some(header) = Header::of(&file).map_err(&failed)? {
            let header = header.map_err(unusable)?;
            let needed = (header.len as u64).saturating_mul(header.dtype.bytes() as u64);
            if header.start.saturating_add(needed) != bytes {
                return Err(unusable(format!(
                    "its {bytes} bytes are not the {} tokens that its header claims",
                    header.len
                )));
            }
            return Ok(Self { file, start: header.start, dtype: header.dtype, len: header.len });
        }
        let width = dtype.bytes();
        if !(bytes as usize).is_multiple_of(width) {
            let bits = 8 * width;
            return Err(unusable(format!(
                "its {bytes} bytes are not a whole number of {bits}-bit tokens"
            )));
        }
        Ok(Self { file, start: 0, dtype, len: bytes as usize / width })
    }

    /// Refuses a file whose tokens are not of the type that they are read as, by its first ones, or
    /// are not of the vocabulary. Of a very long file, parts at equal distances are looked at.
    pub(super) fn check(&self, path: &Path, vocabulary: usize) -> Result<(), Error> {
        let failed = unreadable(path, "the tokens");
        let tokens = self.first().map_err(&failed)?;
        let unusable = |what| Err(Error::Format { path: path.to_owned(), what });
        let bits = self.dtype.bits();
        if let Some(dtype) = width(&tokens, self.dtype) {
            let width = dtype.bits();
            let what = format!("its tokens have {width} bits, but are read as {bits} bits");
            return unusable(what + &remedy(dtype));
        }
        let Some((place, token)) = self.first_unknown(vocabulary).map_err(failed)? else {
            return Ok(());
        };
        let halves = tokens.iter().filter(|&&token| token >> 16 != 0).count();
        let are_narrower = self.dtype == TokenDtype::Uint32 && halves * 10 > tokens.len() * 9;
        let what = match token {
            UNKNOWN => format!("the token at place {place} is negative, or above all vocabularies"),
            _ => format!(
                "token {token}, at place {place}, is outside of a vocabulary of {vocabulary}"
            ),
        };
        unusable(if are_narrower {
            let remedy = remedy(TokenDtype::Uint16);
            format!("{what}: its tokens have 16 bits, but are read as 32 bits{remedy}")
        } else {
            format!("{what}: set `data.vocab_size`")
        })
    }

    fn first(&self) -> io::Result<Vec<u32>> {
        self.read(0, self.len.min(CHECKED_TOKENS))
    }

    /// The place, from 0, of a token that is not of the vocabulary, and the token.
    fn first_unknown(&self, vocabulary: usize) -> io::Result<Option<(usize, u32)>> {
        /// Tokens of a part.
        const PART: usize = 1 << 20;
        /// Most parts that are looked at.
        const MOST: usize = 512;
        if self.dtype == TokenDtype::Uint16 && vocabulary >= MAX_UINT16_VOCABULARY {
            return Ok(None);
        }
        let parts = self.len.div_ceil(PART);
        let looked = parts.min(MOST);
        let look = |i: usize| -> io::Result<Option<(usize, u32)>> {
            // The last part is always one of them.
            let start = PART * ((i + 1) * parts / looked - 1);
            let tokens = self.read(start, PART.min(self.len - start))?;
            let at = tokens.iter().position(|&token| token as usize >= vocabulary);
            Ok(at.map(|at| (start + at, tokens[at])))
        };
        (0..looked).into_par_iter().find_map_first(|i| look(i).transpose()).transpose()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// `n` tokens from `start` on.
    pub(super) fn read(&self, start: usize, n: usize) -> io::Result<Vec<u32>> {
        let width = self.dtype.bytes();
        let mut bytes = vec![0; width * n];
        self.file.read_exact_at(&mut bytes, self.start + (width * start) as u64)?;
        Ok(match self.dtype {
            TokenDtype::Uint16 => {
                let (tokens, _) = bytes.as_chunks::<2>();
                tokens.iter().map(|token| u32::from(u16::from_le_bytes(*token))).collect()
            }
            TokenDtype::Uint32 => {
                let (tokens, _) = bytes.as_chunks::<4>();
                tokens.iter().map(|token| u32::from_le_bytes(*token)).collect()
            }
            TokenDtype::Int64 => {
                let (tokens, _) = bytes.as_chunks::<8>();
                let token = |token: &[u8; 8]| i64::from_le_bytes(*token).try_into();
                tokens.iter().map(|bytes| token(bytes).unwrap_or(UNKNOWN)).collect()
            }
        })
    }
}

/// A token that has more than 32 bits, or is negative.
const UNKNOWN: u32 = u32::MAX;
/// Tokens at the begin of a file by which its type is told.
const CHECKED_TOKENS: usize = 1 << 16;
/// Fewest tokens by which their width is told.
const TELLING_TOKENS: usize = 16;
/// No upper half of a token is larger, since no vocabulary has more than 2^20 tokens.
const MAX_UPPER_HALF: u32 = 1 << 4;

/// The type of the tokens that were read as `tokens` of the narrower `dtype`, if they were.
fn width(tokens: &[u32], dtype: TokenDtype) -> Option<TokenDtype> {
    let low = |parts: usize| tokens.iter().step_by(parts);
    let is_part = |parts: usize| {
        let mut upper = tokens.chunks_exact(parts);
        let whole = tokens.len() / parts;
        // A text in which every other token is one of the first few has other ones beside these.
        let differ = low(parts).any(|token| *token > MAX_UPPER_HALF);
        let most = if dtype == TokenDtype::Uint16 { MAX_UPPER_HALF } else { 0 };
        let is_upper = |chunk: &[u32]| chunk[1] <= most && chunk[2..].iter().all(|part| *part == 0);
        whole >= TELLING_TOKENS && differ && upper.all(is_upper)
    };
    match dtype {
        TokenDtype::Uint16 if is_part(4) => Some(TokenDtype::Int64),
        TokenDtype::Uint16 if is_part(2) => Some(TokenDtype::Uint32),
        TokenDtype::Uint32 if is_part(2) => Some(TokenDtype::Int64),
        _ => None,
    }
}

/// Remedy for tokens of this type.
fn remedy(dtype: TokenDtype) -> String {
    format!("; set `data.token_dtype = \"{}\"`, or omit it", dtype.name())
}

/// The largest token in the file at `path`; 0 if there is none.
pub fn largest_token(path: &Path) -> Result<u32, Error> {
    /// Tokens that are read at a time.
    const PART: usize = 1 << 20;
    // Of 16 bits, unless they are wider.
    let is_wider = |dtype: &TokenDtype| {
        let first = TokenFile::open(path, TokenDtype::Uint16)
            .and_then(|file| file.first().map_err(unreadable(path, "the tokens")));
        first.is_ok_and(|tokens| width(&tokens, TokenDtype::Uint16) == Some(*dtype))
    };
    let dtype = TokenDtype::ALL.into_iter().find(is_wider).unwrap_or(TokenDtype::Uint16);
    let tokens = TokenFile::open(path, dtype)?;
    let mut largest = 0;
    for start in (0..tokens.len()).step_by(PART) {
        let part = tokens.read(start, PART.min(tokens.len() - start));
        let part = part.map_err(unreadable(path, "the tokens"))?;
        largest = largest.max(part.into_iter().max().unwrap_or(0));
    }
    Ok(largest)
}

/// Header of a NumPy array.
struct Header {
    start: u64,
    dtype: TokenDtype,
    len: usize,
}

impl Header {
    /// Reads the header of `file`, or says why it is no list of tokens; `None` if it is no array.
    fn of(file: &File) -> io::Result<Option<Result<Self, String>>> {
        let mut begin = [0; 12];
        match file.read_exact_at(&mut begin, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let Some([major, _, a, b, c, d]) = begin.strip_prefix(NUMPY) else { return Ok(None) };
        let (at, length) = match major {
            1 => (10, usize::from(u16::from_le_bytes([*a, *b]))),
            _ => (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
        };
        if length > MAX_HEADER_BYTES {
            return Ok(Some(Err(format!("it claims a header of {length} bytes"))));
        }
        let mut text = vec![0; length];
        match file.read_exact_at(&mut text, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(Some(Err("its header is cut short".to_owned())));
            }
            read => read?,
        }
        let start = at + length as u64;
        Ok(Some(Self::parsed(&String::from_utf8_lossy(&text), start)))
    }

    /// `{'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }`
    fn parsed(text: &str, start: u64) -> Result<Self, String> {
        let after = |key: &str| text.split_once(key).map_or("", |(_, rest)| rest.trim_start());
        let dtype = match after("'descr':").get(..5) {
            Some("'<u2'") => TokenDtype::Uint16,
            Some("'<u4'" | "'<i4'") => TokenDtype::Uint32,
            Some("'<u8'" | "'<i8'") => TokenDtype::Int64,
            _ => {
                let what = "it is not an array of uint16, uint32 or int64, little-endian: save it \
                            with `.astype(np.uint16)`";
                return Err(what.to_owned());
            }
        };
        let shape = after("'shape':").strip_prefix('(').and_then(|rest| rest.split_once(')'));
        let len = shape.and_then(|(shape, _)| shape.trim_end_matches([',', ' ']).parse().ok());
        let len = len.ok_or("it is not an array of one dimension: save it with `.reshape(-1)`")?;
        Ok(Self { start, dtype, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
        header += &" ".repeat(padded - header.len() - 1);
        header += "\n";
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    }

    fn opened(bytes: &[u8], dtype: TokenDtype) -> Result<Vec<u32>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        crate::files::write_atomic(&path, bytes).unwrap();
        let tokens = TokenFile::open(&path, dtype).map_err(|error| error.to_string())?;
        Ok(tokens.read(1, tokens.len() - 1).unwrap())
    }

    #[test]
    fn the_largest_token_of_a_long_file_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let bytes: Vec<u8> =
            (0..3 << 20).flat_map(|i: u32| ((i / 64) as u16).to_le_bytes()).collect();
        crate::files::write_atomic(&path, &bytes).unwrap();
        assert_eq!(largest_token(&path).unwrap(), (3 << 20) / 64 - 1);
    }

    #[test]
    fn tokens_that_are_wider_or_narrower_than_they_are_read_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let checked = |bytes: Vec<u8>, dtype, vocabulary| {
            crate::files::write_atomic(&path, &bytes).unwrap();
            TokenFile::open(&path, dtype)
                .unwrap()
                .check(&path, vocabulary)
                .map_err(|e| e.to_string())
        };
        let tokens = || (0..200u32).map(|i| i * 7919 % 50_000);
        let of_16 = || tokens().flat_map(|token| (token as u16).to_le_bytes()).collect();
        let of_32 = || tokens().flat_map(u32::to_le_bytes).collect();
        let of_64 = || tokens().flat_map(|token| i64::from(token).to_le_bytes()).collect();
        let (narrow, wide) = (TokenDtype::Uint16, TokenDtype::Uint32);
        assert_eq!(checked(of_16(), narrow, 50_257), Ok(()));
        assert_eq!(checked(of_32(), wide, 50_257), Ok(()));
        let said = |bytes, dtype| checked(bytes, dtype, 128_256).unwrap_err();
        let refused = said(of_32(), narrow);
        assert!(refused.contains("have 32 bits") && refused.contains("\"uint32\""), "{refused}");
        assert!(said(of_64(), narrow).contains("have 64 bits"));
        assert!(said(of_64(), wide).contains("\"int64\""));
        assert_eq!(checked(of_64(), TokenDtype::Int64, 50_257), Ok(()));
        let negative = (0..200i64).flat_map(|i| (i - 1).to_le_bytes()).collect();
        assert!(
            checked(negative, TokenDtype::Int64, 300).unwrap_err().contains("place 0 is negative")
        );
        assert!(said(of_16(), wide).contains("\"uint16\""));
        // Of a vocabulary of more than 16 bits, upper halves are not 0.
        let large = || (0..200u32).map(|i| i * 7919 % 128_000);
        assert!(said(large().flat_map(u32::to_le_bytes).collect(), narrow).contains("32 bits"));
        let refused = checked(of_16(), narrow, 1000).unwrap_err();
        let expected = "token 7919, at place 1, is outside of a vocabulary of 1000";
        assert!(refused.contains(expected), "{refused}");
        // The last one of many, too.
        let long = (0..(3 << 20) + 7u32).map(|i| if i == (3 << 20) + 6 { 4321 } else { i % 900 });
        let refused = checked(long.flat_map(|t| (t as u16).to_le_bytes()).collect(), narrow, 1000);
        assert!(refused.unwrap_err().contains("token 4321, at place 3145734, is outside"));
        // A text of few tokens may be of zeros and ones.
        let bits = (0..200u16).flat_map(|i| (i % 2).to_le_bytes()).collect();
        assert_eq!(checked(bits, narrow, 10), Ok(()));
    }

    #[test]
    fn the_type_of_tokens_is_told_by_size_and_range() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let told = |bytes: Vec<u8>, vocabulary| {
            crate::files::write_atomic(&path, &bytes).unwrap();
            TokenDtype::recognised(&path, vocabulary).unwrap()
        };
        let tokens = || (0..201u32).map(|i| i * 7919 % 50_000);
        let of_16 = || tokens().flat_map(|token| (token as u16).to_le_bytes()).collect();
        let of_32 = || tokens().flat_map(u32::to_le_bytes).collect();
        let of_64 = || tokens().flat_map(|token| i64::from(token).to_le_bytes()).collect();
        for vocabulary in [50_257, 128_256] {
            assert_eq!(told(of_16(), vocabulary), TokenDtype::Uint16, "{vocabulary}");
            assert_eq!(told(of_32(), vocabulary), TokenDtype::Uint32, "{vocabulary}");
            assert_eq!(told(of_64(), vocabulary), TokenDtype::Int64, "{vocabulary}");
        }
        let large = (0..200u32).flat_map(|i| (i * 7919 % 128_000).to_le_bytes()).collect();
        assert_eq!(told(large, 128_256), TokenDtype::Uint32);
    }

    #[test]
    fn tokens_have_16_32_or_64_bits_and_arrays_say_which() {
        let short: Vec<u8> = [7u16, 60_000, 3].iter().flat_map(|t| t.to_le_bytes()).collect();
        let long: Vec<u8> = [7u32, 200_000, 3].iter().flat_map(|t| t.to_le_bytes()).collect();
        assert_eq!(opened(&short, TokenDtype::Uint16).unwrap(), [60_000, 3]);
        assert_eq!(opened(&long, TokenDtype::Uint32).unwrap(), [200_000, 3]);
        let numpy = npy("<u2", "(3,)", &short);
        assert_eq!(opened(&numpy, TokenDtype::Uint32).unwrap(), [60_000, 3]);
        assert_eq!(opened(&npy("<u4", "(3,)", &long), TokenDtype::Uint16).unwrap(), [200_000, 3]);
        let wide: Vec<u8> = [7i64, 200_000, 3].iter().flat_map(|t| t.to_le_bytes()).collect();
        assert_eq!(opened(&npy("<i8", "(3,)", &wide), TokenDtype::Uint16).unwrap(), [200_000, 3]);
        for (bytes, expected) in [
            (npy("<f4", "(3,)", &long), "not an array of uint16, uint32 or int64"),
            (npy("<u4", "(3, 1)", &long), "not an array of one dimension"),
            (npy("<u4", "(4,)", &long), "are not the 4 tokens that its header claims"),
            (b"\x93NUMPY\x01\x00\xff\xff{'descr'".to_vec(), "its header is cut short"),
            (long[..11].to_vec(), "its 11 bytes are not a whole number of 32-bit tokens"),
        ] {
            let refused = opened(&bytes, TokenDtype::Uint32).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
