//! An entry of a file of conversations -> its messages as a chat template is given them, and what
//! of them is learnt.
//!
//! Forms: `messages` (TRL, transformers), `conversations` (ShareGPT), and `instruction`, `input`,
//! `output` (Alpaca, with LLaMA-Factory's `system` and `history`). A key that changes what the
//! model would see is honoured or refused; other keys are reported as unused.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::ChatTemplate;
use crate::chat_template::Rendered;
use crate::error::Error;
use crate::sources::source::Files;
use crate::sources::text::entries::Counted;
use crate::tokenizer::Tokenizer;

/// Keys of a message that say whether an answer is learnt: those of `OpenAI`, axolotl and ms-swift.
const LEARNT: [&str; 4] = ["weight", "train", "training", "loss"];
/// Keys of an entry that are given to the template.
const VARIABLES: [&str; 3] = ["tools", "documents", "chat_template_kwargs"];
/// Variables that no entry can set.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];
/// Further keys of an entry or a message without which it means something else.
const ESSENTIAL: [&str; 14] = [
    "audio",
    "audios",
    "function_call",
    "functions",
    "image",
    "images",
    "reasoning",
    "reasoning_content",
    "thinking",
    "tool_calls",
    "train_detail",
    "training_detail",
    "video",
    "videos",
];

/// A conversation as a chat template is given it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conversation {
    /// Objects with `role` and `content`.
    pub(super) messages: Vec<Value>,
    /// Further variables of the template.
    pub(super) variables: Map<String, Value>,
    /// Answers of the assistant that are not learnt.
    pub(super) untrained: BTreeSet<usize>,
    /// Keys that have no effect, those of messages as `messages.name`.
    pub(super) unused: BTreeSet<String>,
}

/// The token that ends answers: the one that is `named`, or one of the usual ones.
pub(super) fn end_token(
    tokenizer: &Tokenizer,
    path: &Path,
    named: Option<&str>,
) -> Result<u32, Error> {
    tokenizer.end(named).ok_or_else(|| {
        let what = match named {
            Some(name) => format!("it has no token `{name}`, which should end answers"),
            None => "it has none of the usual tokens that end answers".to_owned(),
        };
        Error::Format { path: path.to_owned(), what: what + ": set `data.eos_token`" }
    })
}

/// The tokens of a chat, each with whether it holds a byte of an answer, as in transformers.
pub(super) fn answered_tokens(
    tokenizer: &Tokenizer,
    chat: &Rendered,
) -> Result<Vec<Counted>, String> {
    let spans = tokenizer.encode_spans(&chat.text)?.into_iter();
    let is_answered = |span: &Range<usize>| {
        chat.answers.iter().any(|answer| span.start < answer.end && answer.start < span.end)
    };
    Ok(spans.map(|(token, span)| (token, is_answered(&span))).collect())
}

/// The files of a data set of chats: its own `texts`, the tokenizer, and what the template is read
/// from.
pub(super) fn files_of_chats(
    texts: Files,
    tokenizer: &Path,
    chat_template: Option<&Path>,
) -> Vec<Files> {
    let template = ChatTemplate::files(tokenizer, chat_template);
    let template = template.iter().map(|path| Files::one("chat template", path));
    [texts, Files::one("tokenizer", tokenizer)].into_iter().chain(template).collect()
}

impl Conversation {
    /// Reads `entry`, whose text `template` is to write.
    pub(super) fn of(entry: &Value, template: &ChatTemplate) -> Result<Self, String> {
        let object = entry.as_object().ok_or("it is not a JSON object")?;
        let list = |key: &str| object.get(key).and_then(Value::as_array);
        let mut chat = Self::default();
        let (form, is_openai): (&[&str], bool) = if let Some(messages) = list("messages") {
            chat.messages.clone_from(messages);
            (&["messages", "system"], true)
        } else if let Some(turns) = list("conversations") {
            chat.messages = turns.iter().map(of_share_gpt).collect::<Result<_, _>>()?;
            (&["conversations", "system"], false)
        } else if object.contains_key("instruction") && object.contains_key("output") {
            chat.messages = of_alpaca(object)?;
            (&["instruction", "input", "output", "history", "system"], false)
        } else {
            return Err("it has neither `messages`, nor `conversations`, nor `instruction` and \
                        `output`"
                .to_owned());
        };
        chat.begin_with_system(object)?;
        chat.give_variables(object, is_openai, template)?;
        chat.keep_used_keys(template)?;
        let known = |key: &str| form.contains(&key) || VARIABLES.contains(&key);
        for (key, value) in object.iter().filter(|(key, value)| !known(key) && !is_empty(value)) {
            refuse_essential(key, value, "it")?;
            chat.unused.insert(key.clone());
        }
        if chat.messages.iter().any(is_answer) {
            return Ok(chat);
        }
        Err("no message of it has the role `assistant`: there is nothing to learn".to_owned())
    }

    /// Puts the entry's `system` before the messages, unless they begin with one of their own.
    fn begin_with_system(&mut self, entry: &Map<String, Value>) -> Result<(), String> {
        let Some(system) = entry.get("system").filter(|system| !is_empty(system)) else {
            return Ok(());
        };
        let system = system.as_str().ok_or("its `system` is not text")?;
        if self.messages.first().is_some_and(|first| first["role"] == "system") {
            self.unused.insert("system".to_owned());
        } else {
            self.messages.insert(0, json!({"role": "system", "content": system}));
        }
        Ok(())
    }

    /// Takes the variables of the template out of an entry.
    fn give_variables(
        &mut self,
        entry: &Map<String, Value>,
        is_openai: bool,
        template: &ChatTemplate,
    ) -> Result<(), String> {
        for key in VARIABLES {
            let Some(value) = entry.get(key).filter(|value| !is_empty(value)) else { continue };
            let parsed = match value {
                Value::String(text) => serde_json::from_str(text)
                    .map_err(|error| format!("its `{key}` are text that is not JSON: {error}"))?,
                value => value.clone(),
            };
            match (key, parsed) {
                (_, parsed) if is_empty(&parsed) => {}
                ("chat_template_kwargs", Value::Object(all)) => {
                    for (name, value) in all {
                        if RESERVED.contains(&name.as_str()) {
                            return Err(format!("its `{key}` cannot set `{name}`"));
                        }
                        refuse_unread(template, &name, &format!("its `{key}` set `{name}`"))?;
                        self.variables.insert(name, value);
                    }
                }
                ("tools" | "documents", Value::Array(all)) if all.iter().all(Value::is_object) => {
                    refuse_unread(template, key, &format!("it has `{key}`"))?;
                    let wrapped = |it| if key == "tools" && !is_openai { as_tool(it) } else { it };
                    self.variables.insert(key.to_owned(), all.into_iter().map(wrapped).collect());
                }
                ("chat_template_kwargs", _) => return Err(format!("its `{key}` are no object")),
                _ => return Err(format!("its `{key}` are not a list of objects")),
            }
        }
        Ok(())
    }

    /// Reads the keys that control training, and refuses or notes those that the template does not
    /// read.
    fn keep_used_keys(&mut self, template: &ChatTemplate) -> Result<(), String> {
        for (index, message) in self.messages.iter_mut().enumerate() {
            let number = index + 1;
            let is_answer = is_answer(message);
            let keys = message
                .as_object_mut()
                .ok_or_else(|| format!("its message {number} is not a JSON object"))?;
            if !keys.get("role").is_some_and(Value::is_string) {
                return Err(format!("its message {number} has no `role`"));
            }
            let named = format!("its message {number}");
            match (is_learnt(keys, &named)?, is_answer) {
                (Some(false), true) => drop(self.untrained.insert(index)),
                (Some(true), false) => {
                    return Err(format!(
                        "{named} is to be learnt, but only answers of the assistant are"
                    ));
                }
                _ => {}
            }
            keys.retain(|key, value| key == "content" || !value.is_null());
            for (key, value) in keys.iter() {
                if matches!(key.as_str(), "role" | "content") || template.reads(key) {
                    continue;
                }
                refuse_essential(key, value, &named)?;
                if !is_empty(value) {
                    self.unused.insert(format!("messages.{key}"));
                }
            }
        }
        Ok(())
    }
}

fn is_answer(message: &Value) -> bool {
    message["role"] == "assistant"
}

/// True for what programs write in the place of nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(keys) => keys.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn refuse_essential(key: &str, value: &Value, whose: &str) -> Result<(), String> {
    if !ESSENTIAL.contains(&key) || is_empty(value) {
        return Ok(());
    }
    Err(match key {
        "audio" | "audios" | "image" | "images" | "video" | "videos" => {
            format!("{whose} has `{key}`, but only text is learnt")
        }
        "functions" => format!("{whose} has `{key}`: write them as `tools`"),
        "train_detail" | "training_detail" => {
            format!("{whose} has `{key}`: an answer is learnt whole, or not at all (`train`)")
        }
        _ => format!("{whose} has `{key}`, which the chat template does not write"),
    })
}

/// Refuses a variable that the template would drop.
fn refuse_unread(template: &ChatTemplate, name: &str, what: &str) -> Result<(), String> {
    if template.reads(name) {
        return Ok(());
    }
    Err(format!("{what}, which the chat template does not read"))
}

/// Takes out of a message whether it is learnt; `None` where it does not say so.
fn is_learnt(message: &mut Map<String, Value>, named: &str) -> Result<Option<bool>, String> {
    let mut learnt = None;
    for key in LEARNT {
        let said = match message.remove(key) {
            None | Some(Value::Null) => continue,
            Some(Value::Bool(said)) => said,
            Some(value) => match value.as_f64() {
                Some(0.0) => false,
                Some(1.0) => true,
                _ => return Err(format!("{named} has `{key}` {value}, which is neither 0 nor 1")),
            },
        };
        if learnt.is_some_and(|other: bool| other != said) {
            return Err(format!("{named} is to be learnt and not to be learnt (`{key}`)"));
        }
        learnt = Some(said);
    }
    Ok(learnt)
}

/// A turn of ShareGPT's as a message, with its other keys.
fn of_share_gpt(turn: &Value) -> Result<Value, String> {
    let Some(object) = turn.as_object() else {
        return Err("a turn of it is not a JSON object".to_owned());
    };
    if turn["role"].is_string() {
        return Ok(turn.clone());
    }
    let mut message = object.clone();
    let from = message.remove("from").ok_or("a turn of it has no `from`")?;
    let role = match from.as_str() {
        Some("human" | "user") => "user",
        Some("gpt" | "assistant" | "model" | "chatgpt" | "bing" | "bard") => "assistant",
        Some("system") => "system",
        Some("tool" | "function" | "observation" | "function_response") => "tool",
        Some("function_call") => return of_call(message),
        _ => return Err(format!("a turn of it is from {from}, who is not known")),
    };
    let value = message.remove("value").filter(Value::is_string);
    message.insert("role".to_owned(), role.into());
    message.insert("content".to_owned(), value.ok_or("a turn of it has no `value`")?);
    Ok(Value::Object(message))
}

/// A call, which LLaMA-Factory has as JSON text, as a message of the assistant.
fn of_call(mut message: Map<String, Value>) -> Result<Value, String> {
    let text = message.remove("value");
    let calls = text.as_ref().and_then(Value::as_str).unwrap_or_default();
    let calls = match serde_json::from_str(calls) {
        Ok(Value::Array(calls)) => calls,
        Ok(call) => vec![call],
        Err(error) => return Err(format!("its `function_call` is not JSON: {error}")),
    };
    if !calls.iter().all(|call| call["name"].is_string()) {
        return Err("its `function_call` has no `name`".to_owned());
    }
    let call = |call: Value| json!({"type": "function", "function": call});
    message.insert("role".to_owned(), "assistant".into());
    message.insert("content".to_owned(), "".into());
    message.insert("tool_calls".to_owned(), calls.into_iter().map(call).collect());
    Ok(Value::Object(message))
}

/// A function as templates expect it: data sets in ShareGPT's form often have it bare.
fn as_tool(tool: Value) -> Value {
    let is_bare = tool["name"].is_string() && tool["function"].is_null();
    if is_bare { json!({"type": "function", "function": tool}) } else { tool }
}

fn of_alpaca(entry: &Map<String, Value>) -> Result<Vec<Value>, String> {
    let text = |key: &str| match entry.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(value) => value.as_str().ok_or_else(|| format!("its `{key}` is not text")),
    };
    let mut messages = Vec::new();
    let mut turn = |question: String, answer: &str| {
        messages.push(json!({"role": "user", "content": question}));
        messages.push(json!({"role": "assistant", "content": answer}));
    };
    let history = match entry.get("history") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(history)) => history,
        Some(_) => return Err("its `history` is not a list".to_owned()),
    };
    for pair in history {
        let [Some(question), Some(answer)] = [0, 1].map(|at| pair[at].as_str()) else {
            return Err("its `history` is not a list of pairs of question and answer".to_owned());
        };
        turn(question.to_owned(), answer);
    }
    let question = [text("instruction")?, text("input")?];
    let question: Vec<&str> = question.into_iter().filter(|text| !text.is_empty()).collect();
    turn(question.join("\n"), text("output")?);
    Ok(messages)
}
