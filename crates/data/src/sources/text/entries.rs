//! Texts of unequal lengths as tokens, of which some count: each is one sample.
//!
//! They are cut once, by all threads; those of large files are kept, and read by all ranks where
//! they lie (`token_cache.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use crate::error::{Error, SampleError, shown};
use crate::plan::{OnBadSample, SplitPlan};
use crate::rng::Key;
use crate::sources::holdout::{Parts, SampleIndices};
use crate::sources::text::token_buffer::TokenBuffer;
use crate::sources::text::token_cache::{CHECKSUM, CacheCheck, Cacheable};
use crate::sources::text::token_file::TokenFile;
use crate::{Dataset, IGNORED, Splits, Target, read};

/// Magic bytes of a cached file.
const FORMAT: &[u8; 16] = b"ddprun entries 2";
/// Bytes before the unused keys: the format, how many entries there are, and the bytes of the keys.
const HEADER_BYTES: usize = FORMAT.len() + 16;
/// Bytes of an entry before the tokens: where its tokens end, and its line.
const ENTRY_BYTES: usize = 16;
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

/// All entries of a file.
#[derive(Debug)]
pub(super) struct Entries {
    /// Tokens of one entry after the other, with [`COUNTS`].
    tokens: TokenBuffer,
    /// End of each entry's tokens, and its line or position.
    ends: Vec<(u64, u64)>,
    /// Errors of entries without tokens.
    wrong: BTreeMap<usize, String>,
    /// "line", or "entry" of a list.
    unit: &'static str,
    /// Keys of some entry that have no effect.
    unused: BTreeSet<String>,
}

impl Entries {
    /// Entries in their order, each with its line or place, called `unit`, and its tokens or what
    /// is wrong with it.
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

    /// The line or place of an entry.
    pub(super) fn line(&self, index: usize) -> u64 {
        self.ends[index].1
    }

    /// What is wrong with an entry, if something is.
    pub(super) fn wrong(&self, index: usize) -> Option<&str> {
        self.wrong.get(&index).map(String::as_str)
    }

    /// A note of the keys that have no effect, if there are some.
    fn unused_note(&self, form: &SampleForm) -> Option<String> {
        const MAX_NAMES: usize = 10;
        let named = self.unused.iter().take(MAX_NAMES).map(|key| format!("`{key}`"));
        let mut named = named.collect::<Vec<_>>().join(", ");
        let more = self.unused.len().saturating_sub(MAX_NAMES);
        if more > 0 {
            named += &format!(" and {more} more");
        }
        let nouns = form.plural();
        (!self.unused.is_empty()).then(|| format!("keys of {nouns} that have no effect: {named}"))
    }

    /// Refuses entries that cannot be used, or notes them where such samples are skipped.
    fn wrong_note(
        &self,
        form: &SampleForm,
        on_bad_sample: OnBadSample,
    ) -> Result<Option<String>, Error> {
        let Some((&index, why)) = self.wrong.first_key_value() else { return Ok(None) };
        let (line, unit) = (self.line(index), self.unit);
        let of = format!("{} of {}", self.wrong.len(), form.several(self.len()));
        if on_bad_sample == OnBadSample::Skip && self.wrong.len() < self.len() {
            return Ok(Some(format!("{of} cannot be used and are skipped; {unit} {line}: {why}")));
        }
        let what = match self.wrong.len() {
            1 => why.clone(),
            _ => format!("{why} ({of} cannot be used)"),
        };
        let help = "repair it; `data.on_bad_sample = \"skip\"` leaves such ones out";
        let (path, help) = (form.path.clone(), help.to_owned());
        Err(match unit {
            "line" => Error::Cell { path, line, what, help },
            _ => Error::WithHelp { path, what: format!("{unit} {line}: {what}"), help },
        })
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
    fn n_tokens(&self, index: usize) -> usize {
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
    fn lengths(&self) -> impl Iterator<Item = usize> {
        let used = (0..self.len()).filter(|&index| self.wrong(index).is_none());
        used.map(|index| self.n_tokens(index))
    }

    /// "up to 512 tokens (median 97)"
    pub(super) fn length_words(&self, seq_len: usize) -> String {
        let lengths: Vec<usize> = self.lengths().collect();
        let median = if lengths.is_empty() { 0 } else { median(lengths) };
        format!("up to {seq_len} tokens (median {median})")
    }

    /// A note of the entries that have more tokens than a sample, if there are some.
    fn cut_note(&self, form: &SampleForm) -> Option<String> {
        // The last token is only expected.
        let cut = self.lengths().filter(|&length| length > form.seq_len + 1).count();
        let longest = self.lengths().max().unwrap_or(0);
        let (of, seq_len) = (form.several(self.len()), form.seq_len);
        (cut > 0).then(|| {
            format!(
                "{cut} of {of} are longer than `data.seq_len = {seq_len}` and are cut; the longest has \
                 {longest} tokens"
            )
        })
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

/// Splits `n` entries into parts: the last ones validate, a share of `val_ratio`, unless `split`
/// holds out some at random. `noun` names entries in messages.
fn parts(
    n: usize,
    noun: &str,
    val_ratio: f64,
    split: &SplitPlan,
) -> Result<Parts<SampleIndices>, String> {
    let share = if split.holds_val() { 0.0 } else { val_ratio };
    let n_val = (n as f64 * share).round() as usize;
    let n_train = n.saturating_sub(n_val);
    if n_train == 0 || (n_val == 0 && !split.holds_val()) {
        return Err(format!(
            "`data.val_ratio` leaves {n_train} of its {n} {noun} to train on and {n_val} to \
             validate on"
        ));
    }
    let places = |range: Range<usize>| SampleIndices(range.map(|place| place as u32).collect());
    Parts { train: places(0..n_train), val: places(n_train..n), test: None }.held_back(split)
}

/// Reason why no token of a sample counts.
#[derive(Clone, Copy)]
enum UncountedReason {
    /// `seq_len` cuts its answers off, which begin after so many tokens.
    CutOff(usize),
    /// It has no answer to learn, or the tokenizer has no token for it.
    Unanswered,
}

/// Refuses parts of which no sample has a token that counts; where some have none, says how many.
fn uncounted(
    parts: &Parts<SampleIndices>,
    entries: &Entries,
    form: &SampleForm,
) -> Result<Vec<String>, Error> {
    let empty = SampleIndices::default();
    let named = [("train", &parts.train), ("validate", &parts.val)];
    let named = named.into_iter().chain([("test", parts.test.as_ref().unwrap_or(&empty))]);
    let mut all = 0;
    let mut cut = Vec::new();
    let mut unanswered = 0;
    for (word, SampleIndices(places)) in named {
        let idle: Vec<UncountedReason> =
            places.par_iter().filter_map(|&at| form.why_idle(entries, at)).collect();
        let begins = begins(&idle);
        if idle.len() == places.len() && !places.is_empty() {
            let path = form.path.clone();
            let of = form.several(places.len());
            let what = format!("none of the {of} to {word} on has a token that counts: ");
            return Err(if begins.is_empty() {
                let what = what
                    + "they have no answers to learn for which the \
                                   tokenizer has tokens";
                Error::Format { path, what }
            } else {
                let seq_len = form.seq_len;
                let what = what + &format!("`data.seq_len = {seq_len}` cuts the answers off");
                Error::AnswersCutOff { path, what, begin: median(begins) }
            });
        }
        all += places.len();
        unanswered += idle.len() - begins.len();
        cut.extend(begins);
    }
    let mut notes = Vec::new();
    if !cut.is_empty() {
        notes.push(format!(
            "{} of {} without a token that counts: `data.seq_len = {}` cuts their answers off, half \
             of which begin after {} tokens",
            cut.len(),
            form.several(all),
            form.seq_len,
            median(cut)
        ));
    }
    if unanswered > 0 {
        notes.push(format!(
            "{unanswered} of {} without a token that counts: they have no answers to learn for which \
             the tokenizer has tokens",
            form.several(all)
        ));
    }
    Ok(notes)
}

/// Tokens before the answers that are cut off.
fn begins(idle: &[UncountedReason]) -> Vec<usize> {
    let begin = |idle: &UncountedReason| match idle {
        UncountedReason::CutOff(begin) => Some(*begin),
        UncountedReason::Unanswered => None,
    };
    idle.iter().filter_map(begin).collect()
}

fn median(mut of: Vec<usize>) -> usize {
    of.sort_unstable();
    of[of.len() / 2]
}

/// Thoroughness of the opening of a file of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryCheck {
    /// All entries are checked, once for all ranks.
    Survey(OnBadSample),
    /// They were checked before.
    Open,
}

impl EntryCheck {
    pub(super) fn of_cache(self) -> CacheCheck {
        match self {
            Self::Survey(_) => CacheCheck::Whole,
            Self::Open => CacheCheck::Header,
        }
    }
}

/// Some of the entries as samples.
struct Samples {
    entries: Arc<Entries>,
    form: SampleForm,
    places: Vec<u32>,
    shape: [usize; 1],
}

/// Form of the samples made of entries.
#[derive(Clone, Debug)]
pub(super) struct SampleForm {
    /// The file, and what an entry of it is called.
    pub(super) path: PathBuf,
    pub(super) noun: &'static str,
    /// Tokens of a sample.
    pub(super) seq_len: usize,
    /// Token that fills up a sample.
    pub(super) end: u32,
    /// True if all tokens count.
    pub(super) all_count: bool,
}

impl SampleForm {
    /// Reason why no token counts, if none before the sample's end does.
    fn why_idle(&self, entries: &Entries, at: u32) -> Option<UncountedReason> {
        let counts =
            |(index, (_, counts)): &(usize, Counted)| *index > 0 && (*counts || self.all_count);
        let first = |most: usize| {
            let tokens = entries.read(at as usize, most).unwrap_or_default();
            tokens.into_iter().enumerate().find(counts).map(|(index, _)| index)
        };
        // What is wrong with an entry that cannot be cut is told elsewhere.
        let is_wrong = entries.wrong(at as usize).is_some();
        if is_wrong || first(self.seq_len + 1).is_some() {
            return None;
        }
        Some(first(usize::MAX).map_or(UncountedReason::Unanswered, UncountedReason::CutOff))
    }

    /// Splits entries into samples: the last ones validate, a share of `val_ratio`, unless `split`
    /// holds out some at random.
    pub(super) fn splits(
        self,
        entries: &Arc<Entries>,
        val_ratio: f64,
        split: &SplitPlan,
        check: EntryCheck,
        classes: Vec<String>,
    ) -> Result<(Splits, Vec<String>), Error> {
        let mut notes = match check {
            EntryCheck::Survey(on_bad_sample) => {
                let wrong = entries.wrong_note(&self, on_bad_sample)?;
                let others = [entries.unused_note(&self), entries.cut_note(&self)];
                wrong.into_iter().chain(others.into_iter().flatten()).collect()
            }
            EntryCheck::Open => Vec::new(),
        };
        let dealt = parts(entries.len(), &self.plural(), val_ratio, split)
            .map_err(|what| Error::Format { path: self.path.clone(), what })?;
        if let EntryCheck::Survey(_) = check {
            notes.extend(uncounted(&dealt, entries, &self)?);
        }
        let Parts { train, val, test } = dealt;
        let part = |places: SampleIndices| -> Arc<dyn Dataset> {
            Arc::new(Samples::new(entries.clone(), self.clone(), places))
        };
        let splits = Splits { train: part(train), val: part(val), test: test.map(part), classes };
        Ok((splits, notes))
    }

    /// "conversations"
    fn plural(&self) -> String {
        let stem = self.noun.strip_suffix('y');
        stem.map_or_else(|| format!("{}s", self.noun), |stem| format!("{stem}ies"))
    }

    /// "3 conversations"
    fn several(&self, n: usize) -> String {
        if n == 1 { format!("1 {}", self.noun) } else { format!("{n} {}", self.plural()) }
    }
}

impl Samples {
    fn new(entries: Arc<Entries>, form: SampleForm, SampleIndices(places): SampleIndices) -> Self {
        let shape = [form.seq_len];
        Self { entries, form, places, shape }
    }

    fn place(&self, index: usize) -> usize {
        self.places[index] as usize
    }
}

impl Dataset for Samples {
    fn len(&self) -> usize {
        self.places.len()
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
        let noun = self.form.noun;
        let line = self.entries.line(self.place(index));
        format!("{noun} {line} of `{}`", shown(&self.form.path))
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        Some((self.form.path.clone(), Some(self.entries.line(self.place(index)))))
    }

    /// The last token is only expected.
    fn length(&self, index: usize) -> Option<usize> {
        let tokens = self.entries.n_tokens(self.place(index));
        Some(tokens.saturating_sub(1).clamp(1, self.form.seq_len))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let SampleForm { noun, seq_len, end, all_count, .. } = self.form;
        let place = self.place(index);
        let path = || self.form.path.clone();
        if let Some(why) = self.entries.wrong(place) {
            let reason = format!("{noun} {}: {why}", self.entries.line(place));
            return Err(SampleError::Decode { path: path(), reason });
        }
        let entry = self.entries.read(place, seq_len + 1);
        let entry = entry.map_err(|source| SampleError::Io { path: path(), source })?;
        let (tokens, counts): (Vec<u32>, Vec<bool>) = entry.into_iter().unzip();
        let (seen, next) = padded(tokens, |i| all_count || counts[i], seq_len, end);
        values.extend(seen.into_iter().map(|token| token as f32));
        Ok(Target::Classes(next))
    }
}

/// Input of `tokens` in a context of `seq_len`, and the token that is to follow each one; the rest
/// is filled with `end`, which does not count there. `counts` is true for tokens that count.
pub(super) fn padded(
    mut tokens: Vec<u32>,
    counts: impl Fn(usize) -> bool,
    seq_len: usize,
    end: u32,
) -> (Vec<u32>, Vec<u32>) {
    tokens.truncate(seq_len + 1);
    let counted = |i: usize| if counts(i) { tokens[i] } else { IGNORED };
    let mut next: Vec<u32> = (1..tokens.len()).map(counted).collect();
    next.resize(seq_len, IGNORED);
    tokens.truncate(tokens.len().saturating_sub(1));
    tokens.resize(seq_len, end);
    (tokens, next)
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

    fn form() -> SampleForm {
        let (path, end) = ("chats.jsonl".into(), 9);
        SampleForm { path, noun: "conversation", seq_len: 4, end, all_count: false }
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
            Entries::open(&path).map(|entries| (read(&entries), entries.unused_note(&form())))
        };
        let note = "keys of conversations that have no effect: `id`, `messages.name`";
        assert_eq!(opened(&bytes), Some((read(&entries()), Some(note.to_owned()))));
        (0..bytes.len()).for_each(|length| drop(opened(&bytes[..length])));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                drop(opened(&flipped));
            }
        }
    }

    #[test]
    fn an_entry_that_cannot_be_cut_is_a_bad_sample_and_nothing_is_kept() {
        let wrong = (4, Err("no".to_owned()));
        let all = vec![cut(2, &[(5, true); 3]), wrong.clone(), cut(6, &[(7, true); 3])];
        let entries = Entries::new(all, "line");
        let (form, skip) = (form(), OnBadSample::Skip);
        let told = entries.wrong_note(&form, OnBadSample::Error).unwrap_err().to_string();
        assert_eq!(told, "`chats.jsonl`, line 4: no");
        let note = entries.wrong_note(&form, skip).unwrap().unwrap();
        assert_eq!(note, "1 of 3 conversations cannot be used and are skipped; line 4: no");
        let none = Entries::new(vec![wrong], "entry").wrong_note(&form, skip).unwrap_err();
        assert_eq!(none.to_string(), "`chats.jsonl`: entry 4: no");
        assert!(entries.encode().is_none());
        let samples = Samples::new(Arc::new(entries), form, SampleIndices(vec![2, 1]));
        let mut values = Vec::new();
        let next = samples.load(0, None, &mut values).unwrap();
        let none = crate::IGNORED;
        assert_eq!(
            (values, next),
            (vec![7.0, 7.0, 9.0, 9.0], Target::Classes(vec![7, 7, none, none]))
        );
        let error = samples.load(1, None, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("`chats.jsonl`: conversation 4: no"), "{error}");
        assert_eq!(samples.name(0), "conversation 6 of `chats.jsonl`");
    }
}
