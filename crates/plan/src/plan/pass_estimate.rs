//! Memory and operations of a pass of a language model, estimated from the shapes of its weights:
//! for models that are too large to be tried on this machine.

use std::collections::BTreeMap;

use crate::plan::{Modality, ModelFacts, Plan, Precision};
use train_numbers::units::Bytes;

/// Memory and operations of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassEstimate {
    /// Memory that forward keeps for backward.
    pub activations: Bytes,
    /// Floating-point operations of the forward pass of one sample.
    pub flops: u64,
}

/// A linear layer: its block (`layers.3`, if it is in one), its inputs and its outputs.
struct Linear<'a> {
    block: Option<&'a str>,
    inputs: u64,
    outputs: u64,
}

/// The estimate for `plan`, whose model has these weights; `None` for models that are no language
/// models, where shapes do not say how often a weight is used.
///
/// For each token a linear layer takes `inputs` and gives `outputs`, 2 operations per weight, and
/// keeps both; so a block of a transformer keeps 12 to 17 times its width, as Korthikanti et al.
/// (2022, section 4.1) count it without the attention's own matrix, which is not kept here.
/// Attention adds 4 operations for each pair of tokens and each of its outputs.
pub fn estimate(plan: &Plan, facts: &ModelFacts) -> Option<PassEstimate> {
    let &[tokens] = &plan.model.input[..] else { return None };
    if plan.data.source.modality != Modality::Text {
        return None;
    }
    let tokens = tokens as u64;
    let is_table = |name: &str| facts.embeddings.iter().any(|table| table == name);
    let weights = facts.parameters.iter().chain(&facts.buffers);
    let linears: Vec<Linear<'_>> = weights
        .filter(|(name, _)| !is_table(name))
        .filter_map(|(name, shape)| match shape[..] {
            [outputs, inputs] => {
                let inputs = inputs as u64;
                let outputs = outputs as u64;
                Some(Linear { block: block(name), inputs, outputs })
            }
            _ => None,
        })
        .collect();
    let vocabulary = plan.model.outputs as u64;
    let is_head = |linear: &Linear<'_>| linear.block.is_none() && linear.outputs == vocabulary;
    // Tied to the table of tokens, the head is no weight of its own.
    let mut tables = facts
        .parameters
        .iter()
        .chain(&facts.buffers)
        .filter(|(name, shape)| is_table(name) && shape.first() == Some(&plan.model.outputs));
    let tied = match tables.next() {
        Some((_, shape)) if !linears.iter().any(is_head) => shape.get(1).map(|&width| width as u64),
        _ => None,
    };
    let mut blocks: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    let mut flops = 0;
    let mut narrowest = u64::MAX;
    for linear in &linears {
        *blocks.entry(linear.block).or_default() += linear.inputs + linear.outputs;
        flops += 2 * linear.inputs * linear.outputs;
        if linear.block.is_some() {
            narrowest = narrowest.min(linear.inputs.max(linear.outputs));
        }
    }
    let outside = blocks.remove(&None).unwrap_or(0) + tied.map_or(0, |width| width + vocabulary);
    flops += tied.map_or(0, |width| 2 * width * vocabulary);
    let n_blocks = blocks.len() as u64;
    let hidden = if n_blocks == 0 { 0 } else { narrowest };
    flops += n_blocks * 4 * tokens * hidden;
    let inside = if plan.activation_checkpointing {
        n_blocks * hidden + blocks.values().max().copied().unwrap_or(0)
    } else {
        blocks.values().sum()
    };
    let size = if plan.precision == Precision::Fp32 { 4 } else { 2 };
    // Losses are computed in f32, and hold the gradient of the outputs beside them.
    let values = inside * size + outside * 4 + vocabulary * 4;
    let samples = u64::from(plan.batch.size.get());
    let texts = if plan.model.takes_pairs { 2 } else { 1 };
    let activations = Bytes(values * tokens * texts * samples);
    // The reference computes, too.
    let passes = if plan.loss.needs_reference { 2 } else { 1 };
    Some(PassEstimate { activations, flops: flops * tokens * texts * passes })
}

/// The name up to its first number: `model.layers.3`.
fn block(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(&name[..end]);
        }
        end += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_named_by_its_number() {
        assert_eq!(block("model.layers.31.mlp.up_proj.weight"), Some("model.layers.31"));
        assert_eq!(block("lm_head.weight"), None);
    }
}
