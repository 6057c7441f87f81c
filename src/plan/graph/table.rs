//! The table of a graph's layers in `ddprun plan`.

use super::{LayerOp, LayerPlan, WindowPlan};
use crate::plan::show::{scaled, thousands};

/// Header and rows: layer, key, output, parameters, operations; layers inside a layer are indented.
pub(crate) fn rows(layers: &[LayerPlan]) -> Vec<[String; 5]> {
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
    let [inside, round] = layer.inside();
    let or_blank = |n: u64, shown: String| if n == 0 { String::new() } else { shown };
    let parameters = or_blank(layer.parameters() as u64, thousands(layer.parameters()));
    let flops = or_blank(layer.flops(), scaled(layer.flops()));
    let is_leaf = inside.is_empty();
    rows.push([
        "  ".repeat(depth) + &words(&layer.op),
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

fn words(op: &LayerOp) -> String {
    match op {
        LayerOp::Conv2d { window, groups, .. } => convolution("conv2d", window, *groups),
        LayerOp::Conv1d { window, groups, .. } => convolution("conv1d", window, *groups),
        LayerOp::BatchNorm => "batch_norm".to_owned(),
        LayerOp::LayerNorm { .. } => "layer_norm".to_owned(),
        LayerOp::Linear { .. } => "linear".to_owned(),
        LayerOp::Embedding { rows } => format!("embedding of {rows}"),
        LayerOp::PositionEmbedding => "position_embedding".to_owned(),
        LayerOp::Attention { heads, causal, .. } => {
            format!("attention, {heads} heads{}", if *causal { ", causal" } else { "" })
        }
        LayerOp::Relu => "relu".to_owned(),
        LayerOp::Gelu => "gelu".to_owned(),
        LayerOp::Silu => "silu".to_owned(),
        LayerOp::Sigmoid => "sigmoid".to_owned(),
        LayerOp::Tanh => "tanh".to_owned(),
        LayerOp::Dropout { p } => format!("dropout {p}"),
        LayerOp::MaxPool2d { window } => slid("max_pool2d", window),
        LayerOp::AvgPool2d { window } => slid("avg_pool2d", window),
        LayerOp::GlobalAvgPool => "global_avg_pool".to_owned(),
        LayerOp::Flatten => "flatten".to_owned(),
        LayerOp::Tokens => "tokens".to_owned(),
        LayerOp::Transpose => "transpose".to_owned(),
        LayerOp::Sequential { .. } => "sequential".to_owned(),
        LayerOp::Residual { relu, .. } => {
            if *relu {
                "residual, relu".to_owned()
            } else {
                "residual".to_owned()
            }
        }
        LayerOp::Concat { .. } => "concat".to_owned(),
    }
}

fn convolution(name: &str, window: &WindowPlan, groups: usize) -> String {
    let groups = if groups > 1 { format!(", {groups} groups") } else { String::new() };
    slid(name, window) + &groups
}

fn slid(name: &str, window: &WindowPlan) -> String {
    let WindowPlan { kernel, stride, padding } = window;
    let mut words = format!("{name} {kernel}");
    if *stride > 1 {
        words += &format!(", stride {stride}");
    }
    if *padding > 0 {
        words += &format!(", pad {padding}");
    }
    words
}
