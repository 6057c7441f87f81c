//! A model's `config.json`, as it lies beside the weights on the `HuggingFace` hub -> the keys of
//! `[model]`.
//!
//! Every key of the file that affects the computation is either taken over or refused by its name:
//! weights used in another computation than that of their training have a larger loss, without any
//! error.

pub(super) mod gpt2;
pub(super) mod llama;
pub(super) mod timm;

pub use timm::trained_on;

use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::pretrained::{
    DescriptionError as Error, InferredOptions, PretrainedError, read_description,
};

const FILE: &str = "config.json";

/// Options from the `config.json` beside the weights `pretrained` for windows of `seq_len` tokens;
/// none if there is no such file. `read` reads the description of `what`, for our `model`.
pub(super) fn complete(
    model: &'static str,
    what: &'static str,
    read: fn(&Config, Option<u32>) -> Result<InferredOptions, Refused>,
    pretrained: Option<&Path>,
    seq_len: Option<u32>,
) -> Result<InferredOptions, PretrainedError> {
    let Some(folder) = pretrained.and_then(Path::parent) else {
        return Ok(InferredOptions::default());
    };
    let path = folder.join(FILE);
    let config: Config = match read_description(&path, what) {
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(InferredOptions::default());
        }
        config => config.map_err(|error| PretrainedError::of_description(&error))?,
    };
    read(&config, seq_len).map_err(|refused| {
        PretrainedError::of_description(&match refused {
            Refused::Format(source) => Error::Format { path, what, source },
            Refused::Unsupported(all) => Error::Unknown { path, model, what: all.join(", ") },
        })
    })
}

/// The content of the file.
pub(super) type Config = Map<String, Value>;

/// Why a file cannot be used.
pub(super) enum Refused {
    /// A number is missing or malformed.
    Format(serde_json::Error),
    /// Keys, with their values, that mean another computation.
    Unsupported(Vec<String>),
}

/// A key, and a predicate of its non-null values that we compute.
type Rule<'a> = (&'a str, &'a dyn Fn(&Value) -> bool);

/// Keys of `config` that break a rule, with their values.
fn unsupported(config: &Config, rules: &[Rule<'_>]) -> Vec<String> {
    let found = rules.iter().filter_map(|(key, is_ours)| {
        let value = config.get(*key).filter(|value| !value.is_null() && !is_ours(value))?;
        Some(format!("`{key}` = {}", short(value)))
    });
    found.collect()
}

/// The JSON of a value, cut to the length of a line.
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

    /// Options of a Llama or a GPT from a `config.json` with this text, for windows of 8 tokens.
    pub(super) fn completed(name: &str, config: &str) -> Result<InferredOptions, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::File::create(path).unwrap().write_all(config.as_bytes()).unwrap();
        complete_from(name, &folder.path().join("model.safetensors")).map_err(|unfit| unfit.what)
    }

    fn complete_from(name: &str, weights: &Path) -> Result<InferredOptions, PretrainedError> {
        match name {
            "llama" => LlamaConfig::default().complete(Some(weights), Some(8)),
            _ => GptConfig::default().complete(Some(weights), Some(8)),
        }
    }

    #[test]
    fn without_the_file_nothing_happens() {
        for name in ["llama", "gpt"] {
            let found = complete_from(name, Path::new("/absent/model.safetensors")).unwrap();
            assert_eq!(found, InferredOptions::default());
        }
    }
}
