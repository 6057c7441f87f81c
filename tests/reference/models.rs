//! Layers of `graph` and models of torchvision and timm against PyTorch (f64, `golden/layers.py`,
//! `golden/models.py`): counts, outputs, gradients, running statistics.

use std::collections::HashMap;
use std::sync::Arc;

use crate::golden::{
    Collected, check_sum, fill, filled, flat, model_plan, near, near_summary, number, weight, with,
};
use candle_core::{Device, Tensor, Var};
use ddprun::config::kind::{Choice, Entry, Options};
use ddprun::model::Models;
use ddprun::model::layers::{self, Layers};
use ddprun::nn::{ForwardContext, Params};
use ddprun::ops::GradientSink;
use ddprun::plan::{Flow, LayerPlan, ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};
use serde_json::{Value, json};

fn training() -> ForwardContext {
    ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32).direct()
}

/// Values in [-scale, scale) that depend on the name alone, in f32.
fn input(name: &str, dims: &[usize], scale: f64) -> Var {
    let values = fill(name, dims.iter().product()).into_iter().map(|u| (scale * u) as f32);
    Var::from_vec(values.collect(), dims, &Device::Cpu).unwrap()
}

/// A gradient beside its length and its sum in the golden numbers.
#[track_caller]
fn near_gradient(what: &str, gradient: &[f32], expected: &Value, tolerance: f64) {
    let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    let allowed = tolerance * number(expected, "l2") + 1e-6;
    near(what, l2, number(expected, "l2"), allowed);
    near(what, check_sum(gradient), number(expected, "check"), allowed);
}

/// One pass: the output, the gradient of x, and those of the parameters, of sum(output r).
fn pass(
    plan: &ModelPlan,
    x: &Var,
    context: &ForwardContext,
) -> (Tensor, Vec<f32>, Params, Arc<Collected>) {
    let (model, params) = filled(plan);
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    params.begin_pass(Some(&sink));
    let y = model.forward(x, context).unwrap();
    let r = input("input.r", y.dims(), 1.0);
    let gradients = (&y * r.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
    params.end_pass();
    let of_x = gradients.get(x).map(flat).unwrap_or_default();
    (y.detach(), of_x, params, collected)
}

#[track_caller]
fn near_gradients(params: &Params, collected: &Collected, golden: &Value, tolerance: f64) {
    let gradients = collected.by_index();
    for (name, expected) in golden["grads"].as_object().unwrap() {
        let index = params.parameters().iter().position(|p| p.name() == name);
        let index = index.unwrap_or_else(|| unreachable!("no parameter is called `{name}`"));
        near_gradient(name, &gradients[&index], expected, tolerance);
    }
    for (name, expected) in golden["after"].as_object().unwrap() {
        let buffer = params.buffers().iter().find(|b| b.name() == name).unwrap();
        near_summary(name, buffer.var().unwrap(), expected);
    }
}

/// The plan of a graph of `layers` for samples of such an input.
fn graph(layers: &[Entry], shape: &[usize]) -> ModelPlan {
    let flow = match *shape {
        [channels, height, width] => Flow::Image([channels, height, width]),
        [steps, features] => Flow::Sequence([steps, features]),
        _ => unreachable!("an image or a sequence"),
    };
    let layers = layers::plan(&Layers::default(), layers, flow, 10).unwrap();
    ModelPlan { layers, ..ModelPlan::new(Choice::named("graph"), shape, 10) }
}

fn entry(name: &str, key: Option<&str>, options: &Value) -> Entry {
    let options: Options = serde_json::from_value(options.clone()).unwrap();
    Entry { name: name.to_owned(), key: key.map(str::to_owned), options }
}

/// The layer `name` with `options` over images of 6 x 5 x 4 or sequences of 7 steps, beside the
/// golden numbers `case`.
#[track_caller]
fn check_layer(case: &str, (name, options): (&str, Value), shape: &[usize]) {
    let golden: Value = serde_json::from_str(include_str!("../golden/layers.json")).unwrap();
    let golden = &golden[case];
    let layers = [entry(name, Some("l"), &options), entry("flatten", None, &json!({}))];
    let plan = graph(&layers, shape);
    let x = input("input.x", &[&[2], shape].concat(), 3.0);
    let (y, of_x, params, collected) = pass(&plan, &x, &training());
    assert!(golden.is_object(), "{case}");
    near_summary(case, &y, &golden["output"]);
    near_gradient(&format!("{case}: x"), &of_x, &golden["input"], 2e-4);
    near_gradients(&params, &collected, golden, 2e-4);
    let learnt = golden["grads"].as_object().unwrap().len();
    assert_eq!(params.parameters().len(), learnt, "{case}");
    let planned: usize = plan.layers.iter().map(LayerPlan::parameters).sum();
    assert_eq!(planned, params.elem_count(), "{case}");
}

const IMAGE: [usize; 3] = [6, 5, 4];
const SEQUENCE: [usize; 2] = [7, 6];

#[test]
fn activations_of_graph_equal_pytorch() {
    check_layer("leaky_relu", ("leaky_relu", json!({ "negative_slope": 0.2 })), &IMAGE);
    for name in ["relu6", "hardswish", "hardsigmoid", "mish", "softmax"] {
        check_layer(name, (name, json!({})), &IMAGE);
    }
}

#[test]
fn norms_of_graph_equal_pytorch() {
    check_layer("group_norm", ("group_norm", json!({ "num_groups": 3, "eps": 1e-3 })), &IMAGE);
    check_layer("instance_norm", ("instance_norm", json!({ "eps": 1e-3 })), &IMAGE);
    check_layer("instance_norm_affine", ("instance_norm", json!({ "affine": true })), &SEQUENCE);
    check_layer("rms_norm", ("rms_norm", json!({})), &SEQUENCE);
    check_layer("layer_norm", ("layer_norm", json!({ "eps": 1e-2 })), &SEQUENCE);
    check_layer("batch_norm", ("batch_norm", json!({ "eps": 1e-2, "momentum": 0.3 })), &IMAGE);
}

#[test]
fn sizes_of_graph_change_as_in_pytorch() {
    let window = json!({ "kernel_size": 3, "stride": 2, "padding": 1 });
    check_layer("avg_pool1d", ("avg_pool1d", window.clone()), &SEQUENCE);
    check_layer("max_pool1d", ("max_pool1d", window), &SEQUENCE);
    for name in ["avg_pool1d", "max_pool1d"] {
        let ceil = json!({ "kernel_size": 2, "ceil_mode": true });
        check_layer(&format!("{name}_ceil"), (name, ceil), &SEQUENCE);
    }
    let mut inside =
        json!({ "kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": false });
    check_layer("avg_pool1d_inside", ("avg_pool1d", inside.clone()), &SEQUENCE);
    inside["ceil_mode"] = json!(true);
    check_layer("avg_pool2d_inside", ("avg_pool2d", inside.clone()), &IMAGE);
    inside["count_include_pad"] = json!(true);
    check_layer("avg_pool2d_ceil", ("avg_pool2d", inside), &IMAGE);
    let ceil = json!({ "kernel_size": [2, 3], "stride": 2, "padding": [1, 0], "ceil_mode": true });
    check_layer("max_pool2d_ceil", ("max_pool2d", ceil), &IMAGE);
    let dilated = json!({ "kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2 });
    check_layer("max_pool1d_dilated", ("max_pool1d", dilated), &SEQUENCE);
    let rectangle =
        json!({ "kernel_size": [3, 2], "stride": [2, 1], "padding": 1, "dilation": [2, 1] });
    check_layer("max_pool2d", ("max_pool2d", rectangle), &IMAGE);
    let rectangle = json!({ "kernel_size": [2, 3], "stride": [1, 2], "padding": [1, 0] });
    check_layer("avg_pool2d", ("avg_pool2d", rectangle), &IMAGE);
    let size = json!({ "output_size": [3, 7] });
    check_layer("adaptive_avg_pool2d", ("adaptive_avg_pool2d", size), &IMAGE);
    check_layer("upsample", ("upsample", json!({ "scale_factor": 2 })), &IMAGE);
    let bilinear = json!({ "scale_factor": 3, "mode": "bilinear" });
    check_layer("upsample_bilinear", ("upsample", bilinear), &IMAGE);
    check_layer("select", ("select", json!({ "index": -2 })), &SEQUENCE);
    check_layer("class_token", ("class_token", json!({})), &SEQUENCE);
}

#[test]
fn convolutions_of_graph_equal_pytorch() {
    let rectangle = json!({
        "out_channels": 4, "kernel_size": [3, 2], "stride": [2, 1], "padding": [2, 1], "dilation": [2, 3]
    });
    check_layer("conv2d", ("conv2d", rectangle), &IMAGE);
    let grouped = json!({
        "out_channels": 4, "kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2, "groups": 2
    });
    check_layer("conv2d_groups", ("conv2d", grouped), &IMAGE);
    let same = json!({
        "out_channels": 4, "kernel_size": [2, 3], "padding": "same", "dilation": [1, 2]
    });
    check_layer("conv2d_same", ("conv2d", same), &IMAGE);
    let dilated =
        json!({ "out_channels": 4, "kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2 });
    check_layer("conv1d", ("conv1d", dilated), &SEQUENCE);
    let same = json!({ "out_channels": 4, "kernel_size": 4, "padding": "same" });
    check_layer("conv1d_same", ("conv1d", same), &SEQUENCE);
    let larger = json!({
        "out_channels": 4, "kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2
    });
    check_layer("conv_transpose2d", ("conv_transpose2d", larger), &IMAGE);
}

#[test]
fn attention_of_graph_shares_heads_and_turns_positions_as_in_pytorch() {
    let options = json!({ "n_heads": 3, "n_kv_heads": 1, "rope_theta": 100.0, "causal": true });
    check_layer("attention", ("attention", options), &SEQUENCE);
}

/// Recordings of 7 and of 4 steps.
#[test]
fn the_padding_of_recordings_is_hidden_in_graph_as_by_a_key_padding_mask() {
    let golden: Value = serde_json::from_str(include_str!("../golden/layers.json")).unwrap();
    let golden = &golden["padded"];
    let conv = json!({ "out_channels": 6, "kernel_size": 3, "stride": 2, "padding": 1 });
    let layers = [
        entry("conv1d", Some("l.conv"), &conv),
        entry("attention", Some("l.attention"), &json!({ "n_heads": 3 })),
        entry("global_avg_pool", None, &json!({})),
    ];
    let layers = layers::plan(&Layers::default(), &layers, Flow::Padded([7, 6, 1]), 6).unwrap();
    let plan = ModelPlan { layers, ..ModelPlan::new(Choice::named("graph"), &[2, 8, 6], 6) };
    // Clean, noisy with the frames, and a row with the length.
    let frames = fill("input.x", 2 * 7 * 6).into_iter().map(|u| (3.0 * u) as f32);
    let frames: Vec<f32> = frames.collect();
    let sample =
        |(frames, length): (&[f32], f32)| [&[0.5; 48][..], frames, &[length], &[0.0; 5]].concat();
    let x: Vec<f32> = frames.chunks(42).zip([7.0, 4.0]).flat_map(sample).collect();
    let x = Var::from_vec(x, (2, 2, 8, 6), &Device::Cpu).unwrap();
    let (y, of_x, params, collected) = pass(&plan, &x, &training());
    near_summary("padded", &y, &golden["output"]);
    let of_frames: Vec<f32> = of_x.chunks(96).flat_map(|of| of[48..90].to_vec()).collect();
    near_gradient("padded: x", &of_frames, &golden["input"], 2e-4);
    near_gradients(&params, &collected, golden, 2e-4);
    assert_eq!(params.parameters().len(), golden["grads"].as_object().unwrap().len());
}

#[test]
fn learnt_queries_ask_a_sequence_as_in_pytorch() {
    let latents = json!([{ "name": "latents", "key": "latents", "steps": 5, "out_features": 4 }]);
    let options = json!({ "n_heads": 2, "layers": latents });
    check_layer("cross_attention", ("cross_attention", options), &SEQUENCE);
}

#[test]
fn products_of_graph_are_gates_as_in_pytorch() {
    let layers = json!([{ "name": "linear", "key": "w", "out_features": 6 },
        { "name": "silu" }]);
    check_layer("product", ("product", json!({ "layers": layers })), &SEQUENCE);
    let layers = json!([
        { "name": "global_avg_pool" },
        { "name": "linear", "key": "fc1", "out_features": 2 },
        { "name": "relu" },
        { "name": "linear", "key": "fc2", "out_features": 6 },
        { "name": "sigmoid" },
    ]);
    check_layer("squeeze_excitation", ("product", json!({ "layers": layers })), &IMAGE);
}

#[test]
fn recurrent_layers_of_graph_equal_pytorch() {
    let both = json!({ "hidden_size": 4, "num_layers": 2, "bidirectional": true });
    check_layer("lstm", ("lstm", both.clone()), &SEQUENCE);
    check_layer("gru", ("gru", both), &SEQUENCE);
    check_layer("rnn", ("rnn", json!({ "hidden_size": 4 })), &SEQUENCE);
    let relu = json!({ "hidden_size": 4, "nonlinearity": "relu" });
    check_layer("rnn_relu", ("rnn", relu), &SEQUENCE);
}

/// Forecasts of 2 steps of 4 series, of which the samples hold 2 features of the date more.
#[test]
fn recurrent_models_equal_pytorch() {
    let golden: Value = serde_json::from_str(include_str!("../golden/layers.json")).unwrap();
    for (name, options) in [
        ("lstm", json!({ "hidden_size": 5, "num_layers": 2 })),
        ("gru", json!({ "hidden_size": 5, "bidirectional": true })),
    ] {
        let golden = &golden[format!("model_{name}")];
        let plan = with(model_plan(name, 4, &SEQUENCE, vec![2, 4]), &options);
        let (model, params) = filled(&plan);
        let collected = Arc::new(Collected::default());
        let sink: Arc<dyn GradientSink> = collected.clone();
        params.begin_pass(Some(&sink));
        let x = input("input.x", &[2, 7, 6], 3.0);
        let y = model.forward(&x, &training()).unwrap();
        assert_eq!(y.dims(), [2, 2, 4]);
        let y = y.flatten_from(1).unwrap();
        let r = input("input.r", y.dims(), 1.0);
        let gradients = (&y * r.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
        params.end_pass();
        near_summary(name, &y, &golden["output"]);
        near_gradient(name, &flat(gradients.get(&x).unwrap()), &golden["input"], 2e-4);
        near_gradients(&params, &collected, golden, 2e-4);
    }
}

fn models() -> Value {
    serde_json::from_str(include_str!("../golden/models.json")).unwrap()
}

fn airbench94() -> Value {
    serde_json::from_str(include_str!("../golden/airbench94.json")).unwrap()
}

/// Names and shapes as the golden numbers have them: "fc.weight 10x512".
fn named(parameters: &[(String, Vec<usize>)]) -> Vec<String> {
    let shape = |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    parameters.iter().map(|(name, dims)| format!("{name} {}", shape(dims))).collect()
}

/// The model `name` of ten classes with `options`, beside its golden numbers: parameters, a pass of
/// evaluation, and one of training.
#[track_caller]
fn check_model(name: &str, options: &Value, shape: [usize; 4], tolerance: f64) {
    check_beside(&models()[name], (name, options), shape, tolerance);
}

#[track_caller]
fn check_beside(
    golden: &Value,
    (name, options): (&str, &Value),
    shape: [usize; 4],
    tolerance: f64,
) {
    let plan = with(model_plan(name, 10, &shape[1..], vec![]), options);
    let names = named(&Models::default().describe(&plan).unwrap().parameters);
    assert_eq!(json!(names), golden["names"], "{name}");
    let x = input("input.x", &shape, 1.0);
    let (model, _params) = filled(&plan);
    let seen = model.forward(&x, &ForwardContext::eval(Precision::Fp32).direct()).unwrap();
    near_summary(&format!("{name}: evaluation"), &seen, &golden["eval"]);
    let (y, of_x, params, collected) = pass(&plan, &x, &training());
    near_summary(&format!("{name}: training"), &y, &golden["train"]);
    near_gradient(&format!("{name}: x"), &of_x, &golden["input"], tolerance);
    near_gradients(&params, &collected, golden, tolerance);
    assert_eq!(collected.by_index().len(), params.parameters().len(), "{name}: all learn");
}

const PHOTOS: [usize; 4] = [4, 3, 64, 64];

#[test]
fn vit_equals_timm() {
    check_model("vit_tiny", &json!({}), [3, 3, 32, 48], 1e-3);
}

#[test]
fn convnext_equals_torchvision() {
    check_model("convnext_tiny", &json!({ "stochastic_depth_prob": 0.0 }), PHOTOS, 1e-3);
}

#[test]
fn mobilenet_v3_equals_torchvision() {
    check_model("mobilenet_v3_small", &json!({}), PHOTOS, 5e-3);
    check_model("mobilenet_v3_large", &json!({}), PHOTOS, 5e-3);
}

#[test]
fn efficientnet_equals_torchvision() {
    check_model("efficientnet_b0", &json!({ "stochastic_depth_prob": 0.0 }), PHOTOS, 5e-3);
    check_model("efficientnet_v2_s", &json!({ "stochastic_depth_prob": 0.0 }), PHOTOS, 5e-3);
}

#[test]
fn mobilenet_v2_equals_torchvision() {
    check_model("mobilenet_v2", &json!({}), PHOTOS, 5e-3);
}

#[test]
fn regnet_equals_torchvision() {
    check_model("regnet_y_400mf", &json!({}), PHOTOS, 1e-2);
    check_model("regnet_x_400mf", &json!({}), PHOTOS, 1e-2);
}

#[test]
fn densenet_equals_torchvision() {
    check_model("densenet121", &json!({}), PHOTOS, 1e-2);
}

#[test]
fn vgg_equals_torchvision() {
    check_model("vgg11", &json!({ "dropout": 0.0 }), [2, 3, 64, 64], 1e-3);
    check_model("vgg11_bn", &json!({ "dropout": 0.0 }), [2, 3, 64, 64], 1e-2);
}

#[test]
fn vit_with_registers_and_scales_equals_timms_dinov2() {
    let golden = &models()["dinov2"];
    let options = json!({ "patch_size": 14, "registers": 4, "layer_scale": 1e-5 });
    check_beside(golden, ("vit_small", &options), [3, 3, 28, 42], 1e-3);
}

/// The rectifiers of ResNeXt-50 normalised over 16 values open and close by rounding, as those of
/// ResNet-50.
#[test]
fn resnext_equals_torchvision() {
    check_model("resnext50_32x4d", &json!({}), PHOTOS, 3e-2);
}

#[test]
fn resnet20_with_padded_shortcuts_is_akamasters() {
    check_model("resnet20", &json!({ "shortcut": "padding" }), [4, 3, 32, 32], 1e-3);
}

#[test]
fn airbench94_equals_its_authors() {
    let golden = airbench94();
    let widths = json!({ "widths": [16, 24, 32] });
    check_beside(&golden["airbench94"], ("airbench94", &widths), [6, 3, 32, 32], 5e-3);
    let facts = Models::default().describe(&model_plan("airbench94", 10, &[3, 32, 32], vec![]));
    let parameters: usize = facts.unwrap().lengths().sum();
    assert_eq!(json!(parameters), golden["parameters"]);
}

/// Larger models of the code of those above, in evaluation.
#[test]
fn other_sizes_answer_as_those_of_timm_torchvision_and_akamaster() {
    let golden = models();
    for (name, golden) in golden["sizes"].as_object().unwrap() {
        let shape: Vec<usize> = serde_json::from_value(golden["shape"].clone()).unwrap();
        let plan = model_plan(name, 10, &shape[1..], vec![]);
        let is_small = ["resnet32", "resnet44", "resnet56"].contains(&name.as_str());
        let padded = json!({ "shortcut": "padding" });
        let plan = if is_small { with(plan, &padded) } else { plan };
        let (model, _) = filled(&plan);
        let x = input("input.x", &shape, 1.0);
        let seen = model.forward(&x, &ForwardContext::eval(Precision::Fp32).direct()).unwrap();
        near_summary(name, &seen, &golden["eval"]);
    }
}

#[test]
fn counts_are_those_of_timm_and_torchvision() {
    let golden = models();
    let padded = json!({ "shortcut": "padding" });
    for (name, expected) in golden["param_counts"].as_object().unwrap() {
        let is_small = ["resnet20", "resnet32", "resnet44", "resnet56"].contains(&name.as_str());
        let (outputs, side) = if is_small { (10, 32) } else { (1000, 224) };
        let plan = model_plan(name, outputs, &[3, side, side], vec![]);
        let plan = if is_small { with(plan, &padded) } else { plan };
        let facts = Models::default().describe(&plan).unwrap();
        assert_eq!(*expected, facts.lengths().sum::<usize>(), "{name}");
    }
}

/// Weights under the names of timm or torchvision, which are filled by those names.
#[test]
fn weights_load_by_the_names_of_the_other_library_and_answer_as_there() {
    let text = include_str!("../golden/other_names.json");
    let golden: Value = serde_json::from_str(text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let models = Models::default();
    for (name, golden) in golden.as_object().unwrap() {
        let tensors = golden["tensors"].as_array().unwrap().iter().map(|tensor| {
            let mut words = tensor.as_str().unwrap().split(' ');
            let name = words.next().unwrap().to_owned();
            let shape: Vec<usize> = words.map(|side| side.parse().unwrap()).collect();
            let values = Tensor::from_vec(weight(&name, &shape), shape, &Device::Cpu).unwrap();
            (name, values)
        });
        let tensors: HashMap<String, Tensor> = tensors.collect();
        let path = folder.path().join(format!("{name}.safetensors"));
        candle_core::safetensors::save(&tensors, &path).unwrap();
        let plan = |outputs, norm_eps: f64| {
            let plan = model_plan(name, outputs, &[3, 32, 32], vec![]);
            let eps = json!({ "norm_eps": norm_eps });
            let plan = if name.starts_with("mobilenet_v3") { with(plan, &eps) } else { plan };
            ModelPlan { pretrained: Some(path.clone()), ..plan }
        };
        let whole = plan(10, 1e-5);
        assert_eq!(models.check_pretrained(&whole), Ok(()), "{name}");
        let (model, params) = models.instantiate(&whole, 1).unwrap();
        let report = models.load_pretrained(&whole, &params).unwrap().unwrap();
        assert_eq!((report.loaded, report.kept.len()), (tensors.len(), 0), "{name}");
        let x = input("input.x", &[2, 3, 32, 32], 1.0);
        let seen = model.forward(&x, &ForwardContext::eval(Precision::Fp32).direct()).unwrap();
        near_summary(name, &seen, &golden["eval"]);
        let head = ModelPlan { except_head: true, ..plan(7, 1e-5) };
        assert_eq!(models.check_pretrained(&head), Ok(()), "{name}: all but its head");
        let told = |plan: &ModelPlan| models.check_pretrained(plan).unwrap_err().help.unwrap();
        assert!(told(&plan(7, 1e-5)).contains("`model.strict = \"except_head\"`"), "{name}");
        if name.starts_with("mobilenet_v3") {
            assert!(told(&plan(10, 1e-3)).contains("`model.norm_eps = 1e-5`"), "{name}");
        }
    }
}
