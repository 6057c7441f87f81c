//! `data.name = "preferences"`: prompts with an answer that people chose and one that they rejected,
//! for losses of preferences (`loss.name = "dpo"` ...).
//!
//! The forms are those that TRL reads: `prompt`, `chosen` and `rejected`, all text or all lists of
//! messages; without a `prompt`, what both answers begin with is it. A pair is two texts, of which
//! the answers count; a sample holds both, place by place.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, Options};
use crate::error::{Error, SampleError};
use crate::inputs::{Inputs, PredictionRequest};
use crate::plan::{SplitPlan, Targets};
use crate::rng::Key;
use crate::sources::holdout::SampleIndices;
use crate::sources::named_files::{files_of, files_of_repository};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::text::conversation::{
    Conversation, answered_tokens, end_token, files_of_chats,
};
use crate::sources::text::entries::{CutEntry, Entries};
use crate::sources::text::entry_file::{ENTRY_FILES, cut_files};
use crate::sources::text::entry_parts::{EntryCheck, GENERATED, pair_parts};
use crate::sources::text::instructions::prompt;
use crate::sources::text::samples::{SampleForm, Samples, filled_up};
use crate::sources::text::token_cache::{Origin, TokenCache, cached};
use crate::tokenizer::Tokenizer;
use crate::units::Bytes;
use crate::{ChatTemplate, Dataset, Splits, Target, TextForm};

/// The data in messages.
const WHAT: &str = "the preferences";
const EXPECTED: &str = "a line for each pair, such as {\"prompt\": \"2 + 2 =\", \"chosen\": \
                        \" 4\", \"rejected\": \" 5\"}, or a JSON list of them";

/// prompts, each with a chosen and a rejected answer, for the losses `dpo`, `simpo` and `orpo`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Preferences {
    /// pairs, one JSON object per line, a JSON list (both also packed by gzip or zstd), or the rows
    /// of a parquet file; a folder or a pattern (`data/train-*.parquet`) of such files, read in the
    /// order of their names; or a repository of the Hugging Face hub ("hf:ORG/NAME"). Each has
    /// `chosen` and `rejected`, as TRL reads them: text, with `prompt` (or `instruction` and
    /// `input`, Alpaca's), or lists of messages, which the chat template writes, with a `prompt` of
    /// messages. Without `prompt` it is what both begin with. Only the answers count.
    #[schemars(extend("format" = "path"), example = "data/pairs.jsonl")]
    pub file: PathBuf,
    /// a tokenizer.json, or its repository on the Hugging Face hub ("hf:ORG/NAME").
    #[schemars(extend("format" = "path"), example = "weights/tokenizer.json")]
    pub tokenizer: PathBuf,
    /// "chatml", or a file with a Jinja template, for lists of messages. Default: the template
    /// beside the tokenizer, in `chat_template.jinja` or `tokenizer_config.json`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = &"chatml")]
    pub chat_template: Option<PathBuf>,
    /// context length in tokens, of prompt and answer together; longer texts are truncated, and a
    /// pair of which an answer is cut off is left out.
    #[schemars(range(min = 2, max = 65_536), example = 1024)]
    pub seq_len: usize,
    /// fraction of the pairs, at the end, held out for validation, unless `data.val_fraction` or
    /// `data.folds` is given.
    #[serde(default = "a_tenth")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
    /// token that ends an answer that is text, and that pads. Default: the `eos_token` of
    /// `tokenizer_config.json`, else the first usual one in the vocabulary.
    #[serde(default)]
    #[schemars(example = "<|im_end|>")]
    pub eos_token: Option<String>,
}

fn a_tenth() -> f64 {
    0.1
}

impl Kind for Preferences {
    const NAME: &'static str = "preferences";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Text), Capability::Split(BuiltinSplits::LAST)];
}

impl DataSource for Preferences {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        Ok(self.splits(&reading.survey.split, EntryCheck::Open)?.0)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let check = EntryCheck::Survey(request.on_bad_sample);
        let (splits, [chosen, rejected], notes) = self.splits(&request.split, check)?;
        let lengths = chosen.length_words(self.seq_len);
        let line = format!("{}, pairs of {lengths}, answers count", self.file.display());
        let held = Bytes(chosen.held() + rejected.held());
        Ok(Survey { notes, line, held, ..Survey::of(&splits) })
    }

    fn target(&self) -> Result<Option<Targets>, Error> {
        Ok(Some(Targets::Preferences))
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let pairs = Files::parts("pairs", &self.file, self.parts()?);
        Ok(files_of_chats(pairs, &self.tokenizer, self.chat_template.as_deref()))
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
        Some(match ChatTemplate::open(&tokenizer, self.chat_template.as_deref()) {
            Ok(_) => TextForm::Chat {
                tokenizer,
                chat_template: self.chat_template.clone(),
                eos_token: self.eos_token.clone(),
            },
            Err(_) => TextForm::Tokens(tokenizer),
        })
    }
}

/// The two answers of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Chosen,
    Rejected,
}

impl Side {
    fn key(self) -> &'static str {
        match self {
            Self::Chosen => "chosen",
            Self::Rejected => "rejected",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Chosen => Self::Rejected,
            Self::Rejected => Self::Chosen,
        }
    }
}

/// Writes one side of a pair in tokens.
struct Cutter {
    tokenizer: Arc<Tokenizer>,
    /// The template, or why there is none: text does without.
    template: Arc<Result<ChatTemplate, String>>,
    end: u32,
    side: Side,
}

impl Preferences {
    /// Opens all parts, and the chosen and the rejected texts that they share.
    fn splits(
        &self,
        split: &SplitPlan,
        check: EntryCheck,
    ) -> Result<(Splits, [Arc<Entries>; 2], Vec<String>), Error> {
        let tokenizer = Arc::new(Tokenizer::open(&self.tokenizer)?);
        let files = self.parts()?;
        let template = match ChatTemplate::open(&self.tokenizer, self.chat_template.as_deref()) {
            // One that was named must be there.
            Err(error) if self.chat_template.is_some() => return Err(error),
            opened => Arc::new(opened.map_err(|error| error.to_string())),
        };
        let named = (*template).as_ref().ok().and_then(ChatTemplate::eos_token);
        let end = end_token(&tokenizer, &self.tokenizer, self.eos_token.as_deref().or(named))?;
        let cache = TokenCache::of_user();
        let texts = |side: Side| -> Result<Arc<Entries>, Error> {
            let (tokenizer, template) = (tokenizer.clone(), template.clone());
            let cutter = Cutter { tokenizer, template, end, side };
            let parts = files.clone();
            let cut = move || cut_files(&parts, WHAT, EXPECTED, |entry| cutter.cut(entry));
            let origin = self.origin(&files, side, end);
            Ok(Arc::new(cached(cache.as_ref(), &origin, check.of_cache(), cut)?))
        };
        let both = [texts(Side::Chosen)?, texts(Side::Rejected)?];
        let form = SampleForm {
            path: self.file.clone(),
            files,
            noun: "pair",
            seq_len: self.seq_len,
            end,
            all_count: false,
            packing: false,
        };
        let (parts, notes) = pair_parts(&form, &both, self.val_ratio, split, check)?;
        let part = |places: SampleIndices| -> Arc<dyn Dataset> {
            let side = |at: usize| Samples::new(both[at].clone(), form.clone(), places.clone());
            Arc::new(PairSamples::new(side(0), side(1)))
        };
        let (train, val) = (part(parts.train), part(parts.val));
        let test = parts.test.map(part);
        let splits = Splits { train, val, test, classes: tokenizer.vocabulary() };
        Ok((splits, both, notes))
    }

    /// The files with the pairs, in order.
    fn parts(&self) -> Result<Vec<PathBuf>, Error> {
        files_of(WHAT, &self.file, EXPECTED, ENTRY_FILES)
    }

    /// The inputs that the tokens of one side of `files` depend on.
    fn origin(&self, files: &[PathBuf], side: Side, end: u32) -> Origin {
        let template = ChatTemplate::files(&self.tokenizer, self.chat_template.as_deref());
        let known = files.iter().chain([&self.tokenizer]).cloned();
        let (named, side) = (&self.chat_template, side.key());
        Origin {
            paths: known.chain(template).collect(),
            n_texts: files.len(),
            options: format!("preferences {side} {named:?} {end}"),
        }
    }
}

impl Cutter {
    fn cut(&self, entry: &Value) -> Result<CutEntry, String> {
        let object = entry.as_object().ok_or("it is not a JSON object")?;
        let of = |side: Side| {
            let key = side.key();
            let answer = object.get(key).filter(|answer| !answer.is_null());
            answer.ok_or_else(|| format!("it has no `{key}`"))
        };
        let (own, other) = (of(self.side)?, of(self.side.other())?);
        match (own, other) {
            (Value::String(own), Value::String(other)) => self.text(object, own, other),
            (Value::Array(own), Value::Array(other)) => self.messages(object, own, other),
            (Value::Object(_), Value::Object(_)) => {
                // The last message, after a conversation.
                let key =
                    ["messages", "conversations"].into_iter().find(|key| object.contains_key(*key));
                let before = key.and_then(|key| object[key].as_array());
                let before = before.ok_or(
                    "its answers are single messages, but it has neither `messages` nor \
                     `conversations`",
                )?;
                self.conversation(object, before, std::slice::from_ref(own))
            }
            _ => {
                Err("its `chosen` and `rejected` are neither both text nor both lists of messages"
                    .to_owned())
            }
        }
    }

    /// A prompt and an answer of text.
    fn text(&self, entry: &Map<String, Value>, own: &str, other: &str) -> Result<CutEntry, String> {
        let text = |key: &str| match entry.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(format!("its `{key}` is not text, but its answers are")),
        };
        let (asked, answer) = match (text("prompt")?, text("instruction")?) {
            (Some(asked), _) => (asked.to_owned(), own),
            (None, Some(instruction)) => {
                (prompt(instruction, text("input")?.unwrap_or_default()), own)
            }
            (None, None) => {
                let both = common_start(own, other);
                if both == 0 {
                    return Err(
                        "it has no `prompt`, and its answers begin in different ways".into()
                    );
                }
                (own[..both].to_owned(), &own[both..])
            }
        };
        let used: &[&str] = if text("prompt")?.is_some() {
            &["prompt", "chosen", "rejected"]
        } else {
            &["instruction", "input", "chosen", "rejected"]
        };
        let unused =
            entry.iter().filter(|(key, value)| !used.contains(&key.as_str()) && !value.is_null());
        let unused = unused.map(|(key, _)| key.clone()).collect();
        let asked = self.tokenizer.encode(&asked, true)?.into_iter().map(|token| (token, false));
        let answer = self.tokenizer.encode(answer, false)?.into_iter().chain([self.end]);
        let tokens = asked.chain(answer.map(|token| (token, true))).collect();
        Ok(CutEntry { tokens, unused })
    }

    /// A prompt and an answer of messages.
    fn messages(
        &self,
        entry: &Map<String, Value>,
        own: &[Value],
        other: &[Value],
    ) -> Result<CutEntry, String> {
        // Some data sets repeat the question as text beside whole conversations.
        if let Some(asked) = entry.get("prompt").and_then(Value::as_array) {
            return self.conversation(entry, asked, own);
        }
        let shorter = own.len().min(other.len());
        let differs = (0..shorter).find(|&at| own[at] != other[at]);
        let (before, answers) = own.split_at(differs.unwrap_or(shorter.saturating_sub(1)));
        self.conversation(entry, before, answers)
    }

    /// The messages `before` an answer, and its own, of which the assistant's count.
    fn conversation(
        &self,
        entry: &Map<String, Value>,
        before: &[Value],
        answers: &[Value],
    ) -> Result<CutEntry, String> {
        let template = (*self.template).as_ref().map_err(Clone::clone)?;
        let mut entry = entry.clone();
        for key in ["prompt", "chosen", "rejected", "messages", "conversations"] {
            entry.remove(key);
        }
        let is_share_gpt = answers.iter().chain(before).any(|turn| turn["from"].is_string());
        let key = if is_share_gpt { "conversations" } else { "messages" };
        let all = [before, answers].concat();
        let given = all.len();
        entry.insert(key.to_owned(), all.into());
        let chat = Conversation::of(&Value::Object(entry), template)?;
        // A system's message may stand before the others.
        let first = before.len() + chat.messages.len() - given;
        if !chat.messages[first..].iter().any(|message| message["role"] == "assistant") {
            let key = self.side.key();
            return Err(format!("its `{key}` has no message of the assistant"));
        }
        let is_wanted = |at: usize| at >= first && !chat.untrained.contains(&at);
        let rendered = template.chat(&chat.messages, &chat.variables, is_wanted)?;
        let tokens = answered_tokens(&self.tokenizer, &rendered)?;
        Ok(CutEntry { tokens, unused: chat.unused })
    }
}

/// Bytes that two texts begin with alike, without a space at their end, as TRL's `extract_prompt`
/// counts them: of equal texts all but the last character.
fn common_start(one: &str, other: &str) -> usize {
    let pairs = one.char_indices().zip(other.chars());
    let differs = pairs.clone().find(|((_, a), b)| a != b).map(|((at, _), _)| at);
    match differs {
        Some(at) if one[..at].ends_with(' ') => at - 1,
        Some(at) => at,
        None => pairs.last().map_or(0, |((at, _), _)| at),
    }
}

/// Pairs as samples (places, 2).
struct PairSamples {
    chosen: Samples,
    rejected: Samples,
    shape: [usize; 2],
}

impl PairSamples {
    /// The pairs of samples that have the same places in both.
    fn new(chosen: Samples, rejected: Samples) -> Self {
        let shape = [chosen.shape()[0], 2];
        Self { chosen, rejected, shape }
    }
}

impl Dataset for PairSamples {
    fn len(&self) -> usize {
        self.chosen.len()
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
        self.chosen.name(index)
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        self.chosen.origin(index)
    }

    fn length(&self, index: usize) -> Option<usize> {
        self.chosen.length(index).max(self.rejected.length(index))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let text = |samples: &Samples| {
            let (seen, next) = samples.tokens(index)?;
            Ok(filled_up(seen, next, self.shape[0], samples.end()))
        };
        let (chosen, right) = text(&self.chosen)?;
        let (rejected, wrong) = text(&self.rejected)?;
        let both = |(a, b): (u32, u32)| [a, b];
        values.extend(chosen.into_iter().zip(rejected).flat_map(both).map(|token| token as f32));
        Ok(Target::Classes(right.into_iter().zip(wrong).flat_map(both).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::IGNORED;
    use crate::tokenizer::tests::write;

    fn source(folder: &Path, text: &str, seq_len: usize) -> Preferences {
        let file = folder.join("pairs.jsonl");
        crate::files::write_atomic(&file, text.as_bytes()).unwrap();
        let tokenizer = write(folder);
        let (chat_template, eos_token) = (Some("chatml".into()), None);
        Preferences { file, tokenizer, chat_template, seq_len, val_ratio: 0.5, eos_token }
    }

    /// The first sample: the tokens that count of both texts.
    fn counted(text: &str) -> [Vec<u32>; 2] {
        let folder = tempfile::tempdir().unwrap();
        let splits = source(folder.path(), &format!("{text}\n{text}\n"), 400);
        let splits = splits.splits(&SplitPlan::NONE, EntryCheck::Open).unwrap().0;
        assert_eq!(
            (splits.train.shape(), splits.train.target_shape()),
            (&[400, 2][..], &[400, 2][..])
        );
        let mut values = Vec::new();
        let Target::Classes(labels) = splits.train.load(0, None, &mut values).unwrap() else {
            panic!("no labels")
        };
        assert_eq!((values.len(), labels.len()), (800, 800));
        let side = |at: usize| {
            let labels = labels.iter().skip(at).step_by(2).copied();
            labels.filter(|&token| token != IGNORED).collect()
        };
        [side(0), side(1)]
    }

    fn refused(text: &str) -> String {
        refused_within(400, text)
    }

    fn refused_within(seq_len: usize, text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let request = SurveyRequest::new("x", 0, Targets::Preferences);
        let source = source(folder.path(), text, seq_len);
        source.survey(&request).unwrap_err().to_string()
    }

    #[test]
    fn answers_count_with_their_end_whatever_the_form_of_a_pair() {
        let cat = [vec![7, 6, 5, 1], vec![10, 1]];
        assert_eq!(counted(r#"{"prompt": "the", "chosen": "cat", "rejected": "the"}"#), cat);
        assert_eq!(counted(r#"{"instruction": "the", "chosen": "cat", "rejected": "the"}"#), cat);
        // The space belongs to the answers.
        let implicit = counted(r#"{"chosen": "the cat", "rejected": "the the"}"#);
        assert_eq!(implicit, [vec![8, 7, 6, 5, 1], vec![8, 10, 1]]);
    }

    #[test]
    fn a_prompt_of_messages_is_given_or_what_both_begin_with() {
        let message =
            |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
        let (asked, cat, the) =
            (message("user", "a"), message("assistant", "cat"), message("assistant", "the"));
        let pair = |pair: Value| counted(&pair.to_string());
        let explicit = pair(serde_json::json!(
            {"prompt": [asked], "chosen": [cat], "rejected": [the]}));
        let implicit = pair(serde_json::json!(
            {"chosen": [asked, cat], "rejected": [asked, the], "prompt": "a"}));
        let single = pair(serde_json::json!(
            {"messages": [asked], "chosen": cat, "rejected": the}));
        assert!(explicit[0].starts_with(&[7, 6, 5]) && explicit[1].starts_with(&[10]));
        assert_eq!((&implicit, &single), (&explicit, &explicit));
        let turn = |from: &str, value: &str| serde_json::json!({"from": from, "value": value});
        let shared = pair(serde_json::json!({"conversations": [turn("human", "a")],
            "chosen": turn("gpt", "cat"), "rejected": turn("gpt", "the")}));
        assert_eq!(shared, explicit);
        // An answer before the prompt's end is no part of the choice.
        let long = pair(serde_json::json!({"prompt": [asked, the, asked], "chosen": [cat],
            "rejected": [the], "system": "that"}));
        assert_eq!(long, explicit);
    }

    #[test]
    fn texts_share_what_they_begin_with() {
        assert_eq!(common_start("a b c", "a b d"), 3);
        assert_eq!(common_start("a bc", "a bd"), 3);
        assert_eq!(common_start("abc", "abc"), 2);
        assert_eq!(common_start("é x", "é y"), 2);
        assert_eq!(common_start("ab", "abc"), 1);
        assert_eq!((common_start("", "a"), common_start("b", "a")), (0, 0));
    }

    #[test]
    fn a_pair_of_which_an_answer_is_cut_off_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let pair = |prompt: &str| {
            format!("{{\"prompt\": \"{prompt}\", \"chosen\": \"cat\", \"rejected\": \"the\"}}\n")
        };
        let text = [pair("the"), pair(&"the".repeat(20)), pair("the"), pair("the")].concat();
        let source = source(folder.path(), &text, 8);
        let request = SurveyRequest::new("x", 0, Targets::Preferences);
        let found = source.survey(&request).unwrap();
        assert_eq!((found.n_train, found.n_val), (1, 2));
        assert!(found.notes.iter().any(|note| note.contains("1 of 4 pairs")), "{:?}", found.notes);
        let error = refused_within(8, &pair(&"the".repeat(20)).repeat(4));
        assert!(error.contains("`data.seq_len = 8` cuts"), "{error}");
    }

    #[test]
    fn what_is_no_pair_is_refused_with_its_reason() {
        for (pair, says) in [
            (r#"{"prompt": "a", "chosen": "b"}"#, "line 1: it has no `rejected`"),
            (r#"{"prompt": "a", "chosen": "b", "rejected": []}"#, "neither both text"),
            (r#"{"prompt": [], "chosen": "b", "rejected": "a"}"#, "`prompt` is not text"),
            (r#"{"chosen": "b", "rejected": "a"}"#, "it has no `prompt`, and its answers begin"),
            (
                r#"{"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "user",
                "content": "a"}], "rejected": [{"role": "assistant", "content": "a"}]}"#,
                "no message of it has the role `assistant`",
            ),
            (r#"{"chosen": {"role": "assistant"}, "rejected": {}}"#, "neither `messages` nor"),
        ] {
            let pair = pair.replace('\n', " ");
            let error = refused(&format!("{pair}\n{pair}"));
            assert!(error.contains(says), "{error}");
        }
    }
}
