//! Every registered model and every layer of a graph as ONNX: its structure, and by onnxruntime
//! its numbers.

mod onnxruntime;

use std::path::Path;

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::config::kind::{Entry, Kind, Options};
use crate::config::{Vocabulary, load_text};
use crate::model::Models;
use crate::model::layers::{
    self, Forward, InferredLayer, Layer, LayerMisfit, Layers, Node, Scope, Site,
};
use crate::model::tests::{small, with_mine};
use crate::nn::ForwardContext;
use crate::onnx::{DimensionValue, ModelProto};
use crate::plan::{Flow, ModelPlan};

use onnxruntime::{compare, dims, write};

/// Sizes of another model that have layers of their own.
const OTHER_LAYERS: [&str; 7] = [
    "resnet8",
    "resnet20",
    "resnext50_32x4d",
    "mobilenet_v3_large",
    "efficientnet_v2_s",
    "regnet_x_400mf",
    "gru",
];

/// Large models, or more of the same layers as another one that is tried.
const LARGER: [&str; 11] = [
    "resnet34",
    "resnet101",
    "resnet152",
    "resnet50",
    "convnext_small",
    "convnext_base",
    "vit_small",
    "vit_base",
    "densenet161",
    "vgg11",
    "vgg11_bn",
];

/// Parts of a state dict that evaluation does not use.
fn unused(name: &str) -> &'static [&'static str] {
    match name {
        // Statistics of training.
        "timebridge" => &["norm0"],
        _ => &[],
    }
}

#[test]
fn registered_models_answer_the_same_in_onnxruntime() {
    let (folder, models) = (tempfile::tempdir().unwrap(), Models::default());
    let is_size = |name: &str| models.is_variant(name) && !OTHER_LAYERS.contains(&name);
    let skips = |name: &str| name == "graph" || LARGER.contains(&name) || is_size(name);
    let mut cases: Vec<Json> = models
        .names()
        .filter(|name| !skips(name))
        .map(|name| {
            write(folder.path(), &format!("{name}.onnx"), &small(name), &models, unused(name))
        })
        .collect();
    let mut backbone = small("vit_tiny");
    backbone.kind.set("registers", 4);
    backbone.kind.set("layer_scale", 1e-5);
    cases.push(write(folder.path(), "registers.onnx", &backbone, &models, &[]));
    compare(folder.path(), &cases);
}

#[test]
#[ignore = "minutes: up to 133 million weights"]
fn larger_models_answer_the_same_in_onnxruntime() {
    let models = Models::default();
    for name in LARGER {
        // One at a time: some have 350 MB.
        let folder = tempfile::tempdir().unwrap();
        let case = write(folder.path(), &format!("{name}.onnx"), &small(name), &models, &[]);
        compare(folder.path(), &[case]);
    }
}

/// A graph of these layers.
fn graph(layers: &str, input: Flow) -> ModelPlan {
    let text = format!(
        "[model]\nname = \"graph\"\nlayers = [{layers}]\n[data]\nname = \"mnist\"\ndir = \
         \"d\"\n[train]\nepochs = 1\nbatch_size = 8\n[optimizer]\nname = \"sgd\"\n"
    );
    let loaded = load_text(Path::new("graph.toml"), &text, &[], &Vocabulary::open()).unwrap();
    let layers =
        layers::plan(&Layers::default(), &loaded.experiment.model.layers, input, 5).unwrap();
    let shape = match input {
        Flow::Image(shape) => shape.to_vec(),
        Flow::Sequence(shape) => shape.to_vec(),
        Flow::Padded([steps, bands, _]) => vec![2, steps + 1, bands],
        Flow::Vector(n) | Flow::Tokens(n) => vec![n],
    };
    ModelPlan { layers, ..crate::model::tests::plan("graph", &shape, 5) }
}

#[test]
fn layers_of_a_graph_answer_the_same_in_onnxruntime() {
    let (folder, models) = (tempfile::tempdir().unwrap(), Models::default());
    let cases = [
        (Flow::Image([3, 12, 10]), IMAGES),
        (Flow::Image([3, 8, 8]), GATES),
        (Flow::Sequence([12, 6]), SEQUENCES),
        (Flow::Sequence([9, 8]), ATTENTION),
        (Flow::Tokens(7), TOKENS),
        (Flow::Vector(6), VECTORS),
        (Flow::Image([3, 12, 17]), OVER_THE_EDGE),
        (Flow::Sequence([12, 6]), STEPS_OVER_THE_EDGE),
        (Flow::Padded([12, 6, 1]), RECORDINGS),
    ];
    let write = |(i, (input, layers)): (usize, &(Flow, &str))| {
        write(folder.path(), &format!("graph{i}.onnx"), &graph(layers, *input), &models, &[])
    };
    let used: String = cases.iter().map(|(_, layers)| *layers).collect();
    for name in Layers::default().names() {
        assert!(used.contains(&format!("name = \"{name}\"")), "no graph has a `{name}`");
    }
    compare(folder.path(), &cases.iter().enumerate().map(write).collect::<Vec<_>>());
}

const IMAGES: &str = r#"
    { name = "conv2d", out_channels = 8, kernel_size = [3, 2], padding = "same" },
    { name = "batch_norm" }, { name = "relu" },
    { name = "residual", activation = "relu", layers = [
        { name = "conv2d", key = "inner", out_channels = 8, kernel_size = 3, padding = 2, dilation = 2, groups = 2 },
        { name = "group_norm", key = "norm", num_groups = 4 }, { name = "stochastic_depth", p = 0.1 } ],
      shortcut = [{ name = "instance_norm", key = "round", affine = true }] },
    { name = "max_pool2d", kernel_size = 3, stride = 2, padding = 1 },
    { name = "conv_transpose2d", out_channels = 6, kernel_size = 3, stride = 2, padding = 1, output_padding = 1 },
    { name = "silu" }, { name = "layer_norm" },
    { name = "avg_pool2d", kernel_size = 2, stride = [1, 2], padding = 1 },
    { name = "upsample", scale_factor = 2, mode = "bilinear" }, { name = "upsample", scale_factor = 2 },
    { name = "softmax" }, { name = "instance_norm" },
    { name = "adaptive_avg_pool2d", output_size = [3, 4] }, { name = "rms_norm" },
    { name = "flatten" }, { name = "linear" }"#;

const OVER_THE_EDGE: &str = r#"
    { name = "avg_pool2d", kernel_size = 3, stride = 2, padding = 1, ceil_mode = true },
    { name = "max_pool2d", kernel_size = [2, 3], stride = 3, dilation = [2, 3], ceil_mode = true },
    { name = "avg_pool2d", kernel_size = [2, 3], stride = 3, padding = 1, ceil_mode = true, count_include_pad = false },
    { name = "flatten" }, { name = "linear" }"#;

const STEPS_OVER_THE_EDGE: &str = r#"
    { name = "avg_pool1d", kernel_size = 3, stride = 2, padding = 1, ceil_mode = true },
    { name = "max_pool1d", kernel_size = 2, stride = 3, dilation = 3, ceil_mode = true },
    { name = "flatten" }, { name = "linear" }"#;

const GATES: &str = r#"
    { name = "conv2d", out_channels = 8, kernel_size = 3, padding = 1, bias = false }, { name = "hardswish" },
    { name = "product", layers = [{ name = "global_avg_pool" }, { name = "linear", key = "gate", out_features = 8 }, { name = "sigmoid" }] },
    { name = "concat", layers = [{ name = "relu6" }, { name = "conv2d", key = "side", out_channels = 4, kernel_size = 1 }, { name = "hardsigmoid" }] },
    { name = "sequential", layers = [{ name = "mish" }, { name = "leaky_relu", negative_slope = 0.2 }] },
    { name = "tokens" }, { name = "class_token" }, { name = "select" }, { name = "linear" }"#;

const SEQUENCES: &str = r#"
    { name = "conv1d", out_channels = 6, kernel_size = 4, padding = "same" }, { name = "batch_norm" },
    { name = "lstm", hidden_size = 5, num_layers = 2, bidirectional = true }, { name = "gru", hidden_size = 6, bidirectional = true },
    { name = "avg_pool1d", kernel_size = 3, stride = 2, padding = 1 }, { name = "rnn", hidden_size = 4 },
    { name = "rnn", hidden_size = 4, nonlinearity = "relu" }, { name = "group_norm", num_groups = 2 },
    { name = "transpose" }, { name = "max_pool1d", kernel_size = 2, dilation = 2, stride = 1 },
    { name = "gru", hidden_size = 3 }, { name = "select", index = -1 }, { name = "linear" }"#;

const ATTENTION: &str = r#"
    { name = "repeat", key = "blocks", times = 2, layers = [{ name = "residual", layers = [
        { name = "layer_norm", key = "norm", bias = false }, { name = "attention", key = "attention", n_heads = 4, n_kv_heads = 2, rope_theta = 100.0, causal = true },
        { name = "linear", key = "fc", out_features = 8 }, { name = "gelu" }, { name = "dropout", p = 0.1 } ] }] },
    { name = "attention", n_heads = 2 },
    { name = "cross_attention", key = "pool", n_heads = 2, layers = [{ name = "latents", key = "latents", steps = 3, out_features = 4 }] },
    { name = "global_avg_pool" }, { name = "tanh" }, { name = "linear" }"#;

const RECORDINGS: &str = r#"
    { name = "conv1d", out_channels = 8, kernel_size = 3, stride = 2, padding = 1 },
    { name = "attention", n_heads = 2, causal = true }, { name = "attention", n_heads = 4, n_kv_heads = 2 },
    { name = "concat", layers = [{ name = "global_avg_pool" }, { name = "sequential", layers = [
        { name = "cross_attention", key = "pool", n_heads = 2, layers = [{ name = "latents", key = "latents", steps = 3, out_features = 4 }] },
        { name = "flatten" } ] }] },
    { name = "linear" }"#;

const TOKENS: &str = r#"
    { name = "embedding", key = "wte", out_features = 8 }, { name = "position_embedding" },
    { name = "attention", n_heads = 2, causal = true }, { name = "rms_norm", eps = 1e-6 },
    { name = "linear", tied = "wte", bias = false }"#;

const VECTORS: &str = r#"
    { name = "linear", out_features = 8 }, { name = "batch_norm" }, { name = "relu" },
    { name = "linear", out_features = 8 }, { name = "gelu" }, { name = "group_norm", num_groups = 2 },
    { name = "linear" }"#;

#[test]
fn columns_of_categories_are_embedded_the_same() {
    let (folder, models) = (tempfile::tempdir().unwrap(), Models::default());
    let mut plan = crate::model::tests::plan("mlp", &[7], 2);
    plan.kind.set("embedding_dim", 4);
    plan.one_hot = vec![3, 2];
    let case = write(folder.path(), "mlp.onnx", &plan, &models, &[]);
    compare(folder.path(), &[case]);
}

#[test]
fn adapters_are_merged_and_tied_tables_are_one() {
    let (folder, models) = (tempfile::tempdir().unwrap(), Models::default());
    let mut plan = small("llama");
    plan.kind.set("tie_word_embeddings", true);
    plan.kind.set("lora", json!({"r": 2, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}));
    let case = write(folder.path(), "llama.onnx", &plan, &models, &["lora_"]);
    compare(folder.path(), &[case]);
}

#[test]
fn families_of_language_models_answer_the_same_in_onnxruntime() {
    let (folder, models) = (tempfile::tempdir().unwrap(), Models::default());
    let windows =
        json!({"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]});
    let families = [
        ("mistral", json!({"sliding_window": 2})),
        ("qwen2", json!({"n_kv_heads": 1})),
        ("qwen3", json!({"head_dim": 6, "attention_bias": true})),
        (
            "gemma2",
            json!({"attn_logit_softcapping": 0.3, "final_logit_softcapping": 0.1,
            "query_pre_attn_scalar": 9.0, "sliding_window": 3}),
        ),
        ("gemma3_text", windows),
        ("phi3", json!({"partial_rotary_factor": 0.5})),
        ("smollm3", json!({"no_rope_layers": [1, 0]})),
        ("olmo2", json!({})),
        ("granite", json!({"residual_multiplier": 0.5, "logits_scaling": 2.0})),
        ("gpt_neox", json!({"use_parallel_residual": false})),
        ("gpt_neox", json!({"partial_rotary_factor": 0.5})),
        ("opt", json!({"lora": {"r": 2, "targets": ["fc1", "q_proj"]}})),
    ];
    let cases = families.iter().enumerate().map(|(i, (family, options))| {
        let mut plan = small("llama");
        let sizes = json!({"family": family, "d_model": 16, "n_heads": 2, "n_layers": 2, "n_kv_heads": null});
        for options in [&sizes, options] {
            for (key, value) in options.as_object().unwrap() {
                plan.kind.set(key, value);
            }
        }
        // Rows of no position are left out.
        let unused = ["lora_", "embed_positions"];
        write(folder.path(), &format!("{i}_{family}.onnx"), &plan, &models, &unused)
    });
    let cases: Vec<Json> = cases.collect();
    compare(folder.path(), &cases);
}

#[test]
fn a_part_that_does_not_say_how_it_is_written_is_named() {
    let models = with_mine();
    let plan = crate::model::tests::plan("mine", &[4], 2);
    let (model, _) = models.instantiate(&plan, 1).unwrap();
    let error = models.onnx(&plan, model.as_ref()).unwrap_err().to_string();
    let expected =
        "model `mine` has no form in ONNX: it does not say how it is written (`Model::onnx`)";
    // A backtrace may follow.
    assert!(error.starts_with(expected), "{error}");
}

/// A layer that does not say how it is written.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Silent {}

impl Kind for Silent {
    const NAME: &'static str = "silent";
}

impl Layer for Silent {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(input.into())
    }

    fn build(&self, _: &Site<'_>) -> candle_core::Result<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Silent {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> candle_core::Result<Tensor> {
        Ok(x.clone())
    }
}

#[test]
fn the_innermost_layer_that_does_not_say_how_it_is_written_is_named() {
    let (mut layers, mut models) = (Layers::default(), Models::default());
    layers.add::<Silent>();
    models.hold_layers(&layers);
    let entry = |name: &str| Entry { name: name.to_owned(), key: None, options: Options::new() };
    let mut block = entry("sequential");
    block.key = Some("block".to_owned());
    block.options.insert("layers".to_owned(), json!([entry("relu"), entry("silent")]));
    let layers = layers::plan(&layers, &[block], Flow::Vector(4), 4).unwrap();
    let plan = ModelPlan { layers, ..crate::model::tests::plan("graph", &[4], 4) };
    let (model, _) = models.instantiate(&plan, 1).unwrap();
    let error = models.onnx(&plan, model.as_ref()).unwrap_err().to_string();
    let expected = "model `graph` has no form in ONNX: its layer `silent` (block.1): it does not \
                    say how it is written (`Forward::onnx`)";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn the_batch_and_the_length_of_a_text_have_names() {
    let models = Models::default();
    let (model, _) = models.instantiate(&small("gpt"), 1).unwrap();
    let bytes = models.onnx(&small("gpt"), model.as_ref()).unwrap();
    let graph = ModelProto::read(&bytes).unwrap().graph.unwrap();
    let name = |name: &str| DimensionValue::Name(name.to_owned());
    assert_eq!(dims(&graph.input[0]), [name("batch"), name("sequence")]);
    let logits = [name("batch"), name("sequence"), DimensionValue::Size(5)];
    assert_eq!(dims(&graph.output[0]), logits);
}
