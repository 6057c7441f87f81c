use std::path::Path;

use super::{Flow, LayerMisfit, LayerPlan, Layers, plan};
use crate::config::{Loaded, Vocabulary, load_text};
use crate::plan::layer_rows;

fn loaded(layers: &str) -> Loaded {
    let text = format!(
        "[model]\nname = \"graph\"\nlayers = [{layers}]\n[data]\nname = \"mnist\"\ndir = \
         \"d\"\n[train]\nepochs = 1\nbatch_size = 8\n[optimizer]\nname = \"sgd\"\n"
    );
    let vocabulary = Vocabulary::open();
    load_text(Path::new("graph.toml"), &text, &[], &vocabulary)
        .unwrap_or_else(|problems| panic!("{}", problems.page(false, 80)))
}

fn plans(layers: &str, input: Flow) -> Result<Vec<LayerPlan>, String> {
    let layers = loaded(layers).experiment.model.layers;
    plan(&Layers::default(), &layers, input, 10).map_err(|misfit| {
        let LayerMisfit { at, unfit } = misfit;
        let key = if unfit.key.is_empty() { at } else { format!("{at}.{}", unfit.key) };
        format!("`{key}`: {}", unfit.what)
    })
}

#[track_caller]
fn flows(layers: &str, input: Flow, expected: &[&str]) {
    let plans = plans(layers, input).unwrap();
    let outputs: Vec<String> = plans.iter().map(|layer| layer.output.to_string()).collect();
    assert_eq!(outputs, expected);
}

#[track_caller]
fn refused(layers: &str, input: Flow, expected: &str) {
    assert_eq!(plans(layers, input).unwrap_err(), expected);
}

const IMAGE: Flow = Flow::Image([3, 32, 32]);

#[test]
fn shapes_follow_from_the_data() {
    flows(
        r#"{ name = "conv2d", out_channels = 8, kernel_size = 3, stride = 2, padding = 1 },
           { name = "max_pool2d", kernel_size = 3, stride = 2, padding = 1 },
           { name = "batch_norm" }, { name = "relu" }, { name = "flatten" }, { name = "linear" }"#,
        IMAGE,
        &["8x16x16", "8x8x8", "8x8x8", "8x8x8", "512", "10"],
    );
    flows(
        r#"{ name = "embedding", out_features = 12 }, { name = "position_embedding" },
           { name = "attention", n_heads = 3, causal = true }, { name = "linear" }"#,
        Flow::Tokens(7),
        &["7x12", "7x12", "7x12", "7x10"],
    );
    flows(
        r#"{ name = "conv1d", out_channels = 4, kernel_size = 3, padding = 1 },
           { name = "transpose" }, { name = "linear", out_features = 5 }, { name = "transpose" },
           { name = "linear" }"#,
        Flow::Sequence([24, 9]),
        &["24x4", "4x24", "4x5", "5x4", "5x10"],
    );
    flows(
        r#"{ name = "concat", layers = [{ name = "conv2d", out_channels = 5, kernel_size = 1 },
             { name = "sequential", layers = [{ name = "avg_pool2d", kernel_size = 3, stride = 1, padding = 1 }] }] },
           { name = "global_avg_pool" }, { name = "linear" }"#,
        IMAGE,
        &["8x32x32", "8", "10"],
    );
}

#[test]
fn padding_is_known_as_long_as_each_step_keeps_its_place() {
    let input = Flow::Padded([16, 8, 1]);
    let known = |layers: &str| plans(layers, input).unwrap().pop().unwrap().output.padded();
    let strided = r#"{ name = "conv1d", out_channels = 4, kernel_size = 3, stride = 2, padding = 1 },
        { name = "max_pool1d", kernel_size = 2 }, { name = "layer_norm" }, { name = "lstm", hidden_size = 4 }"#;
    assert_eq!(known(strided), Some(4));
    for layer in [
        r#"{ name = "conv1d", out_channels = 4, kernel_size = 3 }"#,
        r#"{ name = "lstm", hidden_size = 4, bidirectional = true }"#,
        r#"{ name = "class_token" }"#,
        r#"{ name = "transpose" }"#,
    ] {
        assert_eq!(known(layer), None, "{layer}");
    }
    let shown =
        plans(r#"{ name = "attention", n_heads = 2 }, { name = "global_avg_pool" }"#, input);
    let shown: Vec<String> = shown.unwrap().into_iter().map(|layer| layer.details).collect();
    assert_eq!(shown, [", 2 heads, without padding", ", without padding"]);
}

#[test]
fn a_layer_that_does_not_fit_says_what_it_gets() {
    refused(
        r#"{ name = "linear" }"#,
        IMAGE,
        "`model.layers[0]`: needs a vector or a sequence, but gets an image of 3x32x32",
    );
    refused(
        r#"{ name = "conv2d", out_channels = 8, kernel_size = 40 }"#,
        IMAGE,
        "`model.layers[0].kernel_size`: 40 is larger than an image of 3x32x32 with padding 0",
    );
    refused(
        r#"{ name = "conv2d", out_channels = 8, kernel_size = 1, groups = 2 }"#,
        IMAGE,
        "`model.layers[0].groups`: 2 do not divide 3 channels into 8",
    );
    refused(
        r#"{ name = "residual", layers = [{ name = "conv2d", out_channels = 8, kernel_size = 1 }] }"#,
        IMAGE,
        "`model.layers[0]`: gives an image of 8x32x32, but its input is an image of 3x32x32",
    );
    refused(
        r#"{ name = "flatten" }, { name = "repeat", key = "h", times = 2,
             layers = [{ name = "attention", n_heads = 2 }] }, { name = "linear" }"#,
        IMAGE,
        "`model.layers[1].layers[0]`: needs a sequence, but gets a vector of 3072",
    );
    refused(
        r#"{ name = "flatten" }, { name = "linear", key = "a", out_features = 4 }, { name = "linear", key = "a" }"#,
        IMAGE,
        "`model.layers[2]`: has the parameters of `a`, which another layer has as well",
    );
}

#[test]
fn the_table_counts_parameters_and_operations() {
    let plans = plans(
        r#"{ name = "repeat", key = "h", times = 2, layers = [{ name = "residual",
             layers = [{ name = "conv2d", key = "c", out_channels = 3, kernel_size = 3, padding = 1 }],
             shortcut = [{ name = "batch_norm", key = "n" }] }] },
           { name = "global_avg_pool" }, { name = "linear", key = "fc" }"#,
        IMAGE,
    )
    .unwrap();
    assert_eq!(plans[0].input, IMAGE);
    // 3 x 3 x 3 x 3 + 3, and 2 x 3; at each of 1024 pixels 2 x 3 x 27.
    assert_eq!((plans[0].parameters(), plans[0].flops()), (90, 165_888));
    let table: Vec<String> = layer_rows(&plans).into_iter().map(|row| row.join(" | ")).collect();
    assert_eq!(
        table[..6],
        [
            "layer | key | output | parameters | FLOPs",
            "repeat |  | 3x32x32 |  | ",
            "  residual |  | 3x32x32 |  | ",
            "    conv2d 3, pad 1 | h.0.c | 3x32x32 | 84 | 165.9k",
            "    shortcut: |  |  |  | ",
            "    batch_norm | h.0.n | 3x32x32 | 6 | ",
        ]
    );
    assert_eq!(
        table[table.len() - 2..],
        ["linear | fc | 10 | 40 | 60", "all |  |  | 220 | 331.8k"]
    );
}

#[test]
fn what_does_not_fit_a_layer_is_told_at_its_option() {
    let conv = |options: &str| {
        format!(r#"{{ name = "conv2d", out_channels = 4, kernel_size = 3, {options} }}"#)
    };
    flows(&conv("padding = \"same\", dilation = [2, 1]"), IMAGE, &["4x32x32"]);
    flows(&conv("padding = [0, 2], stride = [2, 1]"), IMAGE, &["4x15x34"]);
    let at = "model.layers[0]";
    refused(
        &conv("padding = \"same\", stride = 2"),
        IMAGE,
        &format!("`{at}.padding`: `same` keeps the size, but stride is 2"),
    );
    let sequence = Flow::Sequence([7, 6]);
    refused(
        r#"{ name = "conv1d", out_channels = 4, kernel_size = 3, padding = [1, 1] }"#,
        sequence,
        &format!("`{at}.padding`: is one number along a sequence"),
    );
    refused(
        r#"{ name = "group_norm", num_groups = 4 }"#,
        sequence,
        &format!("`{at}.num_groups`: 4 groups do not divide 6 channels"),
    );
    refused(
        r#"{ name = "attention", n_heads = 3, n_kv_heads = 2 }"#,
        sequence,
        &format!("`{at}.n_kv_heads`: 3 heads cannot share 2 of keys and values"),
    );
    refused(
        r#"{ name = "select", index = -8 }"#,
        sequence,
        &format!("`{at}.index`: there are 7 steps"),
    );
    refused(
        r#"{ name = "linear", tied = "wte" }"#,
        sequence,
        &format!("`{at}.tied`: no layer before it has the key `wte`"),
    );
    refused(
        r#"{ name = "product", layers = [{ name = "select" }, { name = "linear", out_features = 3 }] }"#,
        sequence,
        &format!(
            "`{at}`: gives a vector of 3, but its input is a sequence of 7 steps with 6 features"
        ),
    );
}
