//! The table of a graph's layers in `ddprun plan`.

use super::LayerPlan;
use crate::plan::show::{scaled, thousands};

/// Header and rows: layer, key, output, parameters, operations; layers inside a layer are indented.
pub fn rows(layers: &[LayerPlan]) -> Vec<[String; 5]> {
    let head = ["layer", "key", "output", "parameters", "FLOPs"].map(str::to_owned);
    let mut rows = vec![head];
    for layer in layers {
        add(layer, 0, &mut rows);
    }
    let parameters: usize = layers.iter().map(LayerPlan::parameters).sum();
    let flops: u64 = layers.iter().map(LayerPlan::flops).sum();
    let sums = [thousands(parameters), scaled(flops)];
    let mut all = named("all".to_owned());
    all[3..].clone_from_slice(&sums);
    rows.push(all);
    rows
}

fn add(layer: &LayerPlan, depth: usize, rows: &mut Vec<[String; 5]>) {
    let (inside, round) = (&layer.layers, &layer.shortcut);
    let or_blank = |n: u64, shown: String| if n == 0 { String::new() } else { shown };
    let parameters = or_blank(layer.parameters() as u64, thousands(layer.parameters()));
    let flops = or_blank(layer.flops(), scaled(layer.flops()));
    let is_leaf = inside.is_empty();
    rows.push([
        "  ".repeat(depth) + &layer.kind.name + &layer.details,
        if is_leaf && layer.parameters() > 0 { layer.path.clone() } else { String::new() },
        layer.output.to_string(),
        if is_leaf { parameters } else { String::new() },
        if is_leaf { flops } else { String::new() },
    ]);
    for layer in inside {
        add(layer, depth + 1, rows);
    }
    if !round.is_empty() {
        rows.push(named("  ".repeat(depth + 1) + "shortcut:"));
        for layer in round {
            add(layer, depth + 1, rows);
        }
    }
}

/// A row with nothing but a name.
fn named(name: String) -> [String; 5] {
    let mut row = <[String; 5]>::default();
    row[0] = name;
    row
}
