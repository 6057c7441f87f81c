//! Instructions and conversations: their tokenizer, its template, and weights to start from.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::data::ChatTemplate;
use crate::init::recognised::{Recognised, Task, path, unusable};
use crate::user_error::ErrorPage;

/// Tokens that a model sees of an entry.
const OF_INSTRUCTION: u64 = 256;
const OF_CHAT: u64 = 512;

/// Instructions in Alpaca's form.
pub(super) fn instructions(at: &Path) -> Result<Recognised, ErrorPage> {
    let tokenizer = tokenizer(at)?;
    let options =
        [("file", path(at)), ("tokenizer", path(&tokenizer)), ("seq_len", OF_INSTRUCTION.into())];
    let base = weights(&tokenizer);
    Ok(Recognised::new("instructions", &options, Task::Instructions { base }))
}

/// Conversations, written by the template beside the tokenizer, or by `ChatML`'s.
pub(super) fn chats(at: &Path) -> Result<Recognised, ErrorPage> {
    let tokenizer = tokenizer(at)?;
    let mut options =
        vec![("file", path(at)), ("tokenizer", path(&tokenizer)), ("seq_len", OF_CHAT.into())];
    if ChatTemplate::open(&tokenizer, None).is_err() {
        options.push(("chat_template", "chatml".into()));
    }
    let base = weights(&tokenizer);
    Ok(Recognised::new("chat", &options, Task::Chats { base }))
}

/// The tokenizer beside a file.
fn tokenizer(at: &Path) -> Result<PathBuf, ErrorPage> {
    let tokenizer = at.with_file_name("tokenizer.json");
    if tokenizer.is_file() {
        return Ok(tokenizer);
    }
    let what = "needs a tokenizer: there is no `tokenizer.json` beside it";
    let help = "put that of a model of the HuggingFace hub there; with its `config.json` and \
                `model.safetensors`, adapters of that model are trained";
    Err(unusable(at, what, help))
}

/// The weights beside a tokenizer, if they are those of a Llama.
fn weights(tokenizer: &Path) -> Option<PathBuf> {
    let config = crate::files::read(&tokenizer.with_file_name("config.json")).ok()?;
    let config: Value = serde_json::from_slice(&config).ok()?;
    let is_llama = ["llama", "mistral"].iter().any(|name| config["model_type"] == *name);
    let files = ["model.safetensors", "model.safetensors.index.json"];
    let mut files = files.into_iter().map(|name| tokenizer.with_file_name(name));
    files.find(|path| is_llama && path.is_file())
}
