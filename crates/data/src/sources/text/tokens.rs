//! `data.name = "tokens"`, one long text as tokens: windows of it, each with the token that follows
//! each of its tokens.
//!
//! A text file is read character by character; the vocabulary is its sorted distinct characters,
//! the first 90 % are for training. Or both parts are cut into the tokens of a `tokenizer.json`. Or
//! two files of tokens, as nanoGPT's `prepare.py` writes them, which are read where they lie.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::error::{Error, SampleError, shown};
use crate::inputs::{self, Inputs, PredictionRequest};
use crate::listing::paths::both;
use crate::plan::SplitPlan;
use crate::rng::Key;
use crate::sources::holdout::Parts;
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::text::documents;
use crate::sources::text::token_buffer::{CutText, TokenBuffer};
use crate::sources::text::token_cache::{CacheCheck, Origin, TokenCache, cached};
use crate::sources::text::token_file::{TokenDtype, TokenFile, unreadable};
use crate::tokenizer::Tokenizer;
use crate::units::Bytes;
use crate::{Dataset, Splits, Target, TextForm, parquet, read};

/// Most windows that begin at every token; of more, one begins at every `seq_len`-th.
const MAX_OVERLAPPING_WINDOWS: usize = 1 << 24;
/// The column of a parquet file that holds texts.
const COLUMN: &str = "text";

/// a text, as characters or tokens; the next one is predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// a text, or the column `text` of a parquet file with a line break after each row, read by
    /// characters or by `tokenizer`; use it instead of `train_file` and `val_file`.
    /// The first 90 % is for training, the rest for validation; `data.val_fraction` and
    /// `data.test_fraction` set other parts of its end. A training sample begins at every token, so
    /// set the length with `train.steps`. In more than 16,777,216 training tokens, also of a
    /// `train_file`, one begins at every `seq_len`-th token, and an epoch is one pass through them.
    /// Validation uses non-overlapping windows; the incomplete last one is dropped.
    #[schemars(extend("format" = "path"), example = "data/input.txt")]
    pub file: Option<PathBuf>,
    /// training tokens: a file written by nanoGPT's prepare.py, or a .npy array.
    #[schemars(extend("format" = "path"), example = "data/train.bin")]
    pub train_file: Option<PathBuf>,
    /// validation tokens.
    #[schemars(extend("format" = "path"), example = "data/val.bin")]
    pub val_file: Option<PathBuf>,
    /// test tokens, used once, at the end of training.
    #[schemars(extend("format" = "path"), example = "data/test.bin")]
    pub test_file: Option<PathBuf>,
    /// vocabulary size of `train_file` and `val_file`; 50257 is GPT-2's.
    #[serde(default = "gpt2")]
    #[schemars(range(min = 2, max = 1_048_576), example = 50_304)]
    pub vocab_size: usize,
    /// type of the tokens in `train_file` and `val_file`, little-endian: "uint16", "uint32" or
    /// "int64". Default: told by the size of `train_file` and the range of its tokens; where it
    /// may be several, 16 bits for vocabularies of up to 65,536, else 32. A .npy file needs no
    /// type.
    #[serde(default)]
    #[schemars(example = &"uint32")]
    pub token_dtype: Option<TokenDtype>,
    /// a tokenizer.json, its repository on the Hugging Face hub ("hf:ORG/NAME"), or "char", the
    /// default.
    #[schemars(extend("format" = "path"), example = "weights/tokenizer.json")]
    pub tokenizer: Option<PathBuf>,
    /// context length in tokens.
    #[schemars(range(min = 2, max = 65_536), example = 256)]
    pub seq_len: usize,
    /// at the end of a run on one machine, sample this many tokens with the best weights and print
    /// them, like `ddprun sample`. Default: none.
    #[schemars(range(min = 1, max = 1_048_576), example = 300)]
    pub sample_tokens: Option<u32>,
}

/// Size of GPT-2's vocabulary.
fn gpt2() -> usize {
    50_257
}

/// A text is cut in its order: windows that overlap cannot be dealt out.
const PARTS: BuiltinSplits =
    BuiltinSplits { needs_val: false, deals: false, ..BuiltinSplits::FILES };
/// Share of a text that validates where no other is given.
const VALIDATES: f64 = 0.1;

impl Kind for Tokens {
    const NAME: &'static str = "tokens";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Text), Capability::Split(PARTS)];

    fn check(&self) -> Vec<OptionConflict> {
        let wrong =
            |key, with, what: &str| vec![OptionConflict { key, with, what: what.to_owned() }];
        match (&self.file, &self.train_file, &self.val_file) {
            (None, None, _) => wrong(
                "file",
                &["train_file"],
                "is missing: `tokens` needs a text, or `train_file` and `val_file`",
            ),
            (None, Some(_), None) => wrong(
                "val_file",
                &["train_file"],
                "is missing: `tokens` needs it beside `train_file`",
            ),
            (Some(_), ..) if self.test_file.is_some() => wrong(
                "test_file",
                &["file"],
                "goes with `train_file`: of a text, `data.test_fraction` is to test on",
            ),
            _ => Vec::new(),
        }
    }
}

impl DataSource for Tokens {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        // Only the header of kept tokens is looked at; the survey has read them all.
        Ok(open(&self.source()?, self.seq_len, &reading.survey.split, CacheCheck::Header)?.0)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let source = self.source()?;
        check_tokens(&source)?;
        let (splits, token_bytes) = open(&source, self.seq_len, &request.split, CacheCheck::Whole)?;
        let found = Survey::of(&splits);
        let seq_len = self.seq_len;
        let (line, held) = match source {
            Source::Text(file, tokenizer) => {
                let pieces = if tokenizer.is_some() { "tokens" } else { "characters" };
                let line = format!("{}, windows of {seq_len} {pieces}", file.display());
                // Four bytes per character or token, where these are not kept in a file.
                (line, Bytes(4 * (found.n_train + found.n_val) as u64))
            }
            Source::Binary { train, val, dtype, vocabulary, .. } => {
                let found = dtype_of(dtype, &train, vocabulary)?;
                let is_usual = dtype.is_some() || found == TokenDtype::usual(vocabulary);
                let bits =
                    if is_usual { String::new() } else { format!(" of {} bits", found.bits()) };
                (format!("{}, windows of {seq_len} tokens{bits}", both(&train, &val)), Bytes(0))
            }
        };
        Ok(Survey { token_bytes, line, held, ..found })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(match self.source()? {
            Source::Text(file, tokenizer) => {
                let tokenizer = tokenizer.map(|path| Files::one("tokenizer", &path));
                std::iter::once(Files::one("text", &file)).chain(tokenizer).collect()
            }
            Source::Binary { train, val, test, .. } => {
                let test = test.map(|path| Files::one("test", &path));
                let known = [Files::one("train", &train), Files::one("val", &val)];
                known.into_iter().chain(test).collect()
            }
        })
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        match self.source()? {
            Source::Text(_, None) => {
                let unknown = |c: char| format!("character `{}` is unknown", c.escape_debug());
                let order: BTreeMap<&str, u32> =
                    request.plan.classes.iter().map(String::as_str).zip(0..).collect();
                let token = |c: char| {
                    order.get(c.encode_utf8(&mut [0; 4]) as &str).copied().ok_or_else(|| unknown(c))
                };
                documents::texts(request.paths, self.seq_len, &|text| {
                    text.chars().map(token).collect()
                })
            }
            Source::Text(_, Some(path)) => {
                let tokenizer = Tokenizer::open(&path)?;
                documents::texts(request.paths, self.seq_len, &|text| tokenizer.encode_long(text))
            }
            Source::Binary { dtype, vocabulary, .. } => {
                self.token_files(request.paths, dtype, vocabulary)
            }
        }
    }

    fn text(&self) -> Option<TextForm> {
        Some(match self.source().ok()? {
            Source::Text(_, Some(tokenizer)) => TextForm::Tokens(tokenizer),
            Source::Text(_, None) => TextForm::Characters,
            Source::Binary { .. } => TextForm::Numbers,
        })
    }

    fn sample_tokens(&self) -> Option<u32> {
        self.sample_tokens
    }
}

impl Tokens {
    /// Files of tokens, each a document.
    fn token_files(
        &self,
        paths: &[PathBuf],
        dtype: Option<TokenDtype>,
        vocabulary: usize,
    ) -> Result<Inputs, Error> {
        let is_wanted = |path: &Path| inputs::ends_with(path, &["bin", "npy"]);
        let inputs::InputFiles { files, notes } =
            inputs::files(paths, "files of tokens (.bin, .npy)", &is_wanted)?;
        let tokens = |path: PathBuf| -> Result<_, Error> {
            let file = TokenFile::open(&path, dtype_of(dtype, &path, vocabulary)?)?;
            let tokens = file.read(0, file.len()).map_err(|error| error.to_string());
            let known = tokens.and_then(|tokens| {
                match tokens.iter().find(|&&token| token as usize >= vocabulary) {
                    None => Ok(tokens),
                    Some(token) => {
                        Err(format!("token {token} is outside of a vocabulary of {vocabulary}"))
                    }
                }
            });
            Ok((path, known))
        };
        let files = files.into_iter().map(tokens).collect::<Result<Vec<_>, _>>()?;
        Ok(documents::token_files(files, notes, self.seq_len))
    }

    /// A text, or two files of tokens.
    fn source(&self) -> Result<Source, Error> {
        let tokenizer = self.tokenizer.clone().filter(|path| path.as_os_str() != "char");
        match (&self.file, &self.train_file, &self.val_file) {
            (Some(file), ..) => Ok(Source::Text(file.clone(), tokenizer)),
            (None, Some(train), Some(val)) => {
                let train = train.clone();
                let val = val.clone();
                let vocabulary = self.vocab_size;
                let dtype = self.token_dtype;
                let test = self.test_file.clone();
                Ok(Source::Binary { train, val, test, dtype, vocabulary })
            }
            _ => Err(Error::MissingKey { key: "data.file", kind: Self::NAME }),
        }
    }
}

/// The type of the tokens at `path`, unless it is `given`.
fn dtype_of(
    given: Option<TokenDtype>,
    path: &Path,
    vocabulary: usize,
) -> Result<TokenDtype, Error> {
    given.map_or_else(|| TokenDtype::recognised(path, vocabulary), Ok)
}

/// Refuses files whose tokens are of another type or vocabulary.
fn check_tokens(source: &Source) -> Result<(), Error> {
    let Source::Binary { train, val, test, dtype, vocabulary } = source else { return Ok(()) };
    let dtype = dtype_of(*dtype, train, *vocabulary)?;
    let files = [Some(train), Some(val), test.as_ref()];
    let mut files = files.into_iter().flatten();
    files.try_for_each(|path| TokenFile::open(path, dtype)?.check(path, *vocabulary))
}

/// Source of the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// Characters of one file, or its tokens by this tokenizer.
    Text(PathBuf, Option<PathBuf>),
    /// Tokens of two files, of a vocabulary of this size.
    Binary {
        train: PathBuf,
        val: PathBuf,
        test: Option<PathBuf>,
        /// `None` = told by the file to train on.
        dtype: Option<TokenDtype>,
        vocabulary: usize,
    },
}

/// Opens all parts, with the vocabulary in the order of its tokens, and the bytes of each token if
/// its text is known.
fn open(
    source: &Source,
    seq_len: usize,
    split: &SplitPlan,
    look: CacheCheck,
) -> Result<(Splits, Vec<u32>), Error> {
    let OpenedText { rows, classes, token_bytes } = match source {
        Source::Text(file, None) => characters(file, split)?,
        Source::Text(file, Some(tokenizer)) => words(file, tokenizer, split, look)?,
        Source::Binary { train, val, test, dtype, vocabulary } => {
            let classes = (0..*vocabulary).map(|token| token.to_string()).collect();
            let dtype = dtype_of(*dtype, train, *vocabulary)?;
            let given = test.as_deref().map(|test| binary(test, dtype)).transpose()?;
            let (train, held) = held_back(binary(train, dtype)?, split)?;
            let rows = Parts { train, val: binary(val, dtype)?, test: given.or(held) };
            OpenedText { rows, classes, token_bytes: Vec::new() }
        }
    };
    let overlapping = rows.train.len() <= MAX_OVERLAPPING_WINDOWS;
    let windows = |row, stride| -> Result<Arc<dyn Dataset>, Error> {
        Ok(Arc::new(Windows::new(row, seq_len, stride, classes.len())?))
    };
    let splits = Splits {
        train: windows(rows.train, if overlapping { 1 } else { seq_len })?,
        val: windows(rows.val, seq_len)?,
        test: rows.test.map(|row| windows(row, seq_len)).transpose()?,
        classes,
    };
    Ok((splits, token_bytes))
}

/// All parts of a text, its vocabulary, and the bytes of each token if that is known.
struct OpenedText {
    rows: Parts<TokenRow>,
    classes: Vec<String>,
    token_bytes: Vec<u32>,
}

/// The parts of all tokens of a text, of which `n_train` are trained on if `split` says nothing.
fn parts(all: &TokenRow, n_train: usize, split: &SplitPlan) -> Result<Parts<TokenRow>, Error> {
    let n = all.len();
    let [train, val] = if split.holds_something() {
        let lengths = split.cut(n, VALIDATES).map_err(|what| format(&all.path, what))?;
        [lengths[0], lengths[0] + lengths[1]]
    } else {
        [n_train, n]
    };
    let test = (val < n).then(|| all.part(val..n));
    Ok(Parts { train: all.part(0..train), val: all.part(train..val), test })
}

/// The training tokens, and their end if that is held out for the test.
fn held_back(row: TokenRow, split: &SplitPlan) -> Result<(TokenRow, Option<TokenRow>), Error> {
    if split.test_fraction.is_none() {
        return Ok((row, None));
    }
    let lengths = split.cut(row.len(), 0.0);
    let [train, _, test] = lengths.map_err(|what| format(&row.path, what))?;
    Ok((row.part(0..train), Some(row.part(train..train + test))))
}

/// The characters of `text` as tokens.
pub fn encode(vocabulary: &[String], text: &str) -> Result<Vec<u32>, char> {
    let mut buffer = [0; 4];
    let token = |c: char| {
        let known = c.encode_utf8(&mut buffer);
        vocabulary.iter().position(|other| other == known).map(|token| token as u32).ok_or(c)
    };
    text.chars().map(token).collect()
}

fn text(file: &Path) -> Result<String, Error> {
    if let Some(rows) = parquet::json_lines(file, "the text", "a text")? {
        return text_of_rows(file, &rows);
    }
    let bytes = read::whole(file).map(read::without_mark);
    let bytes = bytes.map_err(unreadable(file, "the text"))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format(file, format!("it is not UTF-8 text: byte {at} is not part of a character"))
    })
}

/// The texts in the column `text` of rows, each ended by a line break.
fn text_of_rows(file: &Path, rows: &[u8]) -> Result<String, Error> {
    let mut all = String::new();
    let rows = rows.split(|&byte| byte == b'\n').filter(|row| !row.is_empty());
    for (number, row) in (1..).zip(rows) {
        let row: Map<String, Value> =
            serde_json::from_slice(row).map_err(|error| format(file, error.to_string()))?;
        match row.get(COLUMN) {
            Some(Value::String(text)) => all.push_str(text),
            Some(Value::Null) => continue,
            _ => {
                let columns: Vec<String> = row.keys().map(|key| format!("`{key}`")).collect();
                let columns = columns.join(", ");
                let what =
                    format!("row {number} has no text in a column `{COLUMN}`, but {columns}");
                return Err(format(file, what));
            }
        }
        if !all.ends_with('\n') {
            all.push('\n');
        }
    }
    Ok(all)
}

/// All parts by a tokenizer, and its vocabulary. The training part is 90 % of the characters, or
/// what `split` says of the tokens.
fn words(
    file: &Path,
    path: &Path,
    split: &SplitPlan,
    look: CacheCheck,
) -> Result<OpenedText, Error> {
    let cache = TokenCache::of_user();
    let tokenizer = Arc::new(Tokenizer::open(path)?);
    let paths = vec![file.into(), path.into()];
    let origin = Origin { paths, n_texts: 1, options: "text".to_owned() };
    let text = file.to_owned();
    let cutter = tokenizer.clone();
    let CutText { tokens, n_train } =
        cached(cache.as_ref(), &origin, look, move || cut(&text, &cutter))?;
    let all = TokenRow { held: tokens, path: file.to_owned() };
    let token_bytes = tokenizer.token_bytes().unwrap_or_default();
    Ok(OpenedText {
        rows: parts(&all, n_train, split)?,
        classes: tokenizer.vocabulary(),
        token_bytes,
    })
}

/// The tokens of both parts of the text in `file`.
fn cut(file: &Path, tokenizer: &Tokenizer) -> Result<CutText, Error> {
    let text = text(file)?;
    let n_train = text.chars().count() * 9 / 10;
    let border = text.char_indices().nth(n_train).map_or(text.len(), |(at, _)| at);
    let cut = |part: &str| tokenizer.encode_long(part).map_err(|why| format(file, why));
    Ok(CutText::of([cut(&text[..border])?, cut(&text[border..])?]))
}

fn characters(file: &Path, split: &SplitPlan) -> Result<OpenedText, Error> {
    let text = text(file)?;
    let vocabulary: BTreeSet<char> = text.chars().collect();
    let order: BTreeMap<char, u32> = vocabulary.iter().copied().zip(0..).collect();
    let tokens: Vec<u32> = text.chars().filter_map(|c| order.get(&c).copied()).collect();
    let n = tokens.len();
    let all = TokenRow { held: TokenBuffer::memory(tokens), path: file.to_owned() };
    let classes: Vec<String> = vocabulary.iter().map(char::to_string).collect();
    let token_bytes = classes.iter().map(|character| character.len() as u32).collect();
    Ok(OpenedText { rows: parts(&all, n * 9 / 10, split)?, classes, token_bytes })
}

fn binary(path: &Path, dtype: TokenDtype) -> Result<TokenRow, Error> {
    let held = TokenBuffer::file(TokenFile::open(path, dtype)?);
    Ok(TokenRow { held, path: path.to_owned() })
}

fn format(path: &Path, what: String) -> Error {
    Error::Format { path: path.to_owned(), what }
}

/// A row of tokens.
struct TokenRow {
    held: TokenBuffer,
    path: PathBuf,
}

impl TokenRow {
    fn len(&self) -> usize {
        self.held.len()
    }

    /// A part of it, from 0.
    fn part(&self, part: Range<usize>) -> Self {
        Self { held: self.held.part(part), path: self.path.clone() }
    }
}

/// The windows of one part: `seq_len` tokens from every `stride`-th on.
struct Windows {
    tokens: TokenRow,
    stride: usize,
    shape: [usize; 1],
    vocabulary: usize,
    n: usize,
}

impl Windows {
    fn new(
        tokens: TokenRow,
        seq_len: usize,
        stride: usize,
        vocabulary: usize,
    ) -> Result<Self, Error> {
        let Some(room) = tokens.len().checked_sub(seq_len + 1) else {
            let what = format!(
                "has too few tokens: a split of it has {}, and needs at least `seq_len` + 1 = {}",
                tokens.len(),
                seq_len + 1
            );
            return Err(format(&tokens.path, what));
        };
        Ok(Self { tokens, stride, shape: [seq_len], vocabulary, n: room / stride + 1 })
    }
}

impl Dataset for Windows {
    fn len(&self) -> usize {
        self.n
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn target_shape(&self) -> &[usize] {
        &self.shape
    }

    fn classifies(&self) -> bool {
        true
    }

    fn name(&self, index: usize) -> String {
        format!("the tokens from {} on of `{}`", index * self.stride, shown(&self.tokens.path))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let path = || self.tokens.path.clone();
        let mut window = self
            .tokens
            .held
            .read(index * self.stride, self.shape[0] + 1)
            .map_err(|source| SampleError::Io { path: path(), source })?;
        if let Some(token) = window.iter().find(|&&token| token as usize >= self.vocabulary) {
            let n = self.vocabulary;
            let reason =
                format!("token {token} is outside of a vocabulary of {n}: set `data.vocab_size`");
            return Err(SampleError::Decode { path: path(), reason });
        }
        values.extend(window[..self.shape[0]].iter().map(|&token| token as f32));
        window.remove(0);
        Ok(Target::Classes(window))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn file(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = dir.join(name);
        File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    }

    fn load(data: &dyn Dataset, index: usize) -> (Vec<f32>, Target) {
        let mut values = Vec::new();
        let target = data.load(index, None, &mut values).unwrap();
        (values, target)
    }

    /// A parquet file with one column of texts, of which some may be absent.
    fn parquet_file(path: &Path, column: &str, texts: &[Option<&str>]) {
        use ::parquet::data_type::{ByteArray, ByteArrayType};
        let schema = format!("message rows {{ OPTIONAL BYTE_ARRAY {column} (UTF8); }}");
        let schema = Arc::new(::parquet::schema::parser::parse_message_type(&schema).unwrap());
        let file = File::create(path).unwrap();
        let properties = Arc::default();
        let writer = ::parquet::file::writer::SerializedFileWriter::new(file, schema, properties);
        let mut writer = writer.unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut written = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> =
            texts.iter().flatten().map(|text| ByteArray::from(*text)).collect();
        let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
        written.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        written.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn the_texts_of_a_parquet_file_are_one_text_with_line_breaks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text.parquet");
        parquet_file(&path, "text", &[Some("Köln"), None, Some("a\n\"b\"\n"), Some("")]);
        assert_eq!(text(&path).unwrap(), "Köln\na\n\"b\"\n");
        parquet_file(&path, "body", &[Some("x")]);
        let error = text(&path).unwrap_err().to_string();
        assert!(error.contains("row 1 has no text in a column `text`, but `body`"), "{error}");
    }

    #[test]
    fn characters_are_numbered_in_their_order_and_each_is_followed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let text = "hallo wörld!\n".repeat(10);
        let source = Source::Text(file(dir.path(), "input.txt", text.as_bytes()), None);
        let splits = open(&source, 4, &SplitPlan::NONE, CacheCheck::Whole).unwrap().0;
        let classes = &splits.classes;
        assert_eq!(*classes, ["\n", " ", "!", "a", "d", "h", "l", "o", "r", "w", "ö"]);
        // 117 and 13 tokens: windows of 5 begin at each of 113 tokens, and at tokens 0, 4 and 8.
        assert_eq!((splits.train.len(), splits.val.len()), (113, 3));
        let (seen, next) = load(&*splits.train, 1);
        assert_eq!((seen, next), (vec![3.0, 6.0, 6.0, 7.0], Target::Classes(vec![6, 6, 7, 1])));
        let (seen, _) = load(&*splits.val, 2);
        assert_eq!(seen, [8.0, 6.0, 4.0, 2.0]);
        assert_eq!(encode(classes, "hö"), Ok(vec![5, 10]));
        assert_eq!(encode(classes, "haz"), Err('z'));
        let found = Survey::of(&splits);
        assert_eq!((found.n_train, found.sample, found.target), (113, Some(vec![4]), vec![4]));
    }

    #[test]
    fn a_tokenizer_cuts_both_parts_into_its_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = crate::tokenizer::tests::write(dir.path());
        let text = "the cat".repeat(10);
        let text = file(dir.path(), "input.txt", text.as_bytes());
        let source = Source::Text(text, Some(tokenizer));
        let splits = open(&source, 4, &SplitPlan::NONE, CacheCheck::Whole).unwrap().0;
        let classes = &splits.classes;
        // 9 and 1 times `the`, the blank, `c`, `a`, `t`; after a `t`, `the` begins a word anew.
        assert_eq!((classes.len(), &*classes[10]), (11, "the"));
        let (seen, next) = load(&*splits.val, 0);
        assert_eq!((seen, next), (vec![10.0, 8.0, 7.0, 6.0], Target::Classes(vec![8, 7, 6, 5])));
    }

    #[test]
    fn sixteen_bit_tokens_are_read_where_they_lie() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..20u16).flat_map(|i| (i * 1000).to_le_bytes()).collect();
        let train = file(dir.path(), "train.bin", &bytes);
        let val = file(dir.path(), "val.bin", &bytes[..12]);
        let dtype = Some(TokenDtype::Uint16);
        let opened = |vocabulary| {
            let source = Source::Binary {
                train: train.clone(),
                val: val.clone(),
                test: None,
                dtype,
                vocabulary,
            };
            open(&source, 3, &SplitPlan::NONE, CacheCheck::Whole).unwrap().0
        };
        let splits = opened(20_000);
        assert_eq!((splits.train.len(), splits.val.len()), (17, 1));
        assert_eq!(load(&*splits.train, 16).1, Target::Classes(vec![17_000, 18_000, 19_000]));
        let error = opened(2000).train.load(5, None, &mut Vec::new()).unwrap_err();
        assert!(
            error.to_string().contains("token 5000 is outside of a vocabulary of 2000"),
            "{error}"
        );
    }

    #[test]
    fn the_end_of_a_text_validates_and_tests() {
        let dir = tempfile::tempdir().unwrap();
        let text = file(dir.path(), "input.txt", "0123456789".repeat(10).as_bytes());
        let source = Source::Text(text, None);
        let split =
            SplitPlan { val_fraction: Some(0.2), test_fraction: Some(0.3), ..SplitPlan::NONE };
        let splits = open(&source, 4, &split, CacheCheck::Whole).unwrap().0;
        let test = splits.test.unwrap();
        // Windows of 5 in 50, 20 and 30 characters.
        assert_eq!((splits.train.len(), splits.val.len(), test.len()), (46, 4, 7));
        assert_eq!(load(&*test, 0).0, [0.0, 1.0, 2.0, 3.0]);
        let bytes: Vec<u8> = (0..20u16).flat_map(u16::to_le_bytes).collect();
        let train = file(dir.path(), "train.bin", &bytes);
        let (val, dtype) = (train.clone(), Some(TokenDtype::Uint16));
        let source = Source::Binary { train, val, test: None, dtype, vocabulary: 20 };
        let split = SplitPlan { test_fraction: Some(0.3), ..SplitPlan::NONE };
        let splits = open(&source, 3, &split, CacheCheck::Whole).unwrap().0;
        let test = splits.test.unwrap();
        assert_eq!((splits.train.len(), splits.val.len(), test.len()), (11, 6, 1));
        assert_eq!(load(&*test, 0).0, [14.0, 15.0, 16.0]);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let check = |bytes: &[u8], expected: &str| {
            let source = Source::Text(file(dir.path(), "input.txt", bytes), None);
            let error =
                open(&source, 8, &SplitPlan::NONE, CacheCheck::Whole).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(b"to be\xff", "it is not UTF-8 text: byte 5");
        check(b"to be, or not to be", "a split of it has 2, and needs at least `seq_len` + 1 = 9");
        let odd = file(dir.path(), "odd.bin", b"abc");
        let source = Source::Binary {
            train: odd.clone(),
            val: odd,
            test: None,
            dtype: Some(TokenDtype::Uint16),
            vocabulary: 5,
        };
        let error =
            open(&source, 8, &SplitPlan::NONE, CacheCheck::Whole).err().unwrap().to_string();
        assert!(error.contains("its 3 bytes are not a whole number of 16-bit tokens"), "{error}");
    }
}
