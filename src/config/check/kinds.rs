//! Keys that another kind uses, and keys that this kind cannot do without.

use crate::config::check::Finding;
use crate::config::kinds::{Belongs, KINDS, LAYER, LAYER_REQUIRED, REQUIRED, fits};
use crate::config::loaded::Loaded;
use crate::config::schema::Layer;
use crate::config::suggest::any_of;

/// "`betas` belongs to `adam` or `adamw`, but `optimizer.name` is `sgd`"
pub(crate) fn keys_of_other_kinds(loaded: &Loaded) -> Vec<Finding> {
    KINDS.iter().flat_map(|(table, keys)| foreign(loaded, table, keys, true)).collect()
}

fn foreign(loaded: &Loaded, table: &str, keys: &[Belongs], removable: bool) -> Vec<Finding> {
    let name = format!("{table}.name");
    let Some(kind) = loaded.word(&name) else { return Vec::new() };
    let is_foreign =
        |(key, kinds): &&Belongs| !fits(kind, kinds) && loaded.is_given(&format!("{table}.{key}"));
    keys.iter()
        .filter(is_foreign)
        .map(|(key, kinds)| {
            let owners = any_of(kinds.iter().copied());
            let what = format!("belongs to {owners}, but `name` is `{kind}`");
            let finding = Finding::new(format!("{table}.{key}"), what).about(&name);
            if removable {
                finding.help(format!("take it out, or `~{table}.{key}` on the command line"))
            } else {
                finding
            }
        })
        .collect()
}

/// "`train_dir` is missing: `image_folder` needs it"
pub(crate) fn required_keys(loaded: &Loaded) -> Vec<Finding> {
    REQUIRED
        .iter()
        .filter(|(table, kind, key)| {
            loaded.word(&format!("{table}.name")) == Some(kind)
                && !loaded.is_given(&format!("{table}.{key}"))
        })
        .map(|(table, kind, key)| {
            Finding::new(format!("{table}.{key}"), format!("`{kind}` needs `{key}`"))
                .asked_by(format!("{table}.name"))
        })
        .collect()
}

/// The same for each layer of a graph, and those inside it.
pub(crate) fn layers(loaded: &Loaded) -> Vec<Finding> {
    let mut open = listed("model.layers", loaded.experiment.model.layers.as_deref());
    let mut found = Vec::new();
    while let Some((at, layer)) = open.pop() {
        found.extend(foreign(loaded, &at, LAYER, false));
        found.extend(needed(loaded, &at, &LAYER_REQUIRED));
        open.extend(listed(&format!("{at}.layers"), layer.layers.as_deref()));
        open.extend(listed(&format!("{at}.shortcut"), layer.shortcut.as_deref()));
    }
    found
}

/// Each layer of a list with its dotted name.
fn listed<'a>(list: &str, layers: Option<&'a [Layer]>) -> Vec<(String, &'a Layer)> {
    let layers = layers.unwrap_or_default().iter().enumerate();
    layers.map(|(index, layer)| (format!("{list}[{index}]"), layer)).collect()
}

fn needed(loaded: &Loaded, at: &str, required: &[(&str, &str)]) -> Vec<Finding> {
    let Some(kind) = loaded.word(&format!("{at}.name")) else { return Vec::new() };
    required
        .iter()
        .filter(|(name, key)| *name == kind && !loaded.is_given(&format!("{at}.{key}")))
        .map(|(name, key)| {
            Finding::new(format!("{at}.{key}"), format!("`{name}` needs `{key}`"))
                .asked_by(format!("{at}.name"))
        })
        .collect()
}
