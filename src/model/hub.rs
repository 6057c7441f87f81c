//! A model's `config.json`, as it lies beside the weights on the `HuggingFace` hub -> the keys of `[model]`.

use std::io;
use std::path::Path;

use serde::Deserialize;

use super::description::{Error, read};
use crate::config::schema::Model;
use crate::config::values::Auto;

/// Name of the file.
const FILE: &str = "config.json";

/// What is read of it. Numbers that older files leave away have the values that `HuggingFace` gives them.
#[derive(Deserialize)]
struct Config {
    vocab_size: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    #[serde(default)]
    tie_word_embeddings: bool,
    hidden_act: Option<String>,
    #[serde(default)]
    rope_scaling: serde_json::Value,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

/// Fills the keys of `model` that were not given from the `config.json` beside its pretrained weights. Nothing happens
/// if there is none, or the model is no Llama.
///
/// # Errors
///
/// The file cannot be read, does not describe a Llama, or one of another kind than `llama` computes.
pub fn complete(model: &mut Model) -> Result<(), Error> {
    let beside = model.pretrained.as_deref().and_then(Path::parent);
    let Some(path) = beside.map(|folder| folder.join(FILE)).filter(|_| model.name == "llama")
    else {
        return Ok(());
    };
    match read(&path, "a Llama") {
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        config => fill(model, &config?).map_err(|what| Error::Unknown { path, what }),
    }
}

/// The keys that are absent; an `Err` says what cannot be computed.
fn fill(model: &mut Model, config: &Config) -> Result<(), String> {
    let refused = [
        (!config.rope_scaling.is_null(), format!("`rope_scaling` = {}", config.rope_scaling)),
        (config.attention_bias, "`attention_bias` = true".to_owned()),
        (config.mlp_bias, "`mlp_bias` = true".to_owned()),
        (
            config.hidden_act.as_deref().is_some_and(|name| name != "silu"),
            format!("`hidden_act` = {:?}", config.hidden_act.as_deref().unwrap_or_default()),
        ),
        (
            config.head_dim.is_some_and(|d| {
                u64::from(d) * u64::from(config.num_attention_heads)
                    != u64::from(config.hidden_size)
            }),
            "`head_dim` other than `hidden_size` / `num_attention_heads`".to_owned(),
        ),
    ];
    if let Some((_, what)) = refused.into_iter().find(|(found, _)| *found) {
        return Err(what);
    }
    if model.num_classes.given().is_none() {
        model.num_classes = Auto::Given(config.vocab_size);
    }
    let heads = config.num_attention_heads;
    let _ = model.d_model.get_or_insert(config.hidden_size);
    let _ = model.d_ff.get_or_insert(config.intermediate_size);
    let _ = model.n_layers.get_or_insert(config.num_hidden_layers);
    let _ = model.n_heads.get_or_insert(heads);
    let _ = model.n_kv_heads.get_or_insert(config.num_key_value_heads.unwrap_or(heads));
    let _ = model.rope_theta.get_or_insert(config.rope_theta.unwrap_or(1e4));
    let _ = model.norm_eps.get_or_insert(config.rms_norm_eps.unwrap_or(1e-6));
    let _ = model.tie_word_embeddings.get_or_insert(config.tie_word_embeddings);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::config::{Vocabulary, load_text};

    /// `[model]` of a file that names these weights, with `d_ff` given.
    fn model(pretrained: &Path) -> Model {
        let text = format!(
            "[model]\nname = \"llama\"\nd_ff = 99\npretrained = {pretrained:?}\n\
             [data]\nname = \"tokens\"\nfile = \"x\"\nseq_len = 8\n[train]\nsteps = 1\nbatch_size = 2\n"
        );
        let known = Vocabulary { models: vec!["llama".to_owned()] };
        load_text(Path::new("x.toml"), &text, &[], &known).unwrap().experiment.model
    }

    fn completed(config: &str) -> Result<Model, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::File::create(folder.path().join(FILE))
            .unwrap()
            .write_all(config.as_bytes())
            .unwrap();
        let mut model = model(&folder.path().join("model.safetensors"));
        complete(&mut model).map_err(|error| error.to_string())?;
        Ok(model)
    }

    const SIZES: &str = r#""vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3"#;

    #[test]
    fn keys_that_are_not_given_come_from_the_file() {
        let rest = r#""rope_theta": 100000, "tie_word_embeddings": true, "rope_scaling": null"#;
        let found = completed(&format!("{{{SIZES}, {rest}, \"hidden_act\": \"silu\"}}")).unwrap();
        assert_eq!((found.d_model, found.d_ff, found.n_layers), (Some(576), Some(99), Some(30)));
        assert_eq!((found.n_heads, found.n_kv_heads), (Some(9), Some(3)));
        assert_eq!((found.rope_theta, found.norm_eps), (Some(1e5), Some(1e-6)));
        assert_eq!(found.tie_word_embeddings, Some(true));
        assert_eq!(found.num_classes, Auto::Given(49_152));
        let mut without = model(Path::new("/absent/model.safetensors"));
        complete(&mut without).unwrap();
        assert_eq!((without.d_model, without.n_kv_heads), (None, None));
    }

    #[test]
    fn what_is_computed_differently_is_refused_by_its_key() {
        for (key, says) in [
            (r#""rope_scaling": {"rope_type": "llama3"}"#, "`rope_scaling`"),
            (r#""attention_bias": true"#, "`attention_bias`"),
            (r#""hidden_act": "gelu""#, "`hidden_act` = \"gelu\""),
            (r#""head_dim": 128"#, "`head_dim`"),
        ] {
            let error = completed(&format!("{{{SIZES}, {key}}}")).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let error = completed(r#"{"vocab_size": 5}"#).unwrap_err();
        assert!(error.contains("missing field `hidden_size`"), "{error}");
    }
}
