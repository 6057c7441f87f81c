//! Texts of unequal lengths as tokens, of which some count: each is one sample.
//!
//! They are cut once, by all threads; those of large files are kept, and read by all ranks where
//! they lie (`token_cache.rs`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use crate::error::{Error, SampleError, shown};
use crate::plan::SplitPlan;
use crate::rng::Key;
use crate::sources::holdout::{Parts, SampleIndices};
use crate::sources::text::token_buffer::TokenBuffer;
use crate::sources::text::token_cache::{CHECKSUM, CacheCheck, Cacheable};
use crate::sources::text::token_file::TokenFile;
use crate::{Dataset, IGNORED, Splits, Target, read};

/// Magic bytes of a cached file.
const FORMAT: &[u8; 16] = b"ddprun entries 1";
/// Bytes before the entries: the format, and how many there are.
const HEADER_BYTES: usize = FORMAT.len() + 8;
/// Bytes of an entry before the tokens: where its tokens end, and its place.
const ENTRY_BYTES: usize = 16;
/// Bits of a place that are the line in its file; those above are the number of the file.
const LINE_BITS: u32 = 40;
/// The bit of a token that counts. Vocabularies are smaller.
const COUNTS: u32 = 1 << 31;

/// A token, and whether it counts.
pub(super) type Counted = (u32, bool);

/// All entries of one file or several.
#[derive(Debug)]
pub(super) struct Entries {
    /// Tokens of one entry after the other, with [`COUNTS`].
    tokens: TokenBuffer,
    /// End of each entry's tokens, and its place: the file, and its line or position there.
    ends: Vec<(u64, u64)>,
    /// Errors of entries without tokens.
    wrong: BTreeMap<usize, String>,
}

impl Entries {
    /// Reads the entries of `files`, one file after the other, each entry with its line or place, and
    /// cuts them by all threads.
    pub(super) fn of_files<T: Sync>(
        files: &[PathBuf],
        read: impl Fn(&Path) -> Result<Vec<(u64, T)>, Error>,
        cut: impl Fn(&T) -> Result<Vec<Counted>, String> + Sync,
    ) -> Result<Self, Error> {
        let (mut tokens, mut ends, mut wrong) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (file, path) in (0_u64..).zip(files) {
            let entries = read(path)?;
            let all: Vec<_> = entries.par_iter().map(|(_, entry)| cut(entry)).collect();
            for ((line, _), found) in entries.iter().zip(all) {
                match found {
                    Ok(found) => tokens.extend(found.into_iter().map(with_bit)),
                    Err(why) => drop(wrong.insert(ends.len(), why)),
                }
                ends.push((tokens.len() as u64, file << LINE_BITS | *line));
            }
        }
        Ok(Self { tokens: TokenBuffer::memory(tokens), ends, wrong })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The line or place of an entry in its file.
    fn line(&self, index: usize) -> u64 {
        self.ends[index].1 & ((1 << LINE_BITS) - 1)
    }

    /// The number of the file that an entry is in.
    fn file(&self, index: usize) -> usize {
        (self.ends[index].1 >> LINE_BITS) as usize
    }

    /// The first entry that cannot be cut, by the number of its file and its line, why, and how many
    /// there are.
    pub(super) fn first_wrong(&self) -> Option<(usize, u64, &str, usize)> {
        let (&index, why) = self.wrong.first_key_value()?;
        Some((self.file(index), self.line(index), why, self.wrong.len()))
    }

    /// Bytes that each rank holds in memory.
    pub(super) fn held(&self) -> u64 {
        let tokens = match &self.tokens {
            TokenBuffer::Memory(..) => 4 * self.tokens.len(),
            TokenBuffer::File(..) => 0,
        };
        (tokens + ENTRY_BYTES * self.ends.len()) as u64
    }

    /// At most so many tokens of an entry, from its first on.
    fn read(&self, index: usize, most: usize) -> std::io::Result<Vec<Counted>> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].0) as usize;
        let n = (self.ends[index].0 as usize - start).min(most);
        Ok(self.tokens.read(start, n)?.into_iter().map(without_bit).collect())
    }
}

fn with_bit((token, counts): Counted) -> u32 {
    if counts { token | COUNTS } else { token }
}

fn without_bit(stored: u32) -> Counted {
    (stored & !COUNTS, stored & COUNTS != 0)
}

/// Format, number of entries, end and line of each in 64 bits, all tokens in 32 bits; numbers
/// little-endian.
impl Cacheable for Entries {
    fn open(path: &Path) -> Option<Self> {
        let file = read::open(path).ok()?;
        let bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let n = header.strip_prefix(FORMAT)?.try_into().ok().map(u64::from_le_bytes)?;
        let body = bytes.checked_sub(HEADER_BYTES + CHECKSUM)?;
        let of_entries = usize::try_from(n).ok()?.checked_mul(ENTRY_BYTES)?;
        let n_tokens = body.checked_sub(of_entries).filter(|rest| rest % 4 == 0)? / 4;
        let mut stored = vec![0; of_entries];
        file.read_exact_at(&mut stored, HEADER_BYTES as u64).ok()?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
        let entry = |entry: &[u8]| (number(&entry[..8]), number(&entry[8..]));
        let ends: Vec<(u64, u64)> = stored.chunks_exact(ENTRY_BYTES).map(entry).collect();
        let ascends = ends.is_sorted_by_key(|(end, _)| *end);
        let last = ends.last().map_or(0, |(end, _)| *end);
        if !ascends || last != n_tokens as u64 {
            return None;
        }
        let tokens = TokenFile::at(file, (HEADER_BYTES + of_entries) as u64, n_tokens);
        Some(Self { tokens: TokenBuffer::file(tokens), ends, wrong: BTreeMap::new() })
    }

    fn encode(&self) -> Option<Vec<u8>> {
        if !self.wrong.is_empty() {
            return None;
        }
        let mut bytes = FORMAT.to_vec();
        bytes.extend_from_slice(&(self.ends.len() as u64).to_le_bytes());
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
    /// It has no answer, or the tokenizer has no token for it.
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
                let what = what + "they have no answers for which the tokenizer has tokens";
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
            "{unanswered} of {} without a token that counts: they have no answers for which the \
             tokenizer has tokens",
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
    /// The file, folder or pattern that was named.
    pub(super) path: PathBuf,
    /// The files that it is.
    pub(super) files: Vec<PathBuf>,
    /// Name of an entry of them.
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
        let is_wrong = entries.wrong.contains_key(&(at as usize));
        if is_wrong || first(self.seq_len + 1).is_some() {
            return None;
        }
        Some(first(usize::MAX).map_or(UncountedReason::Unanswered, UncountedReason::CutOff))
    }

    /// Splits entries into samples: the last ones validate, a share of `val_ratio`, unless `split`
    /// holds out some at random. A check of the whole file notes those without a token that counts.
    pub(super) fn splits(
        self,
        entries: &Arc<Entries>,
        val_ratio: f64,
        split: &SplitPlan,
        check: CacheCheck,
        classes: Vec<String>,
    ) -> Result<(Splits, Vec<String>), Error> {
        let dealt = parts(entries.len(), &self.plural(), val_ratio, split)
            .map_err(|what| Error::Format { path: self.path.clone(), what })?;
        let notes = match check {
            CacheCheck::Whole => uncounted(&dealt, entries, &self)?,
            CacheCheck::Header => Vec::new(),
        };
        let Parts { train, val, test } = dealt;
        let part = |places: SampleIndices| -> Arc<dyn Dataset> {
            Arc::new(Samples::new(entries.clone(), self.clone(), places))
        };
        let splits = Splits { train: part(train), val: part(val), test: test.map(part), classes };
        Ok((splits, notes))
    }

    /// The file that an entry is in.
    fn file_of(&self, entries: &Entries, index: usize) -> &Path {
        self.files.get(entries.file(index)).map_or(&self.path, PathBuf::as_path)
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
        let (noun, place) = (self.form.noun, self.place(index));
        let file = self.form.file_of(&self.entries, place);
        format!("{noun} {} of `{}`", self.entries.line(place), shown(file))
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        let place = self.place(index);
        let file = self.form.file_of(&self.entries, place).to_owned();
        Some((file, Some(self.entries.line(place))))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let SampleForm { noun, seq_len, end, all_count, .. } = self.form;
        let place = self.place(index);
        let path = || self.form.file_of(&self.entries, place).to_owned();
        if let Some(why) = self.entries.wrong.get(&place) {
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

    /// The entries of one file.
    fn of<T: Clone + Sync>(
        entries: &[(u64, T)],
        cut: impl Fn(&T) -> Result<Vec<Counted>, String> + Sync,
    ) -> Entries {
        Entries::of_files(&["chats.jsonl".into()], |_| Ok(entries.to_vec()), cut).unwrap()
    }

    fn entries() -> Entries {
        let entries = [(1, vec![(7, false), (8, true)]), (3, vec![]), (4, vec![(1 << 20, true)])];
        of(&entries, |entry: &Vec<Counted>| Ok(entry.clone()))
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
            Entries::open(&path).map(|entries| read(&entries))
        };
        assert_eq!(opened(&bytes), Some(read(&entries())));
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
        let cut = |token: &u32| {
            if *token == 0 { Err("no".to_owned()) } else { Ok(vec![(*token, true); 3]) }
        };
        let entries = of(&[(2, 5), (4, 0), (6, 7)], cut);
        assert_eq!(entries.first_wrong(), Some((0, 4, "no", 1)));
        assert!(entries.encode().is_none());
        let path: PathBuf = "chats.jsonl".into();
        let (files, noun) = (vec![path.clone()], "conversation");
        let form = SampleForm { path, files, noun, seq_len: 4, end: 9, all_count: false };
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
