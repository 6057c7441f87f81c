//! `data.name = "chat"`: conversations, written as one text by the chat template of a model's
//! tokenizer, of which the answers of the assistant count.
//!
//! A conversation is `messages` of `role` and `content`, or `conversations` of `from` and `value`
//! as in `ShareGPT`, or an entry in Alpaca's form. The file holds one in each line, or a JSON list.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, Options};
use crate::error::{Error, shown};
use crate::inputs::{Inputs, PredictionRequest};
use crate::plan::SplitPlan;
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::text::entries::{Counted, Entries, SampleForm};
use crate::sources::text::shards::{files_of, files_of_repository, read_entries};
use crate::sources::text::token_cache::{CacheCheck, Origin, TokenCache, cached};
use crate::tokenizer::Tokenizer;
use crate::units::Bytes;
use crate::{ChatTemplate, Splits, TextForm};

/// The data in messages.
const WHAT: &str = "the conversations";
const EXPECTED: &str = "a line for each conversation, such as {\"messages\": [{\"role\": \
                        \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \
                        \"hello\"}]}, or a JSON list of them";

/// conversations, formatted by the tokenizer's chat template; the model learns the assistant's
/// answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// conversations, one JSON object per line (also packed by gzip or zstd), a JSON list, or the
    /// rows of a parquet file: with `messages` (each with `role` and `content`), `conversations`
    /// (`from` and `value`, ShareGPT's format), or `instruction`, `input` and `output` (Alpaca's). A
    /// folder or a pattern (`data/train-*.parquet`) of such files is read in the order of their
    /// names, and so is a repository of the Hugging Face hub ("hf:ORG/NAME"). Losses are means over
    /// the counted tokens.
    #[schemars(extend("format" = "path"), example = "data/chats.jsonl")]
    pub file: PathBuf,
    /// a tokenizer.json, or its repository on the Hugging Face hub ("hf:ORG/NAME").
    #[schemars(extend("format" = "path"), example = "weights/tokenizer.json")]
    pub tokenizer: PathBuf,
    /// "chatml", or a file with a Jinja template. Default: the template beside the tokenizer, in
    /// `chat_template.jinja` or `tokenizer_config.json`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = &"chatml")]
    pub chat_template: Option<PathBuf>,
    /// context length in tokens; longer conversations are truncated, shorter ones padded (the loss
    /// ignores padding).
    #[schemars(range(min = 2, max = 65_536), example = 1024)]
    pub seq_len: usize,
    /// fraction of the conversations, at the end, held out for validation, unless
    /// `data.val_fraction` or `data.folds` is given.
    #[serde(default = "a_tenth")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
    /// compute the loss only on the assistant's tokens: the template's `{% generation %}` blocks if
    /// it has any, else what each answer adds to the conversation, including its end token.
    #[serde(default = "yes")]
    pub mask_prompt: bool,
    /// token that ends an answer in `ddprun sample`, and that pads. Default: the `eos_token` of
    /// `tokenizer_config.json`, else the first usual one in the vocabulary.
    #[serde(default)]
    #[schemars(example = "<|im_end|>")]
    pub eos_token: Option<String>,
    /// at the end of a run on one machine, sample this many tokens with the best weights and print
    /// them, like `ddprun sample`. Default: none.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_048_576), example = 300)]
    pub sample_tokens: Option<u32>,
}

fn a_tenth() -> f64 {
    0.1
}

fn yes() -> bool {
    true
}

impl Kind for Chat {
    const NAME: &'static str = "chat";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Text), Capability::Split(BuiltinSplits::LAST)];
}

impl DataSource for Chat {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        Ok(self.splits(&reading.survey.split, CacheCheck::Header)?.0)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let counts = if self.mask_prompt { "answers count" } else { "all messages count" };
        let (splits, entries, uncounted) = self.splits(&request.split, CacheCheck::Whole)?;
        // What the template makes of the data is said before anything starts.
        let first = splits.train.load(0, None, &mut Vec::new());
        first.map_err(|source| Error::Sample { index: 0, source })?;
        let line = format!("{}, up to {} tokens, {counts}", self.file.display(), self.seq_len);
        let files = self.parts()?;
        let wrong = entries.first_wrong().map(|(file, line, why, n)| {
            let file = files.get(file).filter(|_| files.len() > 1).map(|file| shown(file));
            let file = file.map_or(String::new(), |file| format!("`{file}`, "));
            let all = entries.len();
            format!("{n} of {all} conversations cannot be used; {file}line {line}: {why}")
        });
        let held = Bytes(entries.held());
        let notes = wrong.into_iter().chain(uncounted).collect();
        Ok(Survey { notes, line, held, ..Survey::of(&splits) })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let template = ChatTemplate::files(&self.tokenizer, self.chat_template.as_deref());
        let chats = Files::parts("chats", &self.file, self.parts()?);
        let known = [chats, Files::one("tokenizer", &self.tokenizer)];
        let template = template.iter().map(|path| Files::one("chat template", path));
        Ok(known.into_iter().chain(template).collect())
    }

    fn repository(&self) -> Option<&'static str> {
        Some("file")
    }

    fn repository_files(&self, root: &str, listed: &[String]) -> Result<Vec<String>, Error> {
        files_of_repository(root, listed)
    }

    fn inputs(&self, _: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        let why = "answers are generated one by one: use `ddprun sample --prompt TEXT`";
        Err(Error::NotPredicted { why })
    }

    fn text(&self) -> Option<TextForm> {
        Some(TextForm::Chat {
            tokenizer: self.tokenizer.clone(),
            chat_template: self.chat_template.clone(),
            eos_token: self.eos_token.clone(),
        })
    }

    fn sample_tokens(&self) -> Option<u32> {
        self.sample_tokens
    }
}

impl Chat {
    /// Opens all parts, and what they share.
    fn splits(
        &self,
        split: &SplitPlan,
        look: CacheCheck,
    ) -> Result<(Splits, Arc<Entries>, Vec<String>), Error> {
        let tokenizer = Arc::new(Tokenizer::open(&self.tokenizer)?);
        let template = ChatTemplate::open(&self.tokenizer, self.chat_template.as_deref())?;
        let end = self.eos_token.as_deref().or_else(|| template.eos_token());
        let end = tokenizer.end(end).ok_or_else(|| {
            let what = match end {
                Some(name) => format!("it has no token `{name}`, which should end answers"),
                None => "it has none of the usual tokens that end answers".to_owned(),
            };
            let what = what + ": set `data.eos_token`";
            Error::Format { path: self.tokenizer.clone(), what }
        })?;
        let own = self.clone();
        let cutter = tokenizer.clone();
        let files = self.parts()?;
        let parts = files.clone();
        let cut = move || {
            let cut = |messages: &Vec<Value>| own.tokens(messages, &cutter, &template);
            Entries::of_files(&parts, conversations, cut)
        };
        let entries = cached(TokenCache::of_user().as_ref(), &self.origin(&files), look, cut)?;
        let entries = Arc::new(entries);
        let form = SampleForm {
            path: self.file.clone(),
            files,
            noun: "conversation",
            seq_len: self.seq_len,
            end,
            all_count: false,
        };
        let classes = tokenizer.vocabulary();
        let (splits, notes) = form.splits(&entries, self.val_ratio, split, look, classes)?;
        Ok((splits, entries, notes))
    }

    /// The files with the conversations, in order.
    fn parts(&self) -> Result<Vec<PathBuf>, Error> {
        files_of(WHAT, &self.file, EXPECTED)
    }

    /// The inputs that the tokens of `files` depend on.
    fn origin(&self, files: &[PathBuf]) -> Origin {
        let template = ChatTemplate::files(&self.tokenizer, self.chat_template.as_deref());
        let known = files.iter().chain([&self.tokenizer]).cloned();
        let named = &self.chat_template;
        let masked = self.mask_prompt;
        Origin {
            paths: known.chain(template).collect(),
            n_texts: files.len(),
            options: format!("chat {named:?} {masked}"),
        }
    }

    /// The tokens of a conversation, of which those that hold a byte of an answer count, as in
    /// transformers.
    fn tokens(
        &self,
        messages: &[Value],
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
    ) -> Result<Vec<Counted>, String> {
        if !self.mask_prompt {
            let tokens = tokenizer.encode(&template.whole(messages)?, false)?;
            return Ok(tokens.into_iter().map(|token| (token, true)).collect());
        }
        let chat = template.chat(messages)?;
        let spans = tokenizer.encode_spans(&chat.text)?.into_iter();
        let is_answered = |span: &Range<usize>| {
            chat.answers.iter().any(|answer| span.start < answer.end && answer.start < span.end)
        };
        Ok(spans.map(|(token, span)| (token, is_answered(&span))).collect())
    }
}

/// The messages of each conversation of a file, with its line or place in the list.
fn conversations(file: &Path) -> Result<Vec<(u64, Vec<Value>)>, Error> {
    let bytes = read_entries(WHAT, file, EXPECTED)?;
    let chat = |line: u64, value: &Value| {
        let messages = messages(value);
        let messages =
            messages.map_err(|what| Error::Line { path: file.to_owned(), line, what })?;
        Ok((line, messages))
    };
    if bytes.trim_ascii_start().starts_with(b"[") {
        let list: Vec<Value> = serde_json::from_slice(&bytes).map_err(|error| {
            let what = format!("it is not a JSON list: {error}");
            Error::Format { path: file.to_owned(), what }
        })?;
        return (1..).zip(&list).map(|(place, value)| chat(place, value)).collect();
    }
    let lines = (1..).zip(bytes.split(|&byte| byte == b'\n'));
    let lines = lines.filter(|(_, text)| !text.trim_ascii().is_empty());
    let of_line = |(line, text): (u64, &[u8])| {
        let value = serde_json::from_slice(text).map_err(|error| {
            let what = format!("it is not JSON: {error}; it should hold {EXPECTED}");
            Error::Line { path: file.to_owned(), line, what }
        })?;
        chat(line, &value)
    };
    lines.map(of_line).collect()
}

/// Messages with `role` and `content`, whatever the form of the entry.
fn messages(entry: &Value) -> Result<Vec<Value>, String> {
    let object = entry.as_object().ok_or("it is not a JSON object")?;
    let list = |key: &str| object.get(key).and_then(Value::as_array);
    let messages = if let Some(messages) = list("messages") {
        messages.clone()
    } else if let Some(turns) = list("conversations") {
        let system = object.get("system").and_then(Value::as_str).filter(|text| !text.is_empty());
        let system = system.map(|text| Ok(json!({"role": "system", "content": text})));
        system.into_iter().chain(turns.iter().map(of_share_gpt)).collect::<Result<_, _>>()?
    } else if let Some(messages) = of_alpaca(object) {
        messages
    } else {
        return Err("it has neither `messages`, nor `conversations`, nor `instruction` and \
                    `output`"
            .to_owned());
    };
    for (i, message) in (1..).zip(&messages) {
        if !message["role"].is_string() {
            return Err(format!("its message {i} has no `role`"));
        }
    }
    if messages.iter().any(|message| message["role"] == "assistant") {
        return Ok(messages);
    }
    Err("no message of it has the role `assistant`: there is nothing to learn".to_owned())
}

fn of_share_gpt(turn: &Value) -> Result<Value, String> {
    if turn["role"].is_string() {
        return Ok(turn.clone());
    }
    let role = match turn["from"].as_str() {
        Some("human" | "user") => "user",
        Some("gpt" | "assistant" | "model" | "chatgpt" | "bing" | "bard") => "assistant",
        Some("system") => "system",
        Some("tool" | "function" | "observation") => "tool",
        Some(other) => return Err(format!("a turn of it is from `{other}`, who is not known")),
        None => return Err("a turn of it has no `from`".to_owned()),
    };
    let value = turn["value"].as_str().ok_or("a turn of it has no `value`")?;
    Ok(json!({"role": role, "content": value}))
}

fn of_alpaca(entry: &Map<String, Value>) -> Option<Vec<Value>> {
    let text = |key: &str| entry.get(key)?.as_str();
    let question = match text("input").filter(|input| !input.is_empty()) {
        Some(input) => format!("{}\n{input}", text("instruction")?),
        None => text("instruction")?.to_owned(),
    };
    let user = json!({"role": "user", "content": question});
    Some(vec![user, json!({"role": "assistant", "content": text("output")?})])
}

#[cfg(test)]
mod tests;
