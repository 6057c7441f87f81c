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
    let inside = &layer.layers;
    let round = &layer.shortcut;
    let or_blank = |n: u64, shown: String| if n == 0 { String::new() } else { shown };
    // Those of layers inside stand in their own rows.
    let n = layer.own_parameters;
    let flops = layer.own_flops;
    rows.push([
        "  ".repeat(depth) + &layer.kind.name + &layer.details,
        or_blank(n as u64, layer.path.clone()),
        layer.output.to_string(),
        or_blank(n as u64, thousands(n)),
        or_blank(flops, scaled(flops)),
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
