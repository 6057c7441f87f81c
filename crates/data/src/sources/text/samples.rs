//! Entries as samples: each is one, with the token that is to follow each of its tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{SampleError, shown};
use crate::rng::Key;
use crate::sources::holdout::SampleIndices;
use crate::sources::text::entries::{Counted, Entries};
use crate::{Dataset, IGNORED, Target};

/// Some of the entries as samples.
pub(super) struct Samples {
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
    /// True if samples to train on hold several entries.
    pub(super) packing: bool,
}

impl SampleForm {
    /// Reason why no token counts, if none before the sample's end does.
    pub(super) fn why_idle(&self, entries: &Entries, at: u32) -> Option<UncountedReason> {
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

    /// The file that an entry is in.
    pub(super) fn file_of(&self, entries: &Entries, index: usize) -> &Path {
        self.files.get(entries.file(index)).map_or(&self.path, PathBuf::as_path)
    }

    /// "conversations"
    pub(super) fn plural(&self) -> String {
        let stem = self.noun.strip_suffix('y');
        stem.map_or_else(|| format!("{}s", self.noun), |stem| format!("{stem}ies"))
    }

    /// "3 conversations"
    pub(super) fn several(&self, n: usize) -> String {
        if n == 1 { format!("1 {}", self.noun) } else { format!("{n} {}", self.plural()) }
    }
}

/// Reason why no token of a sample counts.
#[derive(Clone, Copy)]
pub(super) enum UncountedReason {
    /// `seq_len` cuts its answers off, which begin after so many tokens.
    CutOff(usize),
    /// It has no answer to learn, or the tokenizer has no token for it.
    Unanswered,
}

impl Samples {
    pub(super) fn new(
        entries: Arc<Entries>,
        form: SampleForm,
        SampleIndices(places): SampleIndices,
    ) -> Self {
        let shape = [form.seq_len];
        Self { entries, form, places, shape }
    }

    fn place(&self, index: usize) -> usize {
        self.places[index] as usize
    }

    pub(super) fn path(&self) -> &Path {
        &self.form.path
    }

    /// The token that fills up a sample.
    pub(super) fn end(&self) -> u32 {
        self.form.end
    }

    /// Places of a sample before its padding: the last token is only expected. 0 = it is empty, or
    /// cannot be used.
    pub(super) fn used(&self, index: usize) -> usize {
        self.entries.n_tokens(self.place(index)).saturating_sub(1).min(self.form.seq_len)
    }

    /// Input and expected tokens of a sample, without padding.
    pub(super) fn tokens(&self, index: usize) -> Result<(Vec<u32>, Vec<u32>), SampleError> {
        let SampleForm { noun, seq_len, all_count, .. } = self.form;
        let place = self.place(index);
        let path = || self.form.file_of(&self.entries, place).to_owned();
        if let Some(why) = self.entries.wrong(place) {
            let reason = format!("{noun} {}: {why}", self.entries.line(place));
            return Err(SampleError::Decode { path: path(), reason });
        }
        let entry = self.entries.read(place, seq_len + 1);
        let entry = entry.map_err(|source| SampleError::Io { path: path(), source })?;
        let (tokens, counts): (Vec<u32>, Vec<bool>) = entry.into_iter().unzip();
        Ok(shifted(tokens, |i| all_count || counts[i], seq_len))
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

    fn length(&self, index: usize) -> Option<usize> {
        Some(self.used(index).max(1))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let (seen, next) = self.tokens(index)?;
        let (seen, next) = filled_up(seen, next, self.form.seq_len, self.form.end);
        values.extend(seen.into_iter().map(|token| token as f32));
        Ok(Target::Classes(next))
    }
}

/// Input of `tokens` in a context of `seq_len`, and the token that is to follow each one; the rest
/// is filled with `end`, which does not count there. `counts` is true for tokens that count.
pub(super) fn padded(
    tokens: Vec<u32>,
    counts: impl Fn(usize) -> bool,
    seq_len: usize,
    end: u32,
) -> (Vec<u32>, Vec<u32>) {
    let (seen, next) = shifted(tokens, counts, seq_len);
    filled_up(seen, next, seq_len, end)
}

/// Input of `tokens`, of at most `seq_len`, and the token that is to follow each one.
fn shifted(
    mut tokens: Vec<u32>,
    counts: impl Fn(usize) -> bool,
    seq_len: usize,
) -> (Vec<u32>, Vec<u32>) {
    tokens.truncate(seq_len + 1);
    let counted = |i: usize| if counts(i) { tokens[i] } else { IGNORED };
    let next: Vec<u32> = (1..tokens.len()).map(counted).collect();
    tokens.truncate(next.len());
    (tokens, next)
}

/// Fills up a sample with `end`, which does not count.
pub(super) fn filled_up(
    mut seen: Vec<u32>,
    mut next: Vec<u32>,
    seq_len: usize,
    end: u32,
) -> (Vec<u32>, Vec<u32>) {
    seen.resize(seq_len, end);
    next.resize(seq_len, IGNORED);
    (seen, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::text::entries::CutEntry;

    impl SampleForm {
        /// Conversations of one file in four tokens each.
        pub(in crate::sources::text) fn example() -> Self {
            let path = PathBuf::from("chats.jsonl");
            let files = vec![path.clone()];
            let (noun, all_count, packing) = ("conversation", false, false);
            Self { path, files, noun, seq_len: 4, end: 9, all_count, packing }
        }
    }

    #[test]
    fn a_sample_is_an_entry_and_its_padding_and_a_bad_one_says_why() {
        let of =
            |token: u32| Ok(CutEntry { tokens: vec![(token, true); 3], ..CutEntry::default() });
        let all = vec![(2, of(5)), (4, Err("no".to_owned())), (6, of(7))];
        let form = SampleForm::example();
        let entries = Arc::new(Entries::new(all, "line"));
        let samples = Samples::new(entries, form, SampleIndices(vec![2, 1]));
        let mut values = Vec::new();
        let next = samples.load(0, None, &mut values).unwrap();
        let expected = Target::Classes(vec![7, 7, IGNORED, IGNORED]);
        assert_eq!((values, next), (vec![7.0, 7.0, 9.0, 9.0], expected));
        assert_eq!((samples.length(0), samples.used(1)), (Some(2), 0));
        let error = samples.load(1, None, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("`chats.jsonl`: conversation 4: no"), "{error}");
        assert_eq!(samples.name(0), "conversation 6 of `chats.jsonl`");
    }
}
