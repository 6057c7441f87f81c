//! The entries of a file as parts to train, validate and test on, and what is wrong or doubtful
//! about them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::error::{Error, shown};
use crate::plan::{OnBadSample, SplitPlan};
use crate::sources::holdout::{Parts, SampleIndices};
use crate::sources::text::entries::{Entries, median};
use crate::sources::text::packs::Packs;
use crate::sources::text::samples::{SampleForm, Samples, UncountedReason};
use crate::sources::text::token_cache::CacheCheck;
use crate::{Dataset, Splits};

/// The reason why answers are not predicted for files of prompts.
pub(super) const GENERATED: &str =
    "answers are generated one by one: use `ddprun sample --prompt TEXT`";

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

/// Splits entries into samples: the last ones validate, a share of `val_ratio`, unless `split`
/// holds out some at random.
pub(super) fn splits(
    form: &SampleForm,
    entries: &Arc<Entries>,
    val_ratio: f64,
    split: &SplitPlan,
    check: EntryCheck,
    classes: Vec<String>,
) -> Result<(Splits, Vec<String>), Error> {
    let mut notes = match check {
        EntryCheck::Survey(on_bad_sample) => {
            let wrong = wrong_note(entries, form, on_bad_sample)?;
            let others = [unused_note(entries, form), cut_note(entries, form)];
            wrong.into_iter().chain(others.into_iter().flatten()).collect()
        }
        EntryCheck::Open => Vec::new(),
    };
    let dealt = parts(entries.len(), &form.plural(), val_ratio, split)
        .map_err(|what| Error::Format { path: form.path.clone(), what })?;
    if let EntryCheck::Survey(_) = check {
        notes.extend(uncounted(&dealt, entries, form)?);
    }
    let Parts { train, val, test } = dealt;
    let samples = |places| Samples::new(entries.clone(), form.clone(), places);
    let part = |places| -> Arc<dyn Dataset> { Arc::new(samples(places)) };
    let train: Arc<dyn Dataset> =
        if form.packing { Arc::new(Packs::new(samples(train))) } else { part(train) };
    let splits = Splits { train, val: part(val), test: test.map(part), classes };
    Ok((splits, notes))
}

/// Splits pairs of entries, the chosen ones and the rejected ones, as [`splits`] does. Pairs of which
/// an entry has no token that counts are left out.
pub(super) fn pair_parts(
    form: &SampleForm,
    both: &[Arc<Entries>; 2],
    val_ratio: f64,
    split: &SplitPlan,
    check: EntryCheck,
) -> Result<(Parts<SampleIndices>, Vec<String>), Error> {
    let [chosen, rejected] = both;
    let mut notes = Vec::new();
    if let EntryCheck::Survey(on_bad_sample) = check {
        for entries in both {
            notes.extend(wrong_note(entries, form, on_bad_sample)?);
        }
        notes.extend(unused_note(chosen, form));
    }
    let of_format = |what| Error::Format { path: form.path.clone(), what };
    let dealt = parts(chosen.len(), &form.plural(), val_ratio, split).map_err(of_format)?;
    let why = |at: u32| form.why_idle(chosen, at).or_else(|| form.why_idle(rejected, at));
    let idle: Vec<(u32, UncountedReason)> =
        (0..chosen.len() as u32).into_par_iter().filter_map(|at| Some((at, why(at)?))).collect();
    if idle.is_empty() {
        return Ok((dealt, notes));
    }
    let (idle, reasons): (BTreeSet<u32>, Vec<UncountedReason>) = idle.into_iter().unzip();
    let begins = begins(&reasons);
    let (n, seq_len, all) = (idle.len(), form.seq_len, form.several(chosen.len()));
    let used = |SampleIndices(places): SampleIndices| {
        SampleIndices(places.into_iter().filter(|at| !idle.contains(at)).collect())
    };
    let Parts { train, val, test } = dealt;
    let kept = Parts { train: used(train), val: used(val), test: test.map(used) };
    for (part, SampleIndices(places)) in kept.each() {
        if !places.is_empty() {
            continue;
        }
        let part = part.name();
        let what = format!("none of the pairs of `{part}` has two answers with tokens that count");
        return Err(if begins.is_empty() {
            of_format(what)
        } else {
            let what = what + &format!(": `data.seq_len = {seq_len}` cuts answers off");
            Error::AnswersCutOff { path: form.path.clone(), what, begin: median(begins) }
        });
    }
    if let EntryCheck::Survey(_) = check {
        let why = if begins.is_empty() {
            "the tokenizer has no tokens for an answer".to_owned()
        } else {
            format!("`data.seq_len = {seq_len}` cuts an answer off")
        };
        notes.push(format!("{n} of {all} are left out: {why}"));
    }
    Ok((kept, notes))
}

/// A note of the keys that have no effect, if there are some.
fn unused_note(entries: &Entries, form: &SampleForm) -> Option<String> {
    const MAX_NAMES: usize = 10;
    let named = entries.unused().iter().take(MAX_NAMES).map(|key| format!("`{key}`"));
    let mut named = named.collect::<Vec<_>>().join(", ");
    let more = entries.unused().len().saturating_sub(MAX_NAMES);
    if more > 0 {
        named += &format!(" and {more} more");
    }
    let nouns = form.plural();
    (!entries.unused().is_empty()).then(|| format!("keys of {nouns} that have no effect: {named}"))
}

/// Refuses entries that cannot be used, or notes them where such samples are skipped.
fn wrong_note(
    entries: &Entries,
    form: &SampleForm,
    on_bad_sample: OnBadSample,
) -> Result<Option<String>, Error> {
    let Some((index, why, n)) = entries.first_wrong() else { return Ok(None) };
    let (path, line) = (form.file_of(entries, index).to_owned(), entries.line(index));
    let unit = entries.unit();
    let of = format!("{n} of {}", form.several(entries.len()));
    if on_bad_sample == OnBadSample::Skip && n < entries.len() {
        let file = match form.files.len() {
            0 | 1 => String::new(),
            _ => format!("`{}`, ", shown(&path)),
        };
        return Ok(Some(format!(
            "{of} cannot be used and are skipped; {file}{unit} {line}: {why}"
        )));
    }
    let what = match n {
        1 => why.to_owned(),
        _ => format!("{why} ({of} cannot be used)"),
    };
    let help = "repair it; `data.on_bad_sample = \"skip\"` leaves such ones out";
    let help = help.to_owned();
    Err(match unit {
        "line" => Error::Cell { path, line, what, help },
        _ => Error::WithHelp { path, what: format!("{unit} {line}: {what}"), help },
    })
}

/// A note of the entries that have more tokens than a sample, if there are some.
fn cut_note(entries: &Entries, form: &SampleForm) -> Option<String> {
    // The last token is only expected.
    let cut = entries.lengths().filter(|&length| length > form.seq_len + 1).count();
    let longest = entries.lengths().max().unwrap_or(0);
    let (of, seq_len) = (form.several(entries.len()), form.seq_len);
    (cut > 0).then(|| {
        format!(
            "{cut} of {of} are longer than `data.seq_len = {seq_len}` and are cut; the longest has \
             {longest} tokens"
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::text::entries::CutEntry;

    #[test]
    fn an_entry_that_cannot_be_used_is_refused_or_noted() {
        let of = |n: usize| Ok(CutEntry { tokens: vec![(5, true); n], ..CutEntry::default() });
        let wrong = (4, Err("no".to_owned()));
        let entries = Entries::new(vec![(2, of(3)), wrong.clone(), (6, of(9))], "line");
        let form = SampleForm::example();
        let told = wrong_note(&entries, &form, OnBadSample::Error).unwrap_err().to_string();
        assert_eq!(told, "`chats.jsonl`, line 4: no");
        let note = wrong_note(&entries, &form, OnBadSample::Skip).unwrap().unwrap();
        assert_eq!(note, "1 of 3 conversations cannot be used and are skipped; line 4: no");
        let none = Entries::new(vec![wrong], "entry");
        let none = wrong_note(&none, &form, OnBadSample::Skip).unwrap_err();
        assert_eq!(none.to_string(), "`chats.jsonl`: entry 4: no");
        let cut = cut_note(&entries, &form).unwrap();
        assert!(
            cut.starts_with("1 of 3 conversations are longer than `data.seq_len = 4`"),
            "{cut}"
        );
    }
}
