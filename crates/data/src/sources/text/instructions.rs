//! `data.name = "instructions"`, instructions and how they are to be answered, in the form of
//! Stanford's Alpaca (Taori et al., 2023, <https://github.com/tatsu-lab/stanford_alpaca>): a JSON
//! list of `instruction`, `input` (may be empty) and `output`, or lines of these.
//!
//! Each becomes one text, the prompt, the answer and the token that ends it; what does not fit is
//! cut, what is left is filled with tokens that do not count. Prompt and answer are cut into tokens
//! apart, so that the border between them is known.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chat_template::eos_token;
use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::error::Error;
use crate::inputs::{Inputs, PredictionRequest};
use crate::plan::SplitPlan;
use crate::sources::named_files::{files_of, files_of_repository};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::text::entries::{Counted, CutEntry, Entries};
use crate::sources::text::entry_file::{ENTRY_FILES, cut_files};
use crate::sources::text::entry_parts::{EntryCheck, GENERATED, splits};
use crate::sources::text::samples::SampleForm;
use crate::sources::text::token_cache::{Origin, TokenCache, cached};
use crate::tokenizer::Tokenizer;
use crate::units::Bytes;
use crate::{Splits, TextForm};

/// The data in messages.
const WHAT: &str = "the instructions";
const EXPECTED: &str = "a JSON list of `instruction`, `input` and `output`, in Alpaca format";

/// instructions and answers in Alpaca's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instructions {
    /// a JSON list of objects with `instruction`, `input` (may be empty) and `output`, one such
    /// object per line (also packed by gzip or zstd), or the rows of a parquet file; a folder or a
    /// pattern (`data/train-*.parquet`) of such files, read in the order of their names; or a
    /// repository of the Hugging Face hub ("hf:ORG/NAME"). Each becomes one sample: the prompt of
    /// Stanford's Alpaca, up to "### Response:", then the answer. Losses are means over all counted
    /// tokens of the global batch, whatever their distribution over passes and ranks.
    #[schemars(extend("format" = "path"), example = "data/alpaca_data.json")]
    pub file: PathBuf,
    /// a tokenizer.json, or its repository on the Hugging Face hub ("hf:ORG/NAME").
    #[schemars(extend("format" = "path"), example = "weights/tokenizer.json")]
    pub tokenizer: PathBuf,
    /// context length in tokens; longer texts are truncated, shorter ones padded (the loss ignores
    /// padding).
    #[schemars(range(min = 2, max = 65_536), example = 256)]
    pub seq_len: usize,
    /// pack several short entries into each sample to train on. None sees anything of the others,
    /// and its positions count from 0: each has the logits that it would have alone. An epoch has
    /// fewer samples, of about the same length.
    #[serde(default)]
    #[schemars(example = true)]
    pub packing: bool,
    /// fraction of the entries, at the end, held out for validation, unless `data.val_fraction` or
    /// `data.folds` is given.
    #[serde(default = "a_tenth")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
    /// compute the loss only on the tokens of the answer.
    #[serde(default)]
    #[schemars(example = true)]
    pub mask_prompt: bool,
    /// token that ends an answer. Default: the `eos_token` of the `tokenizer_config.json` beside
    /// the tokenizer, else the first of `</s>`, `<|endoftext|>`, `<|end_of_text|>`, `<|im_end|>`,
    /// `<|eot_id|>` and `<eos>` that the tokenizer knows.
    #[schemars(example = "</s>")]
    pub eos_token: Option<String>,
    /// at the end of a run on one machine, sample this many tokens with the best weights and print
    /// them, like `ddprun sample`. Default: none.
    #[schemars(range(min = 1, max = 1_048_576), example = 300)]
    pub sample_tokens: Option<u32>,
}

fn a_tenth() -> f64 {
    0.1
}

impl Kind for Instructions {
    const NAME: &'static str = "instructions";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Text), Capability::Split(BuiltinSplits::LAST)];

    fn check(&self) -> Vec<OptionConflict> {
        let what = "`char` cuts only `tokens`; `instructions` needs a tokenizer.json".to_owned();
        let wrong = OptionConflict { key: "tokenizer", with: &[], what };
        if self.tokenizer.as_os_str() == "char" { vec![wrong] } else { Vec::new() }
    }
}

impl DataSource for Instructions {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        open(self, &reading.survey.split)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let counts = if self.mask_prompt { "answers count" } else { "prompts and answers count" };
        let tokenizer = Arc::new(Tokenizer::open(&self.tokenizer)?);
        let token_bytes = tokenizer.token_bytes().unwrap_or_default();
        let (splits, entries, notes) =
            open_with(self, &tokenizer, &request.split, EntryCheck::Survey(request.on_bad_sample))?;
        let held = Bytes(entries.held());
        let lengths = entries.length_words(self.seq_len);
        let packs = if self.packing { ", packed" } else { "" };
        let line = format!("{}, {lengths}, {counts}{packs}", self.file.display());
        Ok(Survey { token_bytes, notes, line, held, ..Survey::of(&splits) })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let texts = files_of(WHAT, &self.file, EXPECTED, ENTRY_FILES)?;
        let texts = Files::parts("instructions", &self.file, texts);
        let known = [texts, Files::one("tokenizer", &self.tokenizer)];
        // It may name the token that ends answers.
        let config = self.tokenizer.with_file_name("tokenizer_config.json");
        let config = (self.eos_token.is_none() && config.is_file()).then_some(config);
        let config = config.map(|path| Files::one("tokenizer configuration", &path));
        Ok(known.into_iter().chain(config).collect())
    }

    fn repositories(&self) -> &'static [&'static str] {
        &["file"]
    }

    fn repository_files(&self, root: &str, listed: &[String]) -> Result<Vec<String>, Error> {
        files_of_repository(root, listed, ENTRY_FILES)
    }

    fn inputs(&self, _: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        Err(Error::NotPredicted { why: GENERATED })
    }

    fn text(&self) -> Option<TextForm> {
        let tokenizer = self.tokenizer.clone();
        let eos_token = self.eos_token.clone();
        Some(TextForm::Answers { tokenizer, eos_token })
    }

    fn sample_tokens(&self) -> Option<u32> {
        self.sample_tokens
    }
}

/// An instruction, what it is about, and its answer.
struct Entry<'a> {
    instruction: &'a str,
    /// Empty where there is none.
    input: &'a str,
    output: &'a str,
}

/// Keys that the prompt has no place for.
const NOT_IN_PROMPT: [&str; 2] = ["system", "history"];

impl<'a> Entry<'a> {
    fn of(value: &'a Value) -> Result<Self, String> {
        let object = value.as_object().ok_or("it is not a JSON object")?;
        let text = |key: &str| match object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                value.as_str().map(Some).ok_or_else(|| format!("its `{key}` is not text"))
            }
        };
        let needed = |key: &str| text(key)?.ok_or_else(|| format!("it has no `{key}`"));
        let is_empty = |key: &str| match &value[key] {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if let Some(key) = NOT_IN_PROMPT.iter().find(|key| !is_empty(key)) {
            return Err(format!(
                "it has `{key}`, which Alpaca's prompt has no place for: use `data.name = \"chat\"`"
            ));
        }
        let (instruction, output) = (needed("instruction")?, needed("output")?);
        Ok(Self { instruction, input: text("input")?.unwrap_or_default(), output })
    }
}

/// The prompt before the answer: Stanford's, which ends at the colon. (alpaca-lora's template ends
/// with a line break after it.)
pub fn prompt(instruction: &str, input: &str) -> String {
    if input.is_empty() {
        return format!(
            "Below is an instruction that describes a task. Write a response that appropriately \
             completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:"
        );
    }
    format!(
        "Below is an instruction that describes a task, paired with an input that provides \
         further context. Write a response that appropriately completes the request.\n\n### \
         Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
    )
}

/// Opens all parts, with the vocabulary in the order of its tokens.
pub(crate) fn open(source: &Instructions, split: &SplitPlan) -> Result<Splits, Error> {
    let tokenizer = Arc::new(Tokenizer::open(&source.tokenizer)?);
    Ok(open_with(source, &tokenizer, split, EntryCheck::Open)?.0)
}

/// Opens the data with a tokenizer that was read before.
fn open_with(
    source: &Instructions,
    tokenizer: &Arc<Tokenizer>,
    split: &SplitPlan,
    check: EntryCheck,
) -> Result<(Splits, Arc<Entries>, Vec<String>), Error> {
    let end = end_of_answers(tokenizer, &source.tokenizer, source.eos_token.as_deref())?;
    let files = files_of(WHAT, &source.file, EXPECTED, ENTRY_FILES)?;
    let origin = Origin {
        paths: files.iter().chain([&source.tokenizer]).cloned().collect(),
        n_texts: files.len(),
        options: format!("instructions {end}"),
    };
    let parts = files.clone();
    let cutter = tokenizer.clone();
    let cut = move || {
        cut_files(&parts, WHAT, EXPECTED, |value| {
            let tokens = tokens(&Entry::of(value)?, &cutter, end)?;
            Ok(CutEntry { tokens, unused: unused(value) })
        })
    };
    let cache = TokenCache::of_user();
    let entries = Arc::new(cached(cache.as_ref(), &origin, check.of_cache(), cut)?);
    let form = SampleForm {
        path: source.file.clone(),
        files,
        noun: "entry",
        seq_len: source.seq_len,
        end,
        all_count: !source.mask_prompt,
        packing: source.packing,
    };
    let classes = tokenizer.vocabulary();
    let (splits, notes) = splits(&form, &entries, source.val_ratio, split, check, classes)?;
    Ok((splits, entries, notes))
}

/// The token that ends an answer: the one `named`, that of the configuration beside the tokenizer
/// at `path`, or a usual one.
///
/// # Errors
///
/// The tokenizer has no such token.
pub fn end_of_answers(
    tokenizer: &Tokenizer,
    path: &Path,
    named: Option<&str>,
) -> Result<u32, Error> {
    let config = if named.is_none() { eos_token(path)? } else { None };
    tokenizer.end(named.or(config.as_deref())).ok_or_else(|| {
        let what = match (named, config) {
            (Some(name), _) => format!("it has no token `{name}`, which `data.eos_token` names"),
            (None, Some(name)) => format!(
                "it has no token `{name}`, the `eos_token` of the tokenizer_config.json beside it: \
                 set `data.eos_token`"
            ),
            (None, None) => {
                "it has none of the usual end-of-text tokens: set `data.eos_token`".to_owned()
            }
        };
        Error::Format { path: path.to_owned(), what }
    })
}

/// The tokens of an entry, of which its answer counts.
fn tokens(entry: &Entry<'_>, tokenizer: &Tokenizer, end: u32) -> Result<Vec<Counted>, String> {
    let prompt = prompt(entry.instruction, entry.input);
    let asked = tokenizer.encode(&prompt, true)?.into_iter().map(|token| (token, false));
    let answer = tokenizer.encode(entry.output, false)?.into_iter().chain([end]);
    Ok(asked.chain(answer.map(|token| (token, true))).collect())
}

/// Keys of an entry that have no effect.
fn unused(entry: &Value) -> BTreeSet<String> {
    let is_known = |key: &str| {
        ["instruction", "input", "output"].contains(&key) || NOT_IN_PROMPT.contains(&key)
    };
    let keys = entry.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    keys.map(|(key, _)| key).filter(|key| !is_known(key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::tokenizer::tests::write;
    use crate::{IGNORED, Target};

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
            packing: false,
            mask_prompt: false,
            eos_token: None,
            sample_tokens: None,
        }
    }

    /// What a survey says of data that cannot be used.
    fn refused(source: &Instructions) -> String {
        let request = SurveyRequest::new("x", 0, crate::plan::Targets::Classes);
        source.survey(&request).unwrap_err().to_string()
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
    fn shards_are_read_one_after_the_other_and_one_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let line = |answer| format!("{{\"instruction\": \"the\", \"output\": \"{answer}\"}}\n");
        let lines = ["cat", "the", "that", "chat"].map(line);
        let whole = source(folder.path(), &lines.concat(), 400);
        let at = |name: &str| folder.path().join("shards").join(name);
        crate::files::create_folder(&at("")).unwrap();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(lines[..2].concat().as_bytes()).unwrap();
        let first = at("train-00000-of-00002.jsonl.gz");
        crate::files::write_atomic(&first, &packed.finish().unwrap()).unwrap();
        let second = at("train-00001-of-00002.jsonl");
        crate::files::write_atomic(&second, lines[2..].concat().as_bytes()).unwrap();
        for path in [at(""), at("train-*"), at("*.jsonl*")] {
            let parts = Instructions { file: path, ..whole.clone() };
            for index in 0..3 {
                assert_eq!(loaded(&parts, index), loaded(&whole, index));
            }
            let train = open(&parts, &SplitPlan::NONE).unwrap().train;
            assert!(train.name(1).ends_with("train-00000-of-00002.jsonl.gz`"), "{}", train.name(1));
            assert_eq!(train.name(2), format!("entry 1 of `{}`", second.display()));
            assert_eq!(train.origin(2), Some((second.clone(), Some(1))));
            let files = parts.files(&Options::new()).unwrap().remove(0);
            assert_eq!(files.paths, [first.clone(), second.clone()]);
        }
        let parts = Instructions { file: at(""), ..whole };
        let broken = format!("{}{{\"instruction\": 3}}\n", lines[2]);
        crate::files::write_atomic(&second, broken.as_bytes()).unwrap();
        let error = refused(&parts);
        assert!(
            error.contains("train-00001-of-00002.jsonl`, line 2: its `instruction`"),
            "{error}"
        );
        crate::files::remove_file(&first).unwrap();
        let error = refused(&parts);
        assert!(error.contains("`train-00000-of-00002.jsonl` is missing, shard of 2"), "{error}");
    }

    #[test]
    fn prompts_are_alpacas() {
        let with = prompt("Add.", "1 and 2");
        assert!(
            with.starts_with(
                "Below is an instruction that describes a task, paired with an input that \
                 provides further context. Write a response that"
            ),
            "{with}"
        );
        assert!(
            with.ends_with("\n\n### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:")
        );
        let without = prompt("Sing.", "");
        assert!(
            without.starts_with(
                "Below is an instruction that describes a task. Write a response that \
                 appropriately completes the request.\n\n### Instruction:\nSing."
            ),
            "{without}"
        );
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
    fn entries_may_stand_in_lines() {
        let folder = tempfile::tempdir().unwrap();
        let line = r#"{"instruction": "the", "output": "cat"}"#;
        let lines = source(folder.path(), &format!("{line}\n\n{line}\n"), 400);
        let of_lines = loaded(&Instructions { val_ratio: 0.5, ..lines }, 0);
        assert_eq!(of_lines, loaded(&source(folder.path(), JSON, 400), 0));
        let wrong = source(folder.path(), &format!("{line}\n{{\"instruction\": 3}}"), 400);
        let error = refused(&wrong);
        assert!(error.contains("alpaca.json`, line 2: its `instruction` is not text"), "{error}");
    }

    #[test]
    fn a_byte_order_mark_is_skipped_and_null_is_an_empty_input() {
        let folder = tempfile::tempdir().unwrap();
        let line = r#"{"instruction": "the", "output": "cat"}"#;
        let null = r#"{"instruction": "the", "input": null, "output": "cat"}"#;
        let of = |text: &str| {
            loaded(&Instructions { val_ratio: 0.5, ..source(folder.path(), text, 400) }, 0)
        };
        let plain = of(&format!("{line}\n{line}\n"));
        assert_eq!(of(&format!("\u{feff}{line}\n{line}\n")), plain);
        assert_eq!(of(&format!("\u{feff}[{line},\n{line}]")), plain);
        assert_eq!(of(&format!("{null}\n{null}\n")), plain);
        let wrong = source(folder.path(), &format!("{line}\n{{\"instruction\": "), 400);
        assert_eq!(refused(&wrong).matches("line").count(), 1, "{}", refused(&wrong));
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
        let error = refused;
        let broken = source(folder.path(), r#"[{"instruction": "a"}]"#, 8);
        assert!(error(&broken).contains("entry 1: it has no `output`"), "{}", error(&broken));
        let chat = r#"[{"instruction": "a", "output": "b", "system": "Be brief."}]"#;
        let chat = error(&source(folder.path(), chat, 8));
        assert!(chat.contains("has `system`") && chat.contains("\"chat\""), "{chat}");
        let few = source(folder.path(), r#"[{"instruction": "a", "output": "b"}]"#, 8);
        assert!(error(&few).contains(
            "`data.val_ratio` leaves 1 of its 1 entries to train on and 0 to validate on"
        ));
        let config = folder.path().join("tokenizer_config.json");
        crate::files::write_atomic(&config, br#"{"eos_token": {"content": "<unk>"}}"#).unwrap();
        let end = || {
            let source = source(folder.path(), JSON, 400);
            let (_, next) = loaded(&source, 0);
            next.into_iter().rev().find(|&token| token != IGNORED)
        };
        assert_eq!(end(), Some(2), "the end is that of the configuration");
        crate::files::write_atomic(&config, br#"{"eos_token": "<stop>"}"#).unwrap();
        let absent = error(&source(folder.path(), JSON, 8));
        assert!(absent.contains("`<stop>`, the `eos_token` of the tokenizer_config"), "{absent}");
        std::fs::remove_file(&config).unwrap();
        let mut other = source(folder.path(), JSON, 8);
        other.eos_token = Some("<stop>".to_owned());
        assert!(error(&other).contains("it has no token `<stop>`"), "{}", error(&other));
    }
}
