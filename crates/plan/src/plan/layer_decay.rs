//! Layers of a model from the stem to the head, as timm's `param_groups_layer_decay` counts them:
//! for learning rates that fall with the depth (`optimizer.layer_decay`), and for layers that are
//! trained one after another (`optimizer.gradual_unfreezing`).

use crate::plan::ModelFacts;

/// The layers of a model, and the parameters of each.
pub(super) struct Layers {
    /// Index of each parameter's layer.
    of: Vec<usize>,
    names: Vec<String>,
}

impl Layers {
    /// Name of the layer of a parameter, and the number of layers above it.
    pub(super) fn of(&self, parameter: usize) -> (&str, u32) {
        let layer = self.of[parameter];
        let above = u32::try_from(self.names.len() - 1 - layer).unwrap_or(u32::MAX);
        (&self.names[layer], above)
    }
}

/// The learning-rate factor of a layer that has so many layers above it.
pub(super) fn lr_factor(decay: f64, above: u32) -> f64 {
    decay.powi(i32::try_from(above).unwrap_or(i32::MAX))
}

/// The layers of `model`. Parameters before the first numbered block are the stem, those between
/// blocks and head belong to the block before them. `None` if there are no numbered blocks.
pub(super) fn layers(model: &ModelFacts) -> Option<Layers> {
    let names: Vec<&str> = model.parameters.iter().map(|(name, _)| name.as_str()).collect();
    let last_block = names.iter().rposition(|name| block(name).is_some())?;
    let is_head = |index: usize, name: &str| {
        let is_named = model.head.iter().any(|head| name.starts_with(head.as_str()));
        is_named && (index > last_block || block(name).is_some())
    };
    let mut found: Vec<String> = Vec::new();
    let mut of = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let layer = match block(name) {
            _ if is_head(index, name) => "head".to_owned(),
            Some(block) => first_of_stage(block, &names),
            None => found.last().map_or("stem", String::as_str).to_owned(),
        };
        let known = found.iter().position(|other| *other == layer);
        of.push(known.unwrap_or(found.len()));
        if known.is_none() {
            found.push(layer);
        }
    }
    Some(Layers { of, names: found })
}

/// The first block of a stage, if `block` is a stage: its parameters before the blocks belong
/// there.
fn first_of_stage(block: &str, names: &[&str]) -> String {
    let first = format!("{block}.blocks.0");
    let is_stage = names.iter().any(|name| name.starts_with(&first));
    if is_stage { first } else { block.to_owned() }
}

/// The numbered block that a parameter is in: `layer1.0`, `blocks.11`, `stages.2.blocks.0`,
/// `encoder_layer_3`.
fn block(name: &str) -> Option<&str> {
    let ends = name.match_indices('.').map(|(end, _)| end);
    let mut start = 0;
    let mut found = None;
    if name.starts_with("stem.") {
        return None;
    }
    for end in ends {
        let part = &name[start..end];
        start = end + 1;
        match found {
            None if is_number(part) => found = Some(end),
            Some(_) if part.bytes().all(|c| c.is_ascii_digit()) => return Some(&name[..end]),
            Some(_) if part != "blocks" => break,
            None | Some(_) => {}
        }
    }
    found.map(|end| &name[..end])
}

/// True for `0` and `encoder_layer_0`.
fn is_number(part: &str) -> bool {
    let digits = part.rsplit_once('_').map_or(part, |(_, digits)| digits);
    !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_what_is_numbered_first() {
        let check = |name, expected| assert_eq!(block(name), expected, "{name}");
        check("layer1.0.downsample.0.weight", Some("layer1.0"));
        check("blocks.11.attn.qkv.weight", Some("blocks.11"));
        check("stages.2.blocks.0.conv_dw.weight", Some("stages.2.blocks.0"));
        check("stages.2.downsample.0.weight", Some("stages.2"));
        check("features.1.0.block.0.weight", Some("features.1.0"));
        check("encoder.layers.encoder_layer_3.ln_1.weight", Some("encoder.layers.encoder_layer_3"));
        check("conv1.weight", None);
        check("norm.weight", None);
        check("stem.0.weight", None);
    }

    #[test]
    fn factors_are_those_of_timm() {
        let golden = include_str!("../../../../tests/golden/layer_decay.json");
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        for (model, recorded) in golden.as_object().unwrap() {
            let factors = recorded["factors"].as_array().unwrap();
            let name = |entry: &serde_json::Value| entry[0].as_str().unwrap().to_owned();
            let facts = ModelFacts {
                parameters: factors.iter().map(|entry| (name(entry), Vec::new())).collect(),
                head: vec![recorded["head"].as_str().unwrap().to_owned()],
                ..ModelFacts::default()
            };
            let layers = layers(&facts).unwrap();
            for (index, entry) in factors.iter().enumerate() {
                let (layer, above) = layers.of(index);
                let factor = lr_factor(0.75, above);
                let expected = entry[2].as_f64().unwrap();
                assert!((factor - expected).abs() < 1e-12, "{model} {entry}: {layer} {factor}");
            }
        }
    }
}
