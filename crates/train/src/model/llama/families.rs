//! The families that are known: one entry each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::HiddenAct;
use super::family::{
    Bias, FamilySpec, Key, Mlp, NormKind, Norms, Positions, QkNorm, Qkv, Tensors, ValueKind,
    Windows,
};

/// Families of language models, by their `model_type` in `transformers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LlamaFamily {
    /// Llama 1 to 3.
    #[default]
    Llama,
    /// Mistral: a sliding window in all layers.
    Mistral,
    /// Qwen 2 and 2.5: biases of queries, keys and values.
    Qwen2,
    /// Qwen 3: norms of the queries and keys of each head.
    Qwen3,
    /// Gemma 2: soft caps, norms before and after, windows in every other layer.
    Gemma2,
    /// Gemma 3, of text alone: windows in five layers of six, with positions of their own.
    Gemma3Text,
    /// Phi-3 and Phi-4-mini: fused layers, long contexts.
    Phi3,
    /// `SmolLM3`: one layer of four without positions.
    Smollm3,
    /// `OLMo` 2: norms after each part only, and of all queries and keys together.
    Olmo2,
    /// Granite 3: multipliers.
    Granite,
    /// GPT-NeoX and Pythia: attention and feed-forward part side by side.
    GptNeox,
    /// OPT: learnt positions.
    Opt,
}

impl LlamaFamily {
    /// All of them.
    pub(in crate::model) const ALL: [Self; 12] = [
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Gemma2,
        Self::Gemma3Text,
        Self::Phi3,
        Self::Smollm3,
        Self::Olmo2,
        Self::Granite,
        Self::GptNeox,
        Self::Opt,
    ];

    /// The family of this `model_type`.
    pub fn of_model_type(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.spec().model_type == name)
    }

    /// Layers that may have adapters, those first that have them by default.
    pub fn adapter_layers(self) -> (&'static [&'static str], Vec<&'static str>) {
        let spec = self.spec();
        let is_other = |name: &&str| !spec.lora_targets.contains(name);
        (spec.lora_targets, spec.layers().into_iter().filter(is_other).collect())
    }

    pub(in crate::model) fn spec(self) -> &'static FamilySpec {
        match self {
            Self::Llama => &LLAMA,
            Self::Mistral => &MISTRAL,
            Self::Qwen2 => &QWEN2,
            Self::Qwen3 => &QWEN3,
            Self::Gemma2 => &GEMMA2,
            Self::Gemma3Text => &GEMMA3,
            Self::Phi3 => &PHI3,
            Self::Smollm3 => &SMOLLM3,
            Self::Olmo2 => &OLMO2,
            Self::Granite => &GRANITE,
            Self::GptNeox => &GPT_NEOX,
            Self::Opt => &OPT,
        }
    }
}

const fn required(theirs: &'static str, ours: &'static str) -> Key {
    Key { theirs, ours, kind: ValueKind::Count, absent: None }
}

const fn count(theirs: &'static str, ours: &'static str, absent: &'static str) -> Key {
    Key { theirs, ours, kind: ValueKind::Count, absent: Some(absent) }
}

/// A number of the same name.
const fn number(name: &'static str, absent: &'static str) -> Key {
    Key { theirs: name, ours: name, kind: ValueKind::Number, absent: Some(absent) }
}

const fn eps(theirs: &'static str, absent: &'static str) -> Key {
    Key { theirs, ours: "norm_eps", kind: ValueKind::Number, absent: Some(absent) }
}

/// A flag of the same name.
const fn flag(name: &'static str, absent: &'static str) -> Key {
    Key { theirs: name, ours: name, kind: ValueKind::Flag, absent: Some(absent) }
}

const fn act(theirs: &'static str, absent: &'static str) -> Key {
    Key { theirs, ours: "hidden_act", kind: ValueKind::Activation, absent: Some(absent) }
}

const WIDTH: Key = required("hidden_size", "d_model");
const INNER: Key = required("intermediate_size", "d_ff");
const LAYERS: Key = required("num_hidden_layers", "n_layers");
const HEADS: Key = required("num_attention_heads", "n_heads");
const KV_HEADS: Key = count("num_key_value_heads", "n_kv_heads", "null");
const SILU: Key = act("hidden_act", "\"silu\"");
const ATTENTION_DROPOUT: Key = number("attention_dropout", "0.0");
const ATTENTION_BIAS: Key = flag("attention_bias", "false");
const MLP_BIAS: Key = flag("mlp_bias", "false");
const HEAD_DIM: Key = count("head_dim", "head_dim", "null");
const UNTIED: Key = flag("tie_word_embeddings", "false");
const TIED: Key = flag("tie_word_embeddings", "true");

/// `max_position_embeddings`, whose default is the class's.
const fn positions(absent: &'static str) -> Key {
    count("max_position_embeddings", "max_position_embeddings", absent)
}

const ROTARY: Positions =
    Positions::Rotary { theta: ("rope_theta", 1e4), partial: None, local: None, scalings: &[] };

const PRE_NORMS: Norms = Norms {
    before_attention: Some("input_layernorm"),
    after_attention: None,
    before_mlp: Some("post_attention_layernorm"),
    after_mlp: None,
};

const SANDWICH: Norms = Norms {
    before_attention: Some("input_layernorm"),
    after_attention: Some("post_attention_layernorm"),
    before_mlp: Some("pre_feedforward_layernorm"),
    after_mlp: Some("post_feedforward_layernorm"),
};

const LLAMA_TENSORS: Tensors = Tensors {
    embedding: "model.embed_tokens",
    layers: "model.layers",
    attention: "self_attn",
    output: "o_proj",
    norm: "model.norm",
    head: &["lm_head."],
};

const GATED: Mlp = Mlp::Gated { gate: "mlp.gate_proj", up: "mlp.up_proj", down: "mlp.down_proj" };

const LLAMA: FamilySpec = FamilySpec {
    model_type: "llama",
    class: "LlamaForCausalLM",
    tensors: LLAMA_TENSORS,
    norm: NormKind::Rms,
    norms: PRE_NORMS,
    qkv: Qkv::Separate,
    qk_norm: None,
    attention_bias: Bias::Optional(false),
    mlp: GATED,
    mlp_bias: Bias::Optional(false),
    hidden_act: HiddenAct::Silu,
    positions: ROTARY,
    windows: Windows::None,
    is_embedding_scaled: false,
    no_rope_interval: None,
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        KV_HEADS,
        HEAD_DIM,
        SILU,
        ATTENTION_BIAS,
        MLP_BIAS,
        ATTENTION_DROPOUT,
        positions("2048"),
        eps("rms_norm_eps", "1e-6"),
        UNTIED,
    ],
    fixed: &[],
    lora_targets: &["q_proj", "v_proj"],
};

const MISTRAL: FamilySpec = FamilySpec {
    model_type: "mistral",
    class: "MistralForCausalLM",
    attention_bias: Bias::Never,
    mlp_bias: Bias::Never,
    windows: Windows::All(Some(4096)),
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        count("num_key_value_heads", "n_kv_heads", "8"),
        HEAD_DIM,
        SILU,
        ATTENTION_DROPOUT,
        positions("131072"),
        eps("rms_norm_eps", "1e-6"),
        UNTIED,
    ],
    ..LLAMA
};

const QWEN2: FamilySpec = FamilySpec {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    attention_bias: Bias::Qkv,
    mlp_bias: Bias::Never,
    windows: Windows::Last,
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        count("num_key_value_heads", "n_kv_heads", "32"),
        SILU,
        ATTENTION_DROPOUT,
        positions("32768"),
        eps("rms_norm_eps", "1e-6"),
        UNTIED,
    ],
    ..LLAMA
};

const QWEN3: FamilySpec = FamilySpec {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    qk_norm: Some(QkNorm::Head),
    mlp_bias: Bias::Never,
    windows: Windows::Last,
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        count("num_key_value_heads", "n_kv_heads", "32"),
        count("head_dim", "head_dim", "128"),
        SILU,
        ATTENTION_BIAS,
        ATTENTION_DROPOUT,
        positions("32768"),
        eps("rms_norm_eps", "1e-6"),
        UNTIED,
    ],
    ..LLAMA
};

const GEMMA2: FamilySpec = FamilySpec {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    norm: NormKind::RmsPlusOne,
    norms: SANDWICH,
    mlp_bias: Bias::Never,
    hidden_act: HiddenAct::GeluTanh,
    windows: Windows::AllButEach(2),
    is_embedding_scaled: true,
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        count("num_key_value_heads", "n_kv_heads", "4"),
        count("head_dim", "head_dim", "256"),
        act("hidden_activation", "\"gelu_pytorch_tanh\""),
        ATTENTION_BIAS,
        ATTENTION_DROPOUT,
        positions("8192"),
        eps("rms_norm_eps", "1e-6"),
        TIED,
        number("query_pre_attn_scalar", "256"),
        number("attn_logit_softcapping", "50.0"),
        number("final_logit_softcapping", "30.0"),
    ],
    fixed: &[("use_bidirectional_attention", "false")],
    ..LLAMA
};

const GEMMA3: FamilySpec = FamilySpec {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    qk_norm: Some(QkNorm::Head),
    positions: Positions::Rotary {
        theta: ("rope_theta", 1e6),
        partial: None,
        local: Some(1e4),
        scalings: &[],
    },
    windows: Windows::AllButEach(6),
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        count("num_key_value_heads", "n_kv_heads", "4"),
        count("head_dim", "head_dim", "256"),
        act("hidden_activation", "\"gelu_pytorch_tanh\""),
        ATTENTION_BIAS,
        ATTENTION_DROPOUT,
        positions("131072"),
        eps("rms_norm_eps", "1e-6"),
        TIED,
        number("query_pre_attn_scalar", "256"),
        number("attn_logit_softcapping", "null"),
        number("final_logit_softcapping", "null"),
    ],
    ..GEMMA2
};

const PHI3: FamilySpec = FamilySpec {
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    qkv: Qkv::Fused("qkv_proj"),
    attention_bias: Bias::Never,
    mlp: Mlp::FusedGate { gate_up: "mlp.gate_up_proj", down: "mlp.down_proj" },
    mlp_bias: Bias::Never,
    positions: Positions::Rotary {
        theta: ("rope_theta", 1e4),
        partial: Some(("partial_rotary_factor", 1.0)),
        local: None,
        scalings: &["default", "longrope"],
    },
    windows: Windows::All(None),
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        KV_HEADS,
        SILU,
        ATTENTION_DROPOUT,
        positions("4096"),
        eps("rms_norm_eps", "1e-5"),
        UNTIED,
    ],
    fixed: &[("resid_pdrop", "0.0"), ("embd_pdrop", "0.0")],
    lora_targets: &["qkv_proj"],
    ..LLAMA
};

const SMOLLM3: FamilySpec = FamilySpec {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    positions: Positions::Rotary {
        theta: ("rope_theta", 2e6),
        partial: None,
        local: None,
        scalings: &[],
    },
    windows: Windows::WithoutRope,
    no_rope_interval: Some(4),
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        count("num_key_value_heads", "n_kv_heads", "4"),
        SILU,
        ATTENTION_BIAS,
        MLP_BIAS,
        ATTENTION_DROPOUT,
        positions("32768"),
        eps("rms_norm_eps", "1e-6"),
        TIED,
    ],
    ..LLAMA
};

const OLMO2: FamilySpec = FamilySpec {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    norms: Norms {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_mlp: None,
        after_mlp: Some("post_feedforward_layernorm"),
    },
    qk_norm: Some(QkNorm::Whole),
    mlp_bias: Bias::Never,
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        KV_HEADS,
        SILU,
        ATTENTION_BIAS,
        ATTENTION_DROPOUT,
        positions("2048"),
        eps("rms_norm_eps", "1e-5"),
        UNTIED,
    ],
    ..LLAMA
};

const GRANITE: FamilySpec = FamilySpec {
    model_type: "granite",
    class: "GraniteForCausalLM",
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        KV_HEADS,
        SILU,
        ATTENTION_BIAS,
        MLP_BIAS,
        ATTENTION_DROPOUT,
        positions("2048"),
        eps("rms_norm_eps", "1e-6"),
        UNTIED,
        number("embedding_multiplier", "1.0"),
        number("residual_multiplier", "1.0"),
        number("attention_multiplier", "1.0"),
        number("logits_scaling", "1.0"),
    ],
    ..LLAMA
};

const GPT_NEOX: FamilySpec = FamilySpec {
    model_type: "gpt_neox",
    class: "GPTNeoXForCausalLM",
    tensors: Tensors {
        embedding: "gpt_neox.embed_in",
        layers: "gpt_neox.layers",
        attention: "attention",
        output: "dense",
        norm: "gpt_neox.final_layer_norm",
        head: &["embed_out."],
    },
    norm: NormKind::Layer,
    qkv: Qkv::FusedByHead("query_key_value"),
    attention_bias: Bias::Optional(true),
    mlp: Mlp::Plain { up: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h" },
    mlp_bias: Bias::Always,
    hidden_act: HiddenAct::Gelu,
    positions: Positions::Rotary {
        theta: ("rotary_emb_base", 1e4),
        partial: Some(("rotary_pct", 0.25)),
        local: None,
        scalings: &[],
    },
    keys: &[
        WIDTH,
        INNER,
        LAYERS,
        HEADS,
        act("hidden_act", "\"gelu\""),
        flag("attention_bias", "true"),
        flag("use_parallel_residual", "true"),
        ATTENTION_DROPOUT,
        positions("2048"),
        eps("layer_norm_eps", "1e-5"),
        UNTIED,
    ],
    fixed: &[("hidden_dropout", "0.0")],
    lora_targets: &["query_key_value"],
    ..LLAMA
};

const OPT: FamilySpec = FamilySpec {
    model_type: "opt",
    class: "OPTForCausalLM",
    tensors: Tensors {
        embedding: "model.decoder.embed_tokens",
        layers: "model.decoder.layers",
        attention: "self_attn",
        output: "out_proj",
        norm: "model.decoder.final_layer_norm",
        head: &["lm_head."],
    },
    norm: NormKind::Layer,
    norms: Norms {
        before_attention: Some("self_attn_layer_norm"),
        after_attention: None,
        before_mlp: Some("final_layer_norm"),
        after_mlp: None,
    },
    attention_bias: Bias::Always,
    mlp: Mlp::Plain { up: "fc1", down: "fc2" },
    mlp_bias: Bias::Always,
    hidden_act: HiddenAct::Relu,
    positions: Positions::Learned { table: "model.decoder.embed_positions", offset: 2 },
    keys: &[
        WIDTH,
        required("ffn_dim", "d_ff"),
        LAYERS,
        HEADS,
        act("activation_function", "\"relu\""),
        number("dropout", "0.1"),
        ATTENTION_DROPOUT,
        positions("2048"),
        TIED,
    ],
    fixed: &[
        ("do_layer_norm_before", "true"),
        ("_remove_final_layer_norm", "false"),
        ("layerdrop", "0.0"),
        ("enable_bias", "true"),
        ("layer_norm_elementwise_affine", "true"),
    ],
    ..LLAMA
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::peft::LAYERS;

    #[test]
    fn a_familys_name_is_its_model_type() {
        for family in LlamaFamily::ALL {
            let name = serde_json::to_value(family).unwrap();
            assert_eq!(name, family.spec().model_type);
        }
    }

    #[test]
    fn adapters_are_put_beside_layers_that_the_family_has() {
        for family in LlamaFamily::ALL {
            let spec = family.spec();
            let layers = spec.layers();
            assert!(spec.lora_targets.iter().all(|name| layers.contains(name)), "{family:?}");
            assert!(layers.iter().all(|name| LAYERS.contains(name)), "{family:?}");
        }
        assert_eq!(
            LlamaFamily::Phi3.spec().layers(),
            ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
        );
        assert_eq!(LlamaFamily::Opt.spec().layers()[3..], ["out_proj", "fc1", "fc2"]);
    }
}
