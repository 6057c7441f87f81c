//! GPT-2.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Config, Refused, is_off, unsupported};
use crate::model::pretrained::weights_file;
use crate::model::{Gelu, GptConfig, InferredOptions};
use crate::nn::state_dict::header;
use crate::plan::ModelPlan;

#[derive(Deserialize)]
struct Sizes {
    vocab_size: u32,
    n_embd: u32,
    n_layer: u32,
    n_head: u32,
    #[serde(default = "gelu_new")]
    activation_function: String,
}

/// Default of `transformers`.
fn gelu_new() -> String {
    "gelu_new".to_owned()
}

/// Reads the options of a file; none if it is no description by `transformers`.
pub(in crate::model) fn read(
    config: &Config,
    seq_len: Option<u32>,
) -> Result<InferredOptions, Refused> {
    if !config.contains_key("model_type") && !config.contains_key("n_embd") {
        return Ok(InferredOptions::default());
    }
    let mut wrong = unsupported_keys(config, seq_len);
    if let Some(other) = wrong.iter().find(|wrong| wrong.contains("model_type")) {
        return Err(Refused::Unsupported(vec![other.clone()]));
    }
    let sizes: Sizes =
        serde_json::from_value(Value::Object(config.clone())).map_err(Refused::Format)?;
    let activation = match sizes.activation_function.as_str() {
        "gelu" => Gelu::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => Gelu::GeluTanh,
        other => {
            wrong.push(format!("`activation_function` = {other:?}"));
            Gelu::Gelu
        }
    };
    if !wrong.is_empty() {
        return Err(Refused::Unsupported(wrong));
    }
    let mut found = InferredOptions::of_outputs(sizes.vocab_size);
    found.set("d_model", sizes.n_embd);
    found.set("n_layers", sizes.n_layer);
    found.set("n_heads", sizes.n_head);
    found.set("bias", true);
    found.set("activation", activation);
    Ok(found)
}

/// Rows of the position embedding in the weights at `path`.
pub(in crate::model) fn positions(path: &Path) -> Option<usize> {
    let file = header(&weights_file(path)).ok()?;
    let table = file.iter().find(|(key, _)| key.ends_with("wpe.weight"))?;
    table.1.shape.first().copied()
}

/// `config.json` of `gpt` for `transformers`.
pub(in crate::model) fn config_json(gpt: &GptConfig, plan: &ModelPlan, positions: usize) -> Value {
    /// The last token of GPT-2's vocabulary.
    const END_OF_TEXT: usize = 50_256;
    let end = (plan.outputs == END_OF_TEXT + 1).then_some(END_OF_TEXT);
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": plan.outputs,
        "n_positions": positions,
        "n_embd": gpt.d_model,
        "n_layer": gpt.n_layers,
        "n_head": gpt.n_heads,
        "n_inner": null,
        "activation_function": match gpt.activation {
            Gelu::Gelu => "gelu",
            Gelu::GeluTanh => "gelu_new",
        },
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": true,
        "tie_word_embeddings": true,
        "resid_pdrop": gpt.dropout,
        "embd_pdrop": gpt.dropout,
        "attn_pdrop": gpt.dropout,
        "bos_token_id": end,
        "eos_token_id": end,
    })
}

fn unsupported_keys(config: &Config, seq_len: Option<u32>) -> Vec<String> {
    let width = config.get("n_embd").and_then(Value::as_u64);
    let is_gpt2 = |value: &Value| value == "gpt2";
    let is_four_times = |value: &Value| value.as_u64() == width.map(|width| 4 * width);
    let is_usual = |value: &Value| value.as_f64() == Some(1e-5);
    let is_on = |value: &Value| value == true;
    let is_enough = |value: &Value| {
        value.as_u64().is_some_and(|n| seq_len.is_none_or(|seq_len| n >= u64::from(seq_len)))
    };
    unsupported(
        config,
        &[
            ("model_type", &is_gpt2),
            ("n_positions", &is_enough),
            ("n_inner", &is_four_times),
            ("layer_norm_epsilon", &is_usual),
            ("scale_attn_weights", &is_on),
            ("scale_attn_by_inverse_layer_idx", &is_off),
            ("add_cross_attention", &is_off),
            ("tie_word_embeddings", &is_on),
            ("quantization_config", &is_off),
        ],
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::completed;
    use super::*;

    const SIZES: &str = r#""vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "n_positions": 1024, "layer_norm_epsilon": 1e-05"#;

    #[test]
    fn gpt2s_sizes_come_from_the_file() {
        let rest = r#""model_type": "gpt2", "activation_function": "gelu_new", "n_inner": null"#;
        let found = completed("gpt", &format!("{{{SIZES}, {rest}}}")).unwrap();
        let expected = json!({
            "d_model": 768, "n_layers": 12, "n_heads": 12, "bias": true, "activation": "gelu_tanh"
        });
        assert_eq!(serde_json::to_value(&found.options).unwrap(), expected);
        assert_eq!(found.outputs, Some(50_257));
        assert_eq!(completed("gpt", r#"{"mine": 1}"#).unwrap(), InferredOptions::default());
    }

    #[test]
    fn what_is_computed_differently_is_refused_by_its_key() {
        for (keys, says) in [
            (r#""model_type": "gpt_neox""#, "`model_type` = \"gpt_neox\", which `gpt`"),
            (r#""n_inner": 100"#, "`n_inner` = 100"),
            (r#""activation_function": "relu""#, "`activation_function` = \"relu\""),
            (r#""n_positions": 4"#, "`n_positions` = 4"),
        ] {
            let sizes = SIZES.replace(r#""n_positions": 1024, "#, "");
            let error = completed("gpt", &format!("{{{sizes}, {keys}}}")).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
