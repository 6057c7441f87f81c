//! `data.name = "chat"`: conversations, written as one text by the chat template of a model's
//! tokenizer, of which the answers of the assistant count.
//!
//! A conversation is `messages` of `role` and `content`, or `conversations` of `from` and `value`
//! as in `ShareGPT`, or an entry in Alpaca's form. The file holds one in each line, or a JSON list.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::kind::{Kind, Modality, Offer, Options};
use crate::data::error::{Error, SampleError, shown};
use crate::data::inputs::{Inputs, Predicting};
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::text::padded::padded;
use crate::data::tokenizer::Tokenizer;
use crate::data::{ChatTemplate, Dataset, Splits, Target, TextForm, read};
use crate::rng::Key;

const EXPECTED: &str = "a line for each conversation, such as {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, \
     {\"role\": \"assistant\", \"content\": \"hello\"}]}, or a JSON list of them";

/// conversations, of which the assistant's answers are learnt, by the tokenizer's chat template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// conversations: a JSON object a line, or a JSON list, of `messages` (each with `role` and
    /// `content`), of `conversations` (`from` and `value`, as ShareGPT's), or of `instruction`,
    /// `input` and `output` (as Alpaca's). Losses are means over the tokens that count.
    #[schemars(extend("format" = "path"), example = "data/chats.jsonl")]
    pub file: PathBuf,
    /// tokenizer: a tokenizer.json, as it lies beside a model on the `HuggingFace` hub.
    #[schemars(extend("format" = "path"), example = "weights/tokenizer.json")]
    pub tokenizer: PathBuf,
    /// "chatml", or a file with a Jinja template. Default: the template beside the tokenizer, in
    /// `chat_template.jinja` or `tokenizer_config.json`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = &"chatml")]
    pub chat_template: Option<PathBuf>,
    /// context length in tokens; longer conversations are cut, shorter ones are padded (padding is
    /// ignored in the loss).
    #[schemars(range(min = 2, max = 65_536), example = 1024)]
    pub seq_len: usize,
    /// held-out fraction: the last conversations are for validation.
    #[serde(default = "a_tenth")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
    /// compute the loss on the assistant's tokens only: those of `{% generation %}` where the
    /// template has it, else what each answer adds to the conversation, with the token that ends
    /// it.
    #[serde(default = "yes")]
    pub mask_prompt: bool,
    /// the token that ends an answer in `ddprun sample`, and pads. Default: the `eos_token` of
    /// `tokenizer_config.json`, else the first usual one that the tokenizer knows.
    #[serde(default)]
    #[schemars(example = "<|im_end|>")]
    pub eos_token: Option<String>,
    /// when a run is over on one machine, so many tokens are drawn from its best weights and
    /// printed, as `ddprun sample` does. Default: none.
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
    const OFFERS: &'static [Offer] = &[Offer::Samples(Modality::Text)];
}

impl DataSource for Chat {
    fn open(&self, _: &Reading<'_>) -> Result<Splits, Error> {
        self.splits()
    }

    fn survey(&self, _: &Asked<'_>) -> Result<Survey, Error> {
        let counts = if self.mask_prompt { "answers count" } else { "all messages count" };
        let splits = self.splits()?;
        // What the template makes of the data is said before anything starts.
        let first = splits.train.load(0, None, &mut Vec::new());
        first.map_err(|source| Error::Sample { index: 0, source })?;
        let line = format!("{}, up to {} tokens, {counts}", self.file.display(), self.seq_len);
        let found = Survey { line, ..Survey::of(&splits) };
        Ok(Survey { held: found.held_whole(), ..found })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let template = ChatTemplate::files(&self.tokenizer, self.chat_template.as_deref());
        let known = [Files::one("chats", &self.file), Files::one("tokenizer", &self.tokenizer)];
        let template = template.iter().map(|path| Files::one("chat template", path));
        Ok(known.into_iter().chain(template).collect())
    }

    fn inputs(&self, _: &Predicting<'_>) -> Result<Inputs, Error> {
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
    /// Opens both parts, of which the last conversations are the second.
    fn splits(&self) -> Result<Splits, Error> {
        let tokenizer = Tokenizer::open(&self.tokenizer)?;
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
        let conversations = self.conversations()?;
        let n = conversations.len();
        let n_val = (n as f64 * self.val_ratio).round() as usize;
        let n_train = n.saturating_sub(n_val);
        if n_val == 0 || n_train == 0 {
            let what = format!(
                "`data.val_ratio` leaves {n_train} of its {n} conversations to train on and \
                 {n_val} to validate on"
            );
            return Err(Error::Format { path: self.file.clone(), what });
        }
        let classes = tokenizer.vocabulary();
        let all = Arc::new(Chats { source: self.clone(), tokenizer, template, end, conversations });
        let part = |first, n| Arc::new(Part { all: all.clone(), first, n, shape: [self.seq_len] });
        Ok(Splits { train: part(0, n_train), val: part(n_train, n_val), test: None, classes })
    }

    /// The messages of each conversation, with its line or place in the list.
    fn conversations(&self) -> Result<Vec<Conversation>, Error> {
        let bytes = read::table("the conversations", &self.file, EXPECTED)
            .or_else(|error| self.long_line(error))?;
        if bytes.trim_ascii_start().starts_with(b"[") {
            let list: Vec<Value> = serde_json::from_slice(&bytes).map_err(|error| {
                let what = format!("it is not a JSON list: {error}");
                Error::Format { path: self.file.clone(), what }
            })?;
            let places = (1..).zip(&list);
            let chat = |(place, value): (u64, &Value)| self.chat(place, value);
            return places.map(chat).collect();
        }
        let lines = (1..).zip(bytes.split(|&byte| byte == b'\n'));
        let lines = lines.filter(|(_, text)| !text.trim_ascii().is_empty());
        let chat = |(line, text): (u64, &[u8])| {
            let value = serde_json::from_slice(text).map_err(|error| {
                let what = format!("it is not JSON: {error}; expected is {EXPECTED}");
                Error::Line { path: self.file.clone(), line, what }
            })?;
            self.chat(line, &value)
        };
        lines.map(chat).collect()
    }

    /// A list may stand in one line, however long.
    fn long_line(&self, error: Error) -> Result<Vec<u8>, Error> {
        match read::whole(&self.file) {
            Ok(bytes) if bytes.trim_ascii_start().starts_with(b"[") => Ok(bytes),
            _ => Err(error),
        }
    }

    fn chat(&self, line: u64, value: &Value) -> Result<Conversation, Error> {
        let messages =
            messages(value).map_err(|what| Error::Line { path: self.file.clone(), line, what })?;
        Ok(Conversation { line, messages })
    }
}

/// A conversation, in the line or at the place of its file.
struct Conversation {
    line: u64,
    messages: Vec<Value>,
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

/// What both parts share.
struct Chats {
    source: Chat,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    end: u32,
    conversations: Vec<Conversation>,
}

impl Chats {
    /// What the model sees, and what is to follow each token.
    fn sample(&self, messages: &[Value]) -> Result<(Vec<u32>, Vec<u32>), String> {
        let (seq_len, end) = (self.source.seq_len, self.end);
        if !self.source.mask_prompt {
            let text = self.template.whole(messages)?;
            let tokens = self.tokenizer.encode(&text, false)?;
            return Ok(padded(tokens, |_| true, seq_len, end));
        }
        let chat = self.template.chat(messages)?;
        let spans = self.tokenizer.encode_spans(&chat.text)?;
        // A token counts that holds a byte of an answer, as in transformers.
        let is_answered = |i: usize| {
            let span = &spans[i].1;
            chat.answers.iter().any(|answer| span.start < answer.end && answer.start < span.end)
        };
        let tokens = spans.iter().map(|(token, _)| *token).collect();
        Ok(padded(tokens, is_answered, seq_len, end))
    }
}

/// Conversations that stand one after the other.
struct Part {
    all: Arc<Chats>,
    first: usize,
    n: usize,
    shape: [usize; 1],
}

impl Dataset for Part {
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
        let line = self.all.conversations[self.first + index].line;
        format!("conversation {line} of `{}`", shown(&self.all.source.file))
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let Conversation { line, messages } = &self.all.conversations[self.first + index];
        let (seen, next) = self.all.sample(messages).map_err(|why| SampleError::Decode {
            path: self.all.source.file.clone(),
            reason: format!("conversation {line}: {why}"),
        })?;
        values.extend(seen.into_iter().map(|token| token as f32));
        Ok(Target::Classes(next))
    }
}

#[cfg(test)]
mod tests;
