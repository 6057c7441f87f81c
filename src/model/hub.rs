//! A model's `config.json`, as it lies beside the weights on the `HuggingFace` hub -> the keys of `[model]`.
//!
//! What the file says of the model's mathematics is either taken over or refused by its name: weights that are computed
//! with otherwise than they were trained have another loss, and nothing else would say so.

mod gpt2;
mod llama;
mod rope;

use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::description::{Error, read};
use crate::config::schema::Model;

/// Name of the file.
const FILE: &str = "config.json";

/// Fills the keys of `model` that were not given from the `config.json` beside its pretrained weights, for windows of
/// `seq_len` tokens. Nothing happens if there is none, or the model is neither a Llama nor a GPT.
///
/// # Errors
///
/// The file cannot be read, does not describe such a model, or one that is computed in another way.
pub fn complete(model: &mut Model, seq_len: Option<u32>) -> Result<(), Error> {
    let (name, what, fill): (_, _, Fill) = match model.name.as_str() {
        "llama" => ("llama", "a Llama", llama::fill),
        "gpt" => ("gpt", "a GPT", gpt2::fill),
        _ => return Ok(()),
    };
    let beside = model.pretrained.as_deref().and_then(Path::parent);
    let Some(path) = beside.map(|folder| folder.join(FILE)) else { return Ok(()) };
    let config: Config = match read(&path, what) {
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(());
        }
        config => config?,
    };
    fill(model, &config, seq_len).map_err(|refused| match refused {
        Refused::Format(source) => Error::Format { path, what, source },
        Refused::Foreign(all) => Error::Unknown { path, model: name, what: all.join(", ") },
    })
}

type Fill = fn(&mut Model, &Config, Option<u32>) -> Result<(), Refused>;

/// The whole file.
type Config = Map<String, Value>;

/// Why a file is of no use.
enum Refused {
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
    const LONGEST: usize = 100;
    let text = value.to_string();
    if text.chars().count() <= LONGEST {
        text
    } else {
        text.chars().take(LONGEST).collect::<String>() + " ..."
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

    use super::*;
    use crate::config::{Vocabulary, load_text};

    /// `[model]` of a file that names these weights, and windows of 8 tokens, with `d_ff` given to a Llama.
    fn model(name: &str, pretrained: &Path) -> Model {
        let more = if name == "llama" { "d_ff = 99\n" } else { "" };
        let text = format!(
            "[model]\nname = \"{name}\"\n{more}pretrained = {pretrained:?}\n\
             [data]\nname = \"tokens\"\nfile = \"x\"\nseq_len = 8\n[train]\nsteps = 1\nbatch_size = 2\n"
        );
        let known = Vocabulary::of_models([name]);
        load_text(Path::new("x.toml"), &text, &[], &known).unwrap().experiment.model
    }

    pub(super) fn completed(name: &str, config: &str) -> Result<Model, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::File::create(folder.path().join(FILE))
            .unwrap()
            .write_all(config.as_bytes())
            .unwrap();
        let mut model = model(name, &folder.path().join("model.safetensors"));
        complete(&mut model, Some(8)).map_err(|error| error.to_string())?;
        Ok(model)
    }

    #[test]
    fn without_the_file_or_for_another_model_nothing_happens() {
        for name in ["llama", "gpt"] {
            let mut without = model(name, Path::new("/absent/model.safetensors"));
            complete(&mut without, None).unwrap();
            assert_eq!((without.d_model, without.n_heads), (None, None));
        }
        assert_eq!(completed("mlp", "{]").unwrap().d_model, None);
    }
}
