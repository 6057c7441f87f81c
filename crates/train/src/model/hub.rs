//! A model's `config.json`, as it lies beside the weights on the `HuggingFace` hub -> the keys of
//! `[model]`.
//!
//! What the file says of the model's mathematics is either taken over or refused by its name:
//! weights that are computed with otherwise than they were trained have another loss, and nothing
//! else would say so.

pub(super) mod gpt2;
pub(super) mod llama;
pub(super) mod timm;

pub use timm::trained_on;

use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::pretrained::{Completion, DescriptionError as Error, Unfit, read_description};

/// Name of the file.
const FILE: &str = "config.json";

/// How the file of a model is read.
pub(super) struct Reader {
    /// Our model.
    pub(super) model: &'static str,
    /// What the file describes.
    pub(super) what: &'static str,
    /// What the file says for windows of some tokens.
    pub(super) read: fn(&Config, Option<u32>) -> Result<Completion, Refused>,
}

/// What the `config.json` beside the weights `pretrained` says for windows of `seq_len` tokens;
/// nothing if there is none.
pub(super) fn complete(
    reader: &Reader,
    pretrained: Option<&Path>,
    seq_len: Option<u32>,
) -> Result<Completion, Unfit> {
    let beside = pretrained.and_then(Path::parent);
    let Some(path) = beside.map(|folder| folder.join(FILE)) else {
        return Ok(Completion::default());
    };
    described(reader, &path, seq_len).map_err(|error| Unfit::of_description(&error))
}

fn described(reader: &Reader, path: &Path, seq_len: Option<u32>) -> Result<Completion, Error> {
    let &Reader { model, what, read: of } = reader;
    let config: Config = match read_description(path, what) {
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Completion::default());
        }
        config => config?,
    };
    let path = path.to_owned();
    of(&config, seq_len).map_err(|refused| match refused {
        Refused::Format(source) => Error::Format { path, what, source },
        Refused::Foreign(all) => Error::Unknown { path, model, what: all.join(", ") },
    })
}

/// The whole file.
pub(super) type Config = Map<String, Value>;

/// Why a file is of no use.
pub(super) enum Refused {
    /// A number is missing, or is none.
    Format(serde_json::Error),
    /// Keys, with their values, that mean another computation.
    Foreign(Vec<String>),
}

/// A key, and whether a value that is not null means what we compute.
type Rule<'a> = (&'a str, &'a dyn Fn(&Value) -> bool);

/// The keys of `config` that break a rule, as they stand there.
fn foreign(config: &Config, rules: &[Rule<'_>]) -> Vec<String> {
    let found = rules.iter().filter_map(|(key, is_ours)| {
        let value = config.get(*key).filter(|value| !value.is_null() && !is_ours(value))?;
        Some(format!("`{key}` = {}", short(value)))
    });
    found.collect()
}

/// A value as it stands in the file, if that fits a line.
fn short(value: &Value) -> String {
    const MAX_LENGTH: usize = 100;
    let text = value.to_string();
    if text.chars().count() <= MAX_LENGTH {
        text
    } else {
        text.chars().take(MAX_LENGTH).collect::<String>() + " ..."
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Bool(on) => !on,
        Value::Array(items) => items.is_empty(),
        Value::Object(keys) => keys.is_empty(),
        number => number.as_f64() == Some(0.0),
    }
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::{Architecture, GptConfig, LlamaConfig};
    use super::*;

    /// What a `config.json` with this text gives a Llama or a GPT for windows of 8 tokens.
    pub(super) fn completed(name: &str, config: &str) -> Result<Completion, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::File::create(path).unwrap().write_all(config.as_bytes()).unwrap();
        complete_from(name, &folder.path().join("model.safetensors")).map_err(|unfit| unfit.what)
    }

    fn complete_from(name: &str, weights: &Path) -> Result<Completion, Unfit> {
        match name {
            "llama" => LlamaConfig::default().complete(Some(weights), Some(8)),
            _ => GptConfig::default().complete(Some(weights), Some(8)),
        }
    }

    #[test]
    fn without_the_file_nothing_happens() {
        for name in ["llama", "gpt"] {
            let found = complete_from(name, Path::new("/absent/model.safetensors")).unwrap();
            assert_eq!(found, Completion::default());
        }
    }
}
