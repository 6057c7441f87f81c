//! Which keys belong to which kind: `momentum` to `sgd`, `train_dir` to `image_folder`.

/// A key and the kinds that use it; a kind ending in `*` stands for all that begin so.
pub(crate) type Belongs = (&'static str, &'static [&'static str]);

/// Tables whose `name` decides which other keys make sense.
pub(crate) const KINDS: [(&str, &[Belongs]); 1] = [("model", &[("layers", &["graph"])])];

/// Keys that a kind cannot do without.
pub(crate) const REQUIRED: [(&str, &str, &str); 1] = [("model", "graph", "layers")];

/// Layers that slide a window over their input.
const CONVOLUTIONS: &[&str] = &["conv2d", "conv1d"];
const WINDOWS: &[&str] = &["conv2d", "conv1d", "max_pool2d", "avg_pool2d"];

/// The same for the entries of `model.layers`, at any depth.
pub(crate) const LAYER: &[Belongs] = &[
    ("out_channels", CONVOLUTIONS),
    ("kernel_size", WINDOWS),
    ("stride", WINDOWS),
    ("padding", WINDOWS),
    ("groups", CONVOLUTIONS),
    ("bias", &["conv2d", "conv1d", "linear", "layer_norm"]),
    ("init", &["conv2d"]),
    ("out_features", &["linear", "embedding"]),
    ("p", &["dropout", "attention"]),
    ("n_heads", &["attention"]),
    ("causal", &["attention"]),
    ("times", &["repeat"]),
    ("activation", &["residual"]),
    ("layers", &["sequential", "repeat", "residual", "concat"]),
    ("shortcut", &["residual"]),
];

/// Keys that a layer cannot do without.
pub(crate) const LAYER_REQUIRED: [(&str, &str); 14] = [
    ("conv2d", "out_channels"),
    ("conv2d", "kernel_size"),
    ("conv1d", "out_channels"),
    ("conv1d", "kernel_size"),
    ("max_pool2d", "kernel_size"),
    ("avg_pool2d", "kernel_size"),
    ("embedding", "out_features"),
    ("dropout", "p"),
    ("attention", "n_heads"),
    ("repeat", "times"),
    ("repeat", "key"),
    ("sequential", "layers"),
    ("residual", "layers"),
    ("concat", "layers"),
];

/// Whether `kind` is one of `kinds`.
pub(crate) fn fits(kind: &str, kinds: &[&str]) -> bool {
    kinds.iter().any(|name| match name.strip_suffix('*') {
        Some(family) => kind.strip_prefix(family).is_some_and(|size| size.parse::<u32>().is_ok()),
        None => *name == kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys;

    #[test]
    fn a_star_stands_for_a_family_and_its_sizes_only() {
        assert!(fits("resnet18", &["resnet*"]));
        assert!(!fits("resnet_mine", &["resnet*"]));
        assert!(!fits("mlp", &["resnet*"]));
        assert!(fits("adamw", &["adam", "adamw"]));
    }

    #[test]
    fn only_keys_of_the_schema_belong_to_kinds() {
        let all = keys::Page::new(&[]).all();
        let tables = KINDS
            .iter()
            .flat_map(|(table, keys)| keys.iter().map(move |(key, _)| format!("{table}.{key}")));
        let layers = LAYER.iter().map(|(key, _)| format!("model.layers.{key}"));
        for key in tables.chain(layers) {
            let list = format!("{key}.");
            assert!(all.iter().any(|known| *known == key || known.starts_with(&list)), "{key}");
        }
    }
}
