//! `data.name = "instructions"`, instructions and how they are to be answered, in the form of
//! Stanford's Alpaca (Taori et al., 2023, <https://github.com/tatsu-lab/stanford_alpaca>): a JSON
//! list of `instruction`, `input` (may be empty) and `output`.
//!
//! Each becomes one text, the prompt, the answer and the token that ends it; what does not fit is
//! cut, what is left is filled with tokens that do not count. Prompt and answer are cut into tokens
//! apart, so that the border between them is known.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Modality, Offer, Options, OwnParts, Wrong};
use crate::data::error::{Error, SampleError, shown};
use crate::data::inputs::{Inputs, Predicting};
use crate::data::sources::holdout::{Parts, Places};
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::text::padded::padded;
use crate::data::tokenizer::Tokenizer;
use crate::data::{Dataset, Splits, Target, TextForm, read};
use crate::plan::SplitPlan;
use crate::rng::Key;

/// instructions and their answers, in Alpaca's form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instructions {
    /// a JSON list of `instruction`, `input` (may be empty) and `output`, as Alpaca's; each entry
    /// becomes one sample: the prompt of Stanford's Alpaca, up to "### Response:", then the answer.
    /// Losses are means over the tokens that count, however the entries of unequal length are
    /// spread over passes and ranks.
    #[schemars(extend("format" = "path"), example = "data/alpaca_data.json")]
    pub file: PathBuf,
    /// tokenizer: a tokenizer.json, as it lies beside a model on the `HuggingFace` hub.
    #[schemars(extend("format" = "path"), example = "weights/tokenizer.json")]
    pub tokenizer: PathBuf,
    /// context length in tokens; longer texts are cut, shorter ones are padded (padding is ignored
    /// in the loss).
    #[schemars(range(min = 2, max = 65_536), example = 256)]
    pub seq_len: usize,
    /// held-out fraction: the last entries are for validation, where `data.val_fraction` and
    /// `data.folds` deal out none.
    #[serde(default = "a_tenth")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
    /// compute the loss on answer tokens only.
    #[serde(default)]
    #[schemars(example = true)]
    pub mask_prompt: bool,
    /// the token that ends an answer. Default: the first of `</s>`, `<|endoftext|>`,
    /// `<|end_of_text|>`, `<|im_end|>`, `<|eot_id|>` and `<eos>` that the tokenizer knows.
    #[schemars(example = "</s>")]
    pub eos_token: Option<String>,
    /// when a run is over on one machine, this many tokens are sampled with its best
    /// weights and printed, as `ddprun sample` does. Default: none.
    #[schemars(range(min = 1, max = 1_048_576), example = 300)]
    pub sample_tokens: Option<u32>,
}

fn a_tenth() -> f64 {
    0.1
}

impl Kind for Instructions {
    const NAME: &'static str = "instructions";
    const OFFERS: &'static [Offer] =
        &[Offer::Samples(Modality::Text), Offer::Split(OwnParts::LAST)];

    fn check(&self) -> Vec<Wrong> {
        let what = "`char` cuts only `tokens`; `instructions` needs a tokenizer.json".to_owned();
        let wrong = Wrong { key: "tokenizer", with: &[], what };
        if self.tokenizer.as_os_str() == "char" { vec![wrong] } else { Vec::new() }
    }
}

impl DataSource for Instructions {
    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        open(self, &reading.asked.split)
    }

    fn survey(&self, asked: &Asked<'_>) -> Result<Survey, Error> {
        let counts = if self.mask_prompt { "answers count" } else { "prompts and answers count" };
        let line = format!("{}, up to {} tokens, {counts}", self.file.display(), self.seq_len);
        let tokenizer = Tokenizer::open(&self.tokenizer)?;
        let token_bytes = tokenizer.token_bytes().unwrap_or_default();
        let found =
            Survey { token_bytes, line, ..Survey::of(&open_with(self, tokenizer, &asked.split)?) };
        // They are kept as they are, some bytes per token.
        Ok(Survey { held: found.held_whole(), ..found })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(vec![Files::one("instructions", &self.file), Files::one("tokenizer", &self.tokenizer)])
    }

    fn inputs(&self, _: &Predicting<'_>) -> Result<Inputs, Error> {
        let why = "answers are generated one by one: use `ddprun sample --prompt TEXT`";
        Err(Error::NotPredicted { why })
    }

    fn text(&self) -> Option<TextForm> {
        let (tokenizer, eos_token) = (self.tokenizer.clone(), self.eos_token.clone());
        Some(TextForm::Answers { tokenizer, eos_token })
    }

    fn sample_tokens(&self) -> Option<u32> {
        self.sample_tokens
    }
}

/// One entry of the list.
#[derive(Debug, Deserialize)]
struct Entry {
    instruction: String,
    #[serde(default)]
    input: String,
    output: String,
}

/// What stands before the answer: Stanford's prompt, which ends at the colon. (alpaca-lora's
/// template ends with a line break after it.)
pub fn prompt(instruction: &str, input: &str) -> String {
    if input.is_empty() {
        return format!(
            "Below is an instruction that describes a task. Write a response that appropriately completes the \
             request.\n\n### Instruction:\n{instruction}\n\n### Response:"
        );
    }
    format!(
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a \
         response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### \
         Input:\n{input}\n\n### Response:"
    )
}

/// Opens both parts, of which the last entries are the second, with the vocabulary in the order of
/// its tokens.
///
/// # Errors
///
/// A file is absent or not what it should be, there is no token that ends a text, or a part has no
/// entry.
pub(crate) fn open(source: &Instructions, split: &SplitPlan) -> Result<Splits, Error> {
    open_with(source, Tokenizer::open(&source.tokenizer)?, split)
}

/// The same with the tokenizer that was read before.
fn open_with(
    source: &Instructions,
    tokenizer: Tokenizer,
    split: &SplitPlan,
) -> Result<Splits, Error> {
    let end = tokenizer.end(source.eos_token.as_deref()).ok_or_else(|| {
        let what = match &source.eos_token {
            Some(name) => format!("it has no token `{name}`, which `data.eos_token` names"),
            None => "it has none of the usual end-of-text tokens: set `data.eos_token`".to_owned(),
        };
        Error::Format { path: source.tokenizer.clone(), what }
    })?;
    let entries = entries(source)?;
    let Parts { train, val, test } = parts(source, entries.len(), split)
        .map_err(|what| Error::Format { path: source.file.clone(), what })?;
    let classes = tokenizer.vocabulary();
    let all = Arc::new(All { source: source.clone(), tokenizer, end, entries });
    let part = |Places(places): Places| -> Arc<dyn Dataset> {
        Arc::new(Part { all: all.clone(), places, shape: [source.seq_len] })
    };
    Ok(Splits { train: part(train), val: part(val), test: test.map(part), classes })
}

/// Which of `n` entries are for what: the last ones validate where none are dealt out.
fn parts(source: &Instructions, n: usize, split: &SplitPlan) -> Result<Parts<Places>, String> {
    let share = if split.holds_val() { 0.0 } else { source.val_ratio };
    let n_val = (n as f64 * share).round() as usize;
    let n_train = n.saturating_sub(n_val);
    if n_train == 0 || (n_val == 0 && !split.holds_val()) {
        return Err(format!(
            "`data.val_ratio` leaves {n_train} of its {n} entries to train on and {n_val} to \
             validate on"
        ));
    }
    let places = |range: Range<usize>| Places(range.map(|place| place as u32).collect());
    Parts { train: places(0..n_train), val: places(n_train..n), test: None }.held_back(split)
}

fn entries(source: &Instructions) -> Result<Vec<Entry>, Error> {
    let path = || source.file.clone();
    let expected = "a JSON list of `instruction`, `input` and `output`, in Alpaca format";
    let failed = Error::reading("the instructions", &source.file, expected);
    let bytes = read::whole(&source.file).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Format {
        path: path(),
        what: format!("it is not a list of `instruction`, `input` and `output`: {error}"),
    })
}

/// What both parts share.
struct All {
    source: Instructions,
    tokenizer: Tokenizer,
    end: u32,
    entries: Vec<Entry>,
}

impl All {
    /// The tokens of an entry, and how many of them are its prompt.
    fn tokens(&self, entry: &Entry) -> Result<(Vec<u32>, usize), String> {
        let prompt = prompt(&entry.instruction, &entry.input);
        let mut tokens = self.tokenizer.encode(&prompt, true)?;
        let asked = tokens.len();
        tokens.extend(self.tokenizer.encode(&entry.output, false)?);
        tokens.push(self.end);
        Ok((tokens, asked))
    }

    /// What the model sees, and what is to follow each token.
    fn sample(&self, entry: &Entry) -> Result<(Vec<u32>, Vec<u32>), String> {
        let (tokens, asked) = self.tokens(entry)?;
        let counts = |i: usize| i >= asked || !self.source.mask_prompt;
        Ok(padded(tokens, counts, self.source.seq_len, self.end))
    }
}

/// Some of the entries.
struct Part {
    all: Arc<All>,
    places: Vec<u32>,
    shape: [usize; 1],
}

impl Part {
    fn place(&self, index: usize) -> usize {
        self.places[index] as usize
    }
}

impl Dataset for Part {
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
        format!("entry {} of `{}`", self.place(index) + 1, shown(&self.all.source.file))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let path = || -> PathBuf { self.all.source.file.clone() };
        let unusable = |reason: String| SampleError::Decode {
            path: path(),
            reason: format!("entry {}: {reason}", self.place(index) + 1),
        };
        let Some(entry) = self.all.entries.get(self.place(index)) else {
            return Err(unusable("missing".into()));
        };
        let (seen, next) = self.all.sample(entry).map_err(unusable)?;
        values.extend(seen.into_iter().map(|token| token as f32));
        Ok(Target::Classes(next))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::path::Path;

    use super::*;
    use crate::data::IGNORED;
    use crate::data::tokenizer::tests::write;

    const JSON: &str = r#"[{"instruction": "the", "input": "", "output": "cat"},
        {"instruction": "the", "input": "cat", "output": "the"},
        {"instruction": "that", "output": "chat"}]"#;

    fn source(folder: &Path, json: &str, seq_len: usize) -> Instructions {
        let file = folder.join("alpaca.json");
        std::fs::File::create(&file).unwrap().write_all(json.as_bytes()).unwrap();
        Instructions {
            file,
            tokenizer: write(folder),
            seq_len,
            val_ratio: 0.34,
            mask_prompt: false,
            eos_token: None,
            sample_tokens: None,
        }
    }

    fn loaded(source: &Instructions, index: usize) -> (Vec<f32>, Vec<u32>) {
        let splits = open(source, &SplitPlan::NONE).unwrap();
        let mut values = Vec::new();
        let Target::Classes(next) = splits.train.load(index, None, &mut values).unwrap() else {
            panic!("no labels")
        };
        (values, next)
    }

    #[test]
    fn prompts_are_alpacas() {
        let with = prompt("Add.", "1 and 2");
        assert!(with.starts_with("Below is an instruction that describes a task, paired with an input that provides further context. Write a response that"), "{with}");
        assert!(
            with.ends_with("\n\n### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:")
        );
        let without = prompt("Sing.", "");
        assert!(without.starts_with("Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\nSing."), "{without}");
        assert!(without.ends_with("\n\n### Response:"));
    }

    #[test]
    fn the_answer_and_its_end_follow_the_prompt_and_the_rest_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut source = source(folder.path(), JSON, 400);
        let (seen, next) = loaded(&source, 0);
        let n = next.iter().position(|&token| token == IGNORED).unwrap();
        assert_eq!((seen.len(), next.len()), (400, 400));
        assert_eq!(seen[0], 0.0, "a text begins with its token");
        assert_eq!(next[n - 4..n], [7, 6, 5, 1], "c, a, t and the end");
        assert!(seen[1..n].iter().zip(&next).all(|(seen, next)| *seen == *next as f32));
        assert!(next[n..].iter().all(|&token| token == IGNORED));
        source.mask_prompt = true;
        let (same, masked) = loaded(&source, 0);
        assert_eq!(same, seen);
        assert_eq!(masked[n - 4..], next[n - 4..]);
        assert!(masked[..n - 4].iter().all(|&token| token == IGNORED));
    }

    #[test]
    fn what_is_too_long_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let (seen, next) = loaded(&source(folder.path(), JSON, 6), 1);
        assert_eq!((seen.len(), next.len()), (6, 6));
        assert!(next.iter().all(|&token| token != IGNORED));
    }

    #[test]
    fn entries_are_held_back_at_random_where_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path(), JSON, 8);
        let split = SplitPlan { test_fraction: Some(0.5), ..SplitPlan::NONE };
        let of = |split: SplitPlan| {
            let splits = open(&source, &split).unwrap();
            let test = splits.test.map_or(0, |test| test.len());
            (splits.train.len(), splits.val.name(0), test)
        };
        let (n_train, val, n_test) = of(split);
        assert_eq!((n_train, n_test), (1, 1));
        assert!(val.starts_with("entry 3 of"), "the last one validates: {val}");
        let names: BTreeSet<String> = (0..3)
            .map(|fold| of(SplitPlan { folds: Some(3), fold, ..SplitPlan::NONE }).1)
            .collect();
        assert_eq!(names.len(), 3, "each validates once");
    }

    #[test]
    fn parts_are_counted_and_what_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let facts = Survey::of(&open(&source(folder.path(), JSON, 8), &SplitPlan::NONE).unwrap());
        assert_eq!((facts.n_train, facts.n_val, facts.classes.len()), (2, 1, 11));
        assert_eq!((facts.sample, facts.target), (Some(vec![8]), vec![8]));
        let error =
            |source: &Instructions| open(source, &SplitPlan::NONE).err().unwrap().to_string();
        let broken = source(folder.path(), r#"[{"instruction": "a"}]"#, 8);
        assert!(error(&broken).contains("missing field `output`"), "{}", error(&broken));
        let few = source(folder.path(), r#"[{"instruction": "a", "output": "b"}]"#, 8);
        assert!(error(&few).contains(
            "`data.val_ratio` leaves 1 of its 1 entries to train on and 0 to validate on"
        ));
        let mut other = source(folder.path(), JSON, 8);
        other.eos_token = Some("<stop>".to_owned());
        assert!(error(&other).contains("it has no token `<stop>`"), "{}", error(&other));
    }
}
