//! The layers of a model that depend on the number of outputs.

use crate::nn::state_dict::Wanted;

/// The layers that depend on the number of outputs.
#[derive(Clone, Debug)]
pub enum Head {
    /// There is none.
    None,
    /// Those under these prefixes of keys (`fc.`).
    Keys(&'static [&'static str]),
    /// Those of these keys (`fc`).
    Layers(Vec<String>),
    /// That of the parameter registered last.
    Last,
}

impl Head {
    /// Prefixes of its keys in the model of `wanted`; empty if that has no such layer.
    pub(super) fn keys(&self, wanted: &Wanted) -> Vec<String> {
        let names = || wanted.tensors.iter().map(|(name, _)| name.as_str());
        let is_there = |key: &&str| names().any(|name| name.starts_with(*key));
        match self {
            Self::Keys(keys) if keys.iter().any(is_there) => {
                keys.iter().map(|&key| key.to_owned()).collect()
            }
            Self::None | Self::Keys(_) => Vec::new(),
            Self::Layers(layers) => layers.iter().map(|layer| format!("{layer}.")).collect(),
            Self::Last => {
                let last = names().next_back().and_then(|name| name.rsplit_once('.'));
                last.map(|(layer, _)| format!("{layer}.")).into_iter().collect()
            }
        }
    }
}
