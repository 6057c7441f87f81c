use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};

use crate::config::kind::{Choice, Entry};
use crate::config::{Vocabulary, load, load_text};
use crate::model::layers::{self, Layers, Site, run};
use crate::model::{Models, ResNetConfig, Stem};
use crate::nn::state_dict::save_state_dict;
use crate::nn::{Buffer, Builder, Dropout, ForwardContext, Param, Params};
use crate::ops::{GradientSink, count_flops};
use crate::plan::{Flow, LayerPlan, ModelPlan, Precision};
use crate::rng::{Key, Purpose};

/// The model of an experiment of the house, for images of 32x32 pixels and ten classes.
fn of_file(name: &str) -> ModelPlan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments").join(name);
    let loaded = load(&path, &[], &Vocabulary::open()).unwrap();
    of_entries(&loaded.experiment.model.layers, [3, 32, 32])
}

/// The plan of a graph with these layers for such images and ten classes.
fn of_entries(layers: &[Entry], input: [usize; 3]) -> ModelPlan {
    let layers = layers::plan(&Layers::default(), layers, Flow::Image(input), 10).unwrap();
    let kind = Choice { name: "graph".to_owned(), ..Choice::default() };
    let plan = ModelPlan { layers, ..ModelPlan::new(kind, &input, 10) };
    let facts = Models::default().describe(&plan).unwrap();
    plan.counted(&facts)
}

/// Output, loss gradients in registration order, and running statistics after one pass of training.
fn trained(plan: &ModelPlan) -> (Params, Vec<f32>, Vec<Vec<f32>>) {
    let (model, params) = Models::default().instantiate(plan, 7).unwrap();
    let values = (0..2 * 3 * 32 * 32).map(|i| (f64::from(i) * 0.37).sin() as f32).collect();
    let x = Tensor::from_vec::<_, f32>(values, (2, 3, 32, 32), &Device::Cpu).unwrap();
    let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
    let sink = Arc::new(Sink::default());
    let shared: Arc<dyn GradientSink> = sink.clone();
    params.begin_pass(Some(&shared));
    let (y, flops) = count_flops(|| model.forward(&x, &pass).unwrap());
    let layers = &plan.layers;
    // The registered twin has the graph's layers in its plan and does not look at them.
    assert_eq!(flops, 2 * layers.iter().map(LayerPlan::flops).sum::<u64>());
    y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    params.end_pass();
    let gradients = sink.0.lock().unwrap().values().cloned().collect();
    (params, y.flatten_all().unwrap().to_vec1().unwrap(), gradients)
}

#[derive(Default)]
struct Sink(Mutex<BTreeMap<usize, Vec<f32>>>);

impl GradientSink for Sink {
    fn add(&self, index: usize, gradient: &[f32]) -> candle_core::Result<()> {
        self.0.lock().unwrap().insert(index, gradient.to_vec());
        Ok(())
    }

    fn complete(&self, _: usize) -> candle_core::Result<()> {
        Ok(())
    }
}

#[test]
fn resnet18_in_layers_has_the_bits_of_the_registered_one() {
    let in_layers = of_file("graph_resnet18.toml");
    let cifar = ResNetConfig { stem: Stem::Cifar, ..ResNetConfig::default() };
    let registered = ModelPlan { kind: Choice::of(&cifar), ..in_layers.clone() };
    let (graph, output, gradients) = trained(&in_layers);
    let (params, expected_output, expected_gradients) = trained(&registered);
    assert_eq!(graph.parameters().len(), params.parameters().len());
    let sum: usize = in_layers.layers.iter().map(LayerPlan::parameters).sum();
    assert_eq!((sum, in_layers.n_parameters), (11_173_962, 11_173_962));
    for (ours, theirs) in graph.parameters().iter().zip(params.parameters()) {
        assert_eq!((ours.name(), ours.shape()), (theirs.name(), theirs.shape()));
    }
    for (ours, theirs) in graph.buffers().iter().zip(params.buffers()) {
        let values = |buffer: &Buffer| buffer.var().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!((ours.name(), values(ours)), (theirs.name(), values(theirs)));
    }
    assert_eq!(output, expected_output);
    assert_eq!(gradients, expected_gradients);
}

#[test]
fn every_parameter_of_a_transformer_in_layers_learns() {
    let plan = of_file("graph_vit.toml");
    let (params, output, gradients) = trained(&plan);
    assert_eq!((output.len(), gradients.len()), (20, params.parameters().len()));
    let names: Vec<&str> = params.parameters().iter().map(Param::name).collect();
    assert!(names.contains(&"blocks.2.mlp.fc1.weight"), "{names:?}");
    assert!(names.contains(&"positions.weight"), "{names:?}");
    let still = gradients.iter().zip(&names).filter(|(g, _)| g.iter().all(|&x| x == 0.0));
    // The keys' bias moves all scores of a query alike; it shares a tensor with those of queries
    // and values.
    assert_eq!(still.map(|(_, name)| *name).collect::<Vec<_>>(), Vec::<&str>::new());
}

/// Layers as an experiment writes them.
fn loaded(layers: &str) -> Vec<Entry> {
    let text = format!(
        "extends = []\n[model]\nname = \"graph\"\nlayers = [{layers}]\n[data]\nname = \
         \"mnist\"\ndir = \"d\"\n[train]\nepochs = 1\nbatch_size = 8\n[optimizer]\nname = \
         \"sgd\"\n"
    );
    let vocabulary = Vocabulary::open();
    load_text(Path::new("all.toml"), &text, &[], &vocabulary).unwrap().experiment.model.layers
}

/// The plan of a graph with these layers for images of 28x28 pixels.
fn of_layers(layers: &str) -> ModelPlan {
    of_entries(&loaded(layers), [1, 28, 28])
}

#[test]
fn every_dropout_has_a_mask_of_its_own_with_and_without_keys() {
    let half = r#"{ name = "dropout", p = 0.5 }"#;
    let plan = of_layers(&format!(
        r#"{{ name = "concat", layers = [
            {half},
            {{ name = "sequential", layers = [{half}] }},
            {{ name = "sequential", layers = [{{ name = "sequential", layers = [{half}] }}] }},
            {{ name = "sequential", key = "a", layers = [{half}] }},
            {{ name = "residual", layers = [{half}] }} ] }},
           {{ name = "flatten" }}, {{ name = "linear" }}"#
    ));
    let nodes = Site::all(&Layers::default(), &plan.layers[..1], &Builder::new(1), 10).unwrap();
    let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
    let x = Tensor::ones((1, 28, 28, 1), DType::F32, &Device::Cpu).unwrap();
    let y = run(&nodes, x.clone(), &pass).unwrap();
    let branch = |i: usize| -> Vec<f32> {
        y.narrow(3, i, 1).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    let mut masks: Vec<Vec<f32>> = (0..5).map(branch).collect();
    masks[4].iter_mut().for_each(|sum| *sum -= 1.0);
    for (i, mask) in masks.iter().enumerate() {
        assert!(masks[..i].iter().all(|other| other != mask), "branch {i}");
    }
    // Those whose path is theirs alone draw by it, as ever.
    for (path, mask) in [("0", &masks[0]), ("a.0", &masks[3])] {
        let alone = Dropout::new(&Builder::new(1).pp(path), 0.5).forward(&x, &pass).unwrap();
        assert_eq!(alone.flatten_all().unwrap().to_vec1::<f32>().unwrap(), *mask);
    }
}

#[test]
fn layers_of_every_kind_run_in_both_modes() {
    let layers = r#"
        { name = "conv2d", out_channels = 8, kernel_size = 3, padding = 1 }, { name = "silu" },
        { name = "concat", layers = [
            { name = "conv2d", key = "a", out_channels = 4, kernel_size = 1, groups = 4 },
            { name = "sequential", key = "b", layers = [
                { name = "max_pool2d", kernel_size = 3, stride = 1, padding = 1 }, { name = "batch_norm" }, { name = "relu" } ] },
        ] },
        { name = "avg_pool2d", kernel_size = 4 }, { name = "tokens" }, { name = "transpose" }, { name = "transpose" },
        { name = "conv1d", key = "c", out_channels = 12, kernel_size = 3, padding = 1, bias = false },
        { name = "residual", layers = [{ name = "layer_norm", key = "n" }, { name = "attention", key = "t", n_heads = 3, p = 0.1 }, { name = "tanh" }] },
        { name = "batch_norm", key = "m" }, { name = "dropout", p = 0.2 }, { name = "sigmoid" },
        { name = "flatten" }, { name = "linear", key = "fc", out_features = 6 }, { name = "gelu" }, { name = "linear", key = "head" }"#;
    let plan = of_layers(layers);
    let sum: usize = plan.layers.iter().map(LayerPlan::parameters).sum();
    assert_eq!(sum, plan.n_parameters);
    let (model, _) = Models::default().instantiate(&plan, 1).unwrap();
    let x = Tensor::ones((3, 1, 28, 28), DType::F32, &Device::Cpu).unwrap();
    let key = Key::new(1, Purpose::Dropout, 0, 0);
    for pass in [ForwardContext::train(key, Precision::Fp32), ForwardContext::eval(Precision::Bf16)]
    {
        assert_eq!(model.forward(&x, &pass).unwrap().dims(), [3, 10]);
    }
}

/// A step in bf16, with and without activation checkpointing: every parameter gets its gradient.
/// And an evaluation.
fn check_bf16(layers: &str) {
    let x = Tensor::ones((2, 1, 28, 28), DType::F32, &Device::Cpu).unwrap();
    let (model, params) = Models::default().instantiate(&of_layers(layers), 1).unwrap();
    for activation_checkpointing in [false, true] {
        let sink = Arc::new(Sink::default());
        let shared: Arc<dyn GradientSink> = sink.clone();
        let key = Key::new(1, Purpose::Dropout, 0, 0);
        let pass = ForwardContext::train(key, Precision::Bf16);
        let pass = ForwardContext { activation_checkpointing, ..pass };
        params.begin_pass(Some(&shared));
        let y = model.forward(&x, &pass).unwrap();
        y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        params.end_pass();
        assert_eq!(sink.0.lock().unwrap().len(), params.parameters().len(), "{layers}");
    }
    let y = model.forward(&x, &ForwardContext::eval(Precision::Bf16)).unwrap();
    assert_eq!((y.dims(), y.dtype()), (&[2, 10][..], DType::F32), "{layers}");
}

#[test]
fn layers_take_what_convolutions_hand_on_in_bf16() {
    let convolution = r#"{ name = "conv2d", out_channels = 4, kernel_size = 3, bias = false }"#;
    let with_norm = &*format!(r#"{convolution}, {{ name = "batch_norm" }}"#);
    for next in [
        r#"{ name = "batch_norm" }"#,
        r#"{ name = "conv2d", out_channels = 4, kernel_size = 3 }, { name = "gelu" }"#,
        r#"{ name = "max_pool2d", kernel_size = 2 }, { name = "batch_norm" }, { name = "relu" }"#,
        r#"{ name = "avg_pool2d", kernel_size = 2 }"#,
        r#"{ name = "silu" }, { name = "dropout", p = 0.2 }"#,
        r#"{ name = "leaky_relu" }"#,
        r#"{ name = "residual", layers = [{ name = "sigmoid" }] }"#,
        r#"{ name = "residual", layers = [{ name = "conv2d", key = "b", out_channels = 4, kernel_size = 1, bias = false }, { name = "batch_norm", key = "bn" }] }"#,
        r#"{ name = "residual", layers = [{ name = "conv2d", key = "b", out_channels = 4, kernel_size = 1 }] }"#,
        r#"{ name = "concat", layers = [{ name = "tanh" }, { name = "sequential", layers = [{ name = "relu" }] }] }"#,
        r#"{ name = "group_norm", num_groups = 2 }"#,
        r#"{ name = "tokens" }, { name = "transpose" }"#,
    ] {
        for first in [convolution, with_norm] {
            check_bf16(&format!(
                r#"{first}, {next}, {{ name = "flatten" }}, {{ name = "linear" }}"#
            ));
        }
    }
}

#[test]
fn what_stands_in_the_padding_of_a_recording_changes_no_answer() {
    let layers = loaded(
        r#"{ name = "linear", out_features = 8 }, { name = "attention", n_heads = 2 },
           { name = "cross_attention", key = "pool", n_heads = 2, layers = [{ name = "latents", steps = 3, out_features = 8 }] },
           { name = "flatten" }, { name = "linear" }"#,
    );
    let layers = layers::plan(&Layers::default(), &layers, Flow::Padded([16, 4, 1]), 10).unwrap();
    let kind = Choice { name: "graph".to_owned(), ..Choice::default() };
    let plan = ModelPlan { layers, ..ModelPlan::new(kind, &[2, 17, 4], 10) };
    let (model, params) = Models::default().instantiate(&plan, 1).unwrap();
    assert!(params.computes_on_cpu());
    let answer = |padding: f32, length: u8| {
        let mut sample = vec![0.3_f32; 2 * 17 * 4];
        sample[(17 + 5) * 4..(17 + 16) * 4].fill(padding);
        sample[(17 + 16) * 4] = f32::from(length);
        let x = Tensor::from_vec(sample, (1, 2, 17, 4), &Device::Cpu).unwrap();
        let y = model.forward(&x, &ForwardContext::eval(Precision::Fp32)).unwrap();
        y.to_vec2::<f32>().unwrap()
    };
    assert_eq!(answer(0.0, 5), answer(7.0, 5));
    assert_ne!(answer(0.0, 16), answer(7.0, 16));
}

/// Checks pretrained weights of ten classes against a graph of five with such a head.
fn with_head(head: &[&str]) -> Result<(), String> {
    let layers = r#"{ name = "conv2d", key = "stem", out_channels = 4, kernel_size = 3 }, { name = "global_avg_pool" },
        { name = "concat", layers = [{ name = "linear", key = "a", out_features = FIRST },
            { name = "linear", key = "b", out_features = 3 }] }, { name = "linear", key = "fc" }"#;
    let of = |first: &str| of_layers(&layers.replace("FIRST", first));
    let models = Models::default();
    let (_, params) = models.instantiate(&of("2"), 1).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, &save_state_dict(&params).unwrap()).unwrap();
    let mut plan = of("6");
    plan.kind.set("head", head);
    (plan.pretrained, plan.except_head) = (Some(file.path().to_owned()), true);
    models.check_pretrained(&plan).map_err(|unfit| unfit.what)
}

#[test]
fn the_head_of_a_graph_is_its_last_layer_or_those_that_it_names() {
    assert!(with_head(&[]).unwrap_err().contains("a.weight"));
    assert_eq!(with_head(&["a", "fc"]), Ok(()));
    let unknown = with_head(&["fd"]).unwrap_err();
    assert!(unknown.contains("`model.head` names `fd`"), "{unknown}");
}

#[test]
fn a_tied_layer_uses_the_weight_of_another() {
    let layers = r#"{ name = "flatten" }, { name = "linear", key = "down", out_features = 6, bias = false },
        { name = "linear", key = "across", out_features = 6 }, { name = "relu" },
        { name = "linear", key = "again", out_features = 6, tied = "across" }, { name = "linear", key = "fc" }"#;
    let plan = of_layers(layers);
    let sum: usize = plan.layers.iter().map(LayerPlan::parameters).sum();
    assert_eq!(sum, plan.n_parameters);
    let (model, params) = Models::default().instantiate(&plan, 1).unwrap();
    let names: Vec<&str> = params.aliases().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["again.weight"]);
    let across = params.parameters().iter().position(|p| p.name() == "across.weight").unwrap();
    let x = Tensor::ones((2, 1, 28, 28), DType::F32, &Device::Cpu).unwrap();
    let pass = ForwardContext::eval(Precision::Fp32);
    let before = model.forward(&x, &pass).unwrap().to_vec2::<f32>().unwrap();
    params.parameters()[across]
        .var()
        .unwrap()
        .set(&Tensor::zeros((6, 6), DType::F32, &Device::Cpu).unwrap())
        .unwrap();
    let after = model.forward(&x, &pass).unwrap().to_vec2::<f32>().unwrap();
    assert_ne!(before, after);
}
