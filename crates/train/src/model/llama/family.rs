//! What the members of a family of language models have in common, as data: names of tensors, norms,
//! biases, and the keys of their `config.json` in `transformers`.

use super::HiddenAct;

/// A family, with the numbers and names of `transformers`. [`LlamaConfig`](super::LlamaConfig) says
/// what differs within a family.
pub(in crate::model) struct FamilySpec {
    pub(in crate::model) model_type: &'static str,
    /// Class of `transformers`.
    pub(in crate::model) class: &'static str,
    pub(in crate::model) tensors: Tensors,
    pub(in crate::model) norm: NormKind,
    pub(in crate::model) norms: Norms,
    pub(in crate::model) qkv: Qkv,
    pub(in crate::model) qk_norm: Option<QkNorm>,
    pub(in crate::model) attention_bias: Bias,
    pub(in crate::model) mlp: Mlp,
    pub(in crate::model) mlp_bias: Bias,
    pub(in crate::model) hidden_act: HiddenAct,
    pub(in crate::model) positions: Positions,
    pub(in crate::model) windows: Windows,
    /// Embeddings are multiplied by the square root of the width.
    pub(in crate::model) is_embedding_scaled: bool,
    /// Every so many layers one does not turn its queries and keys, by default.
    pub(in crate::model) no_rope_interval: Option<u32>,
    /// Keys of its `config.json` that are options.
    pub(in crate::model) keys: &'static [Key],
    /// Keys of its `config.json`, and the only values that are computed, as JSON.
    pub(in crate::model) fixed: &'static [(&'static str, &'static str)],
    /// Layers that have adapters by default, as PEFT chooses them.
    pub(in crate::model) lora_targets: &'static [&'static str],
}

/// Names of tensors. Those of a layer begin with its number.
pub(in crate::model) struct Tensors {
    pub(in crate::model) embedding: &'static str,
    pub(in crate::model) layers: &'static str,
    pub(in crate::model) attention: &'static str,
    /// The projection behind the heads, within the attention.
    pub(in crate::model) output: &'static str,
    pub(in crate::model) norm: &'static str,
    /// The output layer, with a dot behind it, as prefixes of keys.
    pub(in crate::model) head: &'static [&'static str],
}

/// Kinds of norm.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum NormKind {
    /// By the root of the mean square.
    Rms,
    /// The same, with factors 1 + weight.
    RmsPlusOne,
    /// `torch.nn.LayerNorm`.
    Layer,
}

/// Norms of a layer, those that it has.
pub(in crate::model) struct Norms {
    pub(in crate::model) before_attention: Option<&'static str>,
    pub(in crate::model) after_attention: Option<&'static str>,
    pub(in crate::model) before_mlp: Option<&'static str>,
    pub(in crate::model) after_mlp: Option<&'static str>,
}

/// Layers that make queries, keys and values, within the attention.
#[derive(Clone, Copy)]
pub(in crate::model) enum Qkv {
    /// `q_proj`, `k_proj` and `v_proj`.
    Separate,
    /// One layer: all queries, then all keys, then all values.
    Fused(&'static str),
    /// One layer: queries, keys and values of one head after the other.
    FusedByHead(&'static str),
}

/// What norms of queries and keys, `q_norm` and `k_norm`, are taken over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum QkNorm {
    /// The features of a head.
    Head,
    /// All heads.
    Whole,
}

/// Which layers have biases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Bias {
    Never,
    Always,
    /// Those of queries, keys and values, and not the projection behind the heads.
    Qkv,
    /// As the option says, whose default this is.
    Optional(bool),
}

/// The feed-forward part, within the layer.
#[derive(Clone, Copy)]
pub(in crate::model) enum Mlp {
    /// down(act(gate x) up(x))
    Gated { gate: &'static str, up: &'static str, down: &'static str },
    /// The same with one layer for gate and up.
    FusedGate { gate_up: &'static str, down: &'static str },
    /// down(act(up x))
    Plain { up: &'static str, down: &'static str },
}

/// How a model knows the places of tokens.
#[derive(Clone, Copy)]
pub(in crate::model) enum Positions {
    /// Queries and keys are turned.
    Rotary {
        /// Key of the base of the wavelengths in a file, and its default.
        theta: (&'static str, f64),
        /// Key of the share of a head's features that turn, and its default; `None` = all turn.
        partial: Option<(&'static str, f64)>,
        /// Default of `rope_local_base_freq`, the base in layers with a window, if it is another.
        local: Option<f64>,
        /// Its scalings; empty = all.
        scalings: &'static [&'static str],
    },
    /// A table of vectors, of which the first `offset` rows are those of no place.
    Learned { table: &'static str, offset: u32 },
}

/// Which layers attend over a sliding window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Windows {
    /// None.
    None,
    /// All; the default of `sliding_window`.
    All(Option<u32>),
    /// The layers from `max_window_layers` on, if `use_sliding_window` is true.
    Last,
    /// The layers without rotary positions, if `use_sliding_window` is true.
    WithoutRope,
    /// All but each of so many, by default; the default of `sliding_window_pattern`.
    AllButEach(u32),
}

/// A key of a `config.json` that is an option of ours.
#[derive(Clone, Copy)]
pub(in crate::model) struct Key {
    pub(in crate::model) theirs: &'static str,
    pub(in crate::model) ours: &'static str,
    pub(in crate::model) kind: ValueKind,
    /// Default in `transformers`, as JSON; `None` = the key is required.
    pub(in crate::model) absent: Option<&'static str>,
}

/// Values of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum ValueKind {
    Count,
    Number,
    Flag,
    Activation,
}

impl FamilySpec {
    /// True if `option` is one of its own.
    pub(in crate::model) fn has(&self, option: &str) -> bool {
        let is_rotary = matches!(self.positions, Positions::Rotary { .. });
        match option {
            "rope_theta" | "rope_scaling" => is_rotary,
            "partial_rotary_factor" => {
                matches!(self.positions, Positions::Rotary { partial: Some(_), .. })
            }
            "rope_local_base_freq" => {
                matches!(self.positions, Positions::Rotary { local: Some(_), .. })
            }
            "sliding_window" => self.windows != Windows::None,
            "layer_types" => !matches!(self.windows, Windows::None | Windows::All(_)),
            "no_rope_layers" => self.no_rope_interval.is_some(),
            _ => self.keys.iter().any(|key| key.ours == option),
        }
    }

    /// Last parts of the names of its linear layers, which may have adapters.
    pub(in crate::model) fn layers(&self) -> Vec<&'static str> {
        let qkv: &[&str] = match &self.qkv {
            Qkv::Separate => &["q_proj", "k_proj", "v_proj"],
            Qkv::Fused(name) | Qkv::FusedByHead(name) => std::slice::from_ref(name),
        };
        let mlp: &[&str] = match &self.mlp {
            Mlp::Gated { gate, up, down } => &[gate, up, down],
            Mlp::FusedGate { gate_up, down } => &[gate_up, down],
            Mlp::Plain { up, down } => &[up, down],
        };
        let last = |name: &&'static str| name.rsplit('.').next().unwrap_or(name);
        qkv.iter().chain([&self.tensors.output]).chain(mlp).map(last).collect()
    }

    /// Last parts of the names of its embeddings, output layer and norms, which adapters may train
    /// as they are.
    pub(in crate::model) fn modules(&self) -> Vec<&'static str> {
        let Tensors { embedding, norm, head, .. } = &self.tensors;
        let positions = match self.positions {
            Positions::Learned { table, .. } => Some(table),
            Positions::Rotary { .. } => None,
        };
        let head = head.iter().map(|head| head.trim_end_matches('.'));
        let Norms { before_attention, after_attention, before_mlp, after_mlp } = self.norms;
        let norms = [before_attention, after_attention, before_mlp, after_mlp];
        let of_qk: &[&str] = if self.qk_norm.is_some() { &["q_norm", "k_norm"] } else { &[] };
        let all = [*embedding].into_iter().chain(positions).chain(head).chain([*norm]);
        let all = all.chain(norms.into_iter().flatten()).chain(of_qk.iter().copied());
        let mut names: Vec<&str> = Vec::new();
        for name in all.map(|name| name.rsplit('.').next().unwrap_or(name)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}
