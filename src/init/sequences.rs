//! Files of sequences: tokens, instructions, conversations and recorded behaviour.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::data::{self, ChatTemplate, Tokenizer};
use crate::files;
use crate::init::recognised::{BaseModel, RecognisedData, SEQ_LEN, Task, path, unusable};
use crate::model::LlamaFamily;
use crate::user_error::ErrorPage;

/// Size of GPT-2's vocabulary, the default of the data set.
const GPT2_VOCABULARY: usize = 50_257;
/// A vocabulary is rounded up to a multiple of this, as nanoGPT does.
const MULTIPLE: usize = 64;

/// Files of tokens to train on and to validate on, with the size of their vocabulary.
pub(super) fn tokens(train: &Path, val: &Path) -> Result<RecognisedData, ErrorPage> {
    let mut options =
        vec![("train_file", path(train)), ("val_file", path(val)), ("seq_len", SEQ_LEN.into())];
    let most = data::largest_token(train)?.max(data::largest_token(val)?) as usize;
    // The tokens of a part of a text need not hold the last words of its vocabulary.
    if !(GPT2_VOCABULARY / 2..GPT2_VOCABULARY).contains(&most) {
        options.push(("vocab_size", (most + 1).next_multiple_of(MULTIPLE).into()));
    }
    Ok(RecognisedData::new("tokens", &options, Task::Tokens { largest: most }))
}

/// Tokens that a model sees of an entry.
const OF_INSTRUCTION: u64 = 256;
const OF_CHAT: u64 = 512;
/// Ends a message in `ChatML`.
const CHATML_END: &str = "<|im_end|>";

/// Instructions in Alpaca's form.
pub(super) fn instructions(at: &Path) -> Result<RecognisedData, ErrorPage> {
    let tokenizer = tokenizer(at)?;
    let options =
        [("file", path(at)), ("tokenizer", path(&tokenizer)), ("seq_len", OF_INSTRUCTION.into())];
    let base = base_model(&tokenizer);
    Ok(RecognisedData::new("instructions", &options, Task::Instructions { base }))
}

/// Conversations, written by the template beside the tokenizer, or by `ChatML`'s.
pub(super) fn chats(at: &Path) -> Result<RecognisedData, ErrorPage> {
    let tokenizer = tokenizer(at)?;
    let mut options =
        vec![("file", path(at)), ("tokenizer", path(&tokenizer)), ("seq_len", OF_CHAT.into())];
    if ChatTemplate::open(&tokenizer, None).is_err() {
        options.push(("chat_template", "chatml".into()));
        // The end of a text in the tokenizer of a base model is not that of an answer.
        let tokenizer = Tokenizer::open(&tokenizer)?;
        if tokenizer.end(Some(CHATML_END)).is_some() {
            options.push(("eos_token", CHATML_END.into()));
        }
    }
    let base = base_model(&tokenizer);
    Ok(RecognisedData::new("chat", &options, Task::Chats { base }))
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

/// The language model beside a tokenizer, if it is of a family that is known.
fn base_model(tokenizer: &Path) -> Option<BaseModel> {
    let config = files::read(&tokenizer.with_file_name("config.json")).ok()?;
    let config: Value = serde_json::from_slice(&config).ok()?;
    let family = LlamaFamily::of_model_type(config["model_type"].as_str()?)?;
    let files = ["model.safetensors", "model.safetensors.index.json"];
    let mut files = files.into_iter().map(|name| tokenizer.with_file_name(name));
    let weights = files.find(|path| path.is_file())?;
    Some(BaseModel { weights, family })
}

/// Observations and actions of an npz or parquet file, or of a folder of `LeRobot`.
pub(super) fn behaviour(at: &Path) -> Result<RecognisedData, ErrorPage> {
    #[cfg(feature = "trajectories")]
    let cameras = crate::trajectories::cameras(at)?;
    #[cfg(not(feature = "trajectories"))]
    let cameras = Vec::<String>::new();
    let mut options = vec![("file", path(at))];
    if !cameras.is_empty() {
        options.push(("cameras", cameras.into()));
    }
    Ok(RecognisedData::new("trajectories", &options, Task::Behaviour))
}
