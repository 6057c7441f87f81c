//! All models at once.

mod onnx;

use candle_core::{DType, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::*;
use crate::config::kind::{Choice, Entry, Kind, Options};
use crate::model::layers::{self, Layers};
use crate::nn::{Builder, ForwardContext, Linear};
use crate::plan::{Flow, ModelPlan, Precision};
use crate::rng::{Key, Purpose};

/// The model `name` with its usual options.
pub(super) fn plan(name: &str, input: &[usize], outputs: usize) -> ModelPlan {
    let kind = Choice { name: name.to_owned(), ..Choice::default() };
    ModelPlan::new(kind, input, outputs)
}

fn of<K: Kind>(kind: &K, input: &[usize], target: &[usize]) -> ModelPlan {
    let mut plan = ModelPlan::new(Choice::of(kind), input, 5);
    plan.target = target.to_vec();
    plan
}

/// 6 tokens of a vocabulary of 5.
fn text(name: &str) -> ModelPlan {
    if name == "gpt" {
        let gpt = GptConfig { d_model: 8, n_heads: 2, n_layers: 1, ..GptConfig::default() };
        return of(&gpt, &[6], &[6]);
    }
    let sizes = LlamaConfig { d_model: 8, n_heads: 2, d_ff: 6, ..LlamaConfig::default() };
    of(&LlamaConfig { n_layers: 1, n_kv_heads: Some(1), ..sizes }, &[6], &[6])
}

/// 5 series with 4 features of the date, 24 steps to 4.
fn forecast(name: &str) -> ModelPlan {
    let (input, target) = (&[24, 9], &[4, 5]);
    match name {
        "dlinear" => of(&DLinearConfig {}, input, target),
        "lstm" | "gru" => {
            let mut kind = Choice { name: name.to_owned(), ..Choice::default() };
            kind.set("hidden_size", 8);
            kind.set("bidirectional", true);
            ModelPlan { target: target.to_vec(), ..ModelPlan::new(kind, input, 5) }
        }
        "itransformer" => of(
            &ITransformerConfig { d_model: 8, n_heads: 2, d_ff: 8, n_layers: 1, dropout: 0.1 },
            input,
            target,
        ),
        "patchtst" => of(
            &PatchTstConfig {
                d_model: 8,
                n_heads: 2,
                d_ff: 8,
                n_layers: 1,
                dropout: 0.1,
                patch_len: 4,
                stride: 2,
            },
            input,
            target,
        ),
        _ => of(
            &TimeBridgeConfig {
                d_model: 8,
                n_heads: 2,
                d_ff: 8,
                dropout: 0.1,
                period: 6,
                num_p: Some(2),
                stable_len: 3,
                ca_layers: 1,
                ..TimeBridgeConfig::default()
            },
            input,
            target,
        ),
    }
}

/// The registered model `name`, as small as its options make it, for small samples.
pub(super) fn small(name: &str) -> ModelPlan {
    match name {
        "gpt" | "llama" => text(name),
        "dlinear" | "lstm" | "gru" | "itransformer" | "patchtst" | "timebridge" => forecast(name),
        _ => plan(name, &[3, 32, 32], 5),
    }
}

#[test]
fn every_registered_model_is_described_and_the_small_ones_run_in_both_modes() {
    let registry = Models::default();
    // A graph has the layers of its file; its own tests run it.
    for name in registry.names().filter(|&name| name != "graph") {
        let plan = small(name);
        let facts = registry.describe(&plan).unwrap();
        if facts.parameters.iter().map(|p| p.1.iter().product::<usize>()).sum::<usize>() > 2_000_000
        {
            continue;
        }
        let (model, params) = registry.instantiate(&plan, 1).unwrap();
        assert_eq!(params.parameters().len(), facts.parameters.len());
        let shape = [&[2], &plan.input[..]].concat();
        let x = Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let times = &plan.target[..plan.target.len().min(1)];
        let expected = [&[2], times, &[5]].concat();
        let key = Key::new(1, Purpose::Dropout, 0, 0);
        for pass in
            [ForwardContext::train(key, Precision::Fp32), ForwardContext::eval(Precision::Bf16)]
        {
            assert_eq!(model.forward(&x, &pass).unwrap().dims(), expected, "{name}");
        }
    }
}

#[test]
fn a_model_says_how_few_values_its_batch_norms_see_in_a_sample() {
    let vector = Flow::Vector(4);
    let norm = Entry { name: "batch_norm".to_owned(), key: None, options: Options::new() };
    let layers = layers::plan(&Layers::default(), &[norm], vector, 4).unwrap();
    let graph = ModelPlan { layers, ..plan("graph", &[4], 4) };
    let cifar = ResNetConfig { stem: Stem::Cifar, ..ResNetConfig::default() };
    let cifar = of(&cifar, &[3, 8, 8], &[]);
    for (plan, expected) in [
        (plan("resnet8", &[3, 32, 32], 5), Some(64)),
        (plan("resnet8", &[3, 8, 8], 5), Some(4)),
        (plan("resnet8", &[3, 3, 4], 5), Some(1)),
        (plan("resnet18", &[3, 33, 32], 5), Some(2)),
        (cifar, Some(1)),
        (graph, Some(1)),
        (forecast("patchtst"), Some(5 * 12)),
        (plan("mlp", &[7], 5), None),
    ] {
        let registry = Models::default();
        assert_eq!(registry.describe(&plan).unwrap().least_rows, expected, "{}", plan.name());
        let (model, _) = registry.instantiate(&plan, 1).unwrap();
        let shape = [&[1], &plan.input[..]].concat();
        let one = Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
        let refused = model.forward(&one, &pass).is_err();
        assert_eq!(refused, expected == Some(1), "{}, a batch of one", plan.name());
    }
}

#[test]
fn an_unknown_name_is_told() {
    let error = Models::default().describe(&plan("resnet9", &[3, 8, 8], 2)).unwrap_err();
    assert_eq!(error, "no model is called `resnet9`");
}

/// A linear layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Mine {}

impl Kind for Mine {
    const NAME: &'static str = "mine";
}

impl Architecture for Mine {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let n = plan.input.iter().product();
        Ok(Box::new(Layer(Linear::new(&builder.pp("layer"), n, plan.outputs)?)))
    }
}

struct Layer(Linear);

impl Model for Layer {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.0.forward(input, pass)
    }
}

/// The models of the house, and one of a user's without a head.
pub(super) fn with_mine() -> Models {
    let mut models = Models::default();
    models.add::<Mine>();
    models.add_variant("mlp", "A small one.", |mlp: &mut MlpConfig| mlp.hidden = vec![16, 8]);
    models
}

#[test]
fn a_users_model_is_registered_and_replaces_one_of_its_name() {
    let models = with_mine();
    let n = Models::default().names().count();
    assert_eq!((models.names().next(), models.names().count()), (Some("mlp"), n + 1));
    let first = |name| models.describe(&plan(name, &[4], 2)).unwrap().parameters[0].clone();
    assert_eq!(first("mine"), ("layer.weight".to_owned(), vec![2, 4]));
    assert_eq!(first("mlp"), ("layers.0.weight".to_owned(), vec![16, 4]));
}

#[test]
fn a_prefix_begins_every_name_of_a_residual_network_and_of_its_head() {
    let models = Models::default();
    let described = |prefix: &str| {
        let (head, prefix) = (HeadKind::Hidden, prefix.to_owned());
        let net = ResNetConfig { head, prefix, ..ResNetConfig::default() };
        models.describe(&of(&net, &[3, 32, 32], &[])).unwrap()
    };
    let plain = described("");
    let prefixed = described("model.resnet18");
    let renamed =
        |(name, shape): &(String, Vec<usize>)| (format!("model.resnet18.{name}"), shape.clone());
    let expected: Vec<_> = plain.parameters.iter().map(renamed).collect();
    assert_eq!(prefixed.parameters, expected);
    assert_eq!(plain.head, ["fc."]);
    assert_eq!(prefixed.head, ["model.resnet18.fc."]);
}

#[test]
fn a_prefix_with_an_empty_name_in_it_is_refused() {
    for (prefix, is_wrong) in
        [("", false), ("a", false), ("a.b", false), (".a", true), ("a.", true)]
    {
        let net = ResNetConfig { prefix: prefix.to_owned(), ..ResNetConfig::default() };
        assert_eq!(!net.check().is_empty(), is_wrong, "{prefix:?}");
    }
}

#[test]
fn a_choice_is_called_as_its_size() {
    let large = MobileNetV3Config { size: MobileNetV3Size::Large, ..MobileNetV3Config::default() };
    assert_eq!(Choice::of(&large).name, "mobilenet_v3_large");
    let gru = RecurrentConfig { network: RecurrentNetwork::Gru, ..RecurrentConfig::default() };
    assert_eq!(Choice::of(&gru).name, "gru");
    for name in [Choice::of(&large).name, Choice::of(&gru).name] {
        assert!(Models::default().kind(&name).is_some(), "{name}");
    }
}
