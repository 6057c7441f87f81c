//! NEST against NVIDIA `NeMo`'s modules in PyTorch (f64, `golden/nest.py`): mel features, counts,
//! keys, tokens, log-probabilities, loss, gradients, running statistics. Weights and inputs are
//! functions of their names; the numbers are in `golden/nest.json`.

use std::sync::Arc;

use crate::golden::{
    Collected, check_sum, fill, fill_params, filled, flat, model_plan, near, near_summary, number,
    with,
};
use candle_core::{Device, Tensor};
use candle_nn::ops::log_softmax;
use ddprun::kinds::Kinds;
use ddprun::nn::{Builder, ForwardContext, Params};
use ddprun::ops::{self, GradientSink};
use ddprun::plan::{ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};
use ddprun::speech::{LogMel, Nest, NestConfig};
use serde_json::{Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/nest.json")).unwrap()
}

/// Mel bands, width, heads, layers.
fn plan([mels, d_model, n_heads, n_layers]: [usize; 4], speech: &Value) -> ModelPlan {
    let sizes = json!({ "d_model": d_model, "n_heads": n_heads, "n_layers": n_layers });
    with(with(model_plan("nest", 10, &[2, 97, mels], vec![]), &sizes), speech)
}

fn tiny() -> ModelPlan {
    let speech =
        json!({ "subsampling_channels": 8, "kernel_size": 5, "codebook_size": 32, "code_dim": 8 });
    plan([16, 24, 4, 2], &speech)
}

const LENGTHS: [usize; 2] = [96, 72];

/// Two utterances of 16 bands and 96 frames, clean and noisy: (2, 96, 16).
fn speech() -> (Tensor, Tensor) {
    let [clean, noise] = ["input.clean", "input.noise"].map(|name| fill(name, 2 * 16 * 96));
    let noisy: Vec<f64> =
        clean.iter().zip(noise).map(|(clean, noise)| clean + 0.3 * noise).collect();
    let tensor = |values: Vec<f64>| {
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        let bands_first = Tensor::from_vec(values, (2, 16, 96), &Device::Cpu).unwrap();
        bands_first.transpose(1, 2).unwrap().contiguous().unwrap()
    };
    (tensor(clean), tensor(noisy))
}

/// The masks of the recorded pass.
fn mask() -> Tensor {
    let masked = |i: usize| match i / 96 {
        0 => (10..42).contains(&(i % 96)),
        _ => (30..70).contains(&(i % 96)),
    };
    let values: Vec<f32> = (0..2 * 96).map(|i| f32::from(u8::from(masked(i)))).collect();
    Tensor::from_vec(values, (2, 96), &Device::Cpu).unwrap()
}

fn nest() -> (Nest, Params) {
    let builder = Builder::new(1);
    let options = serde_json::to_value(tiny().kind.options).unwrap();
    let config: NestConfig = serde_json::from_value(options).unwrap();
    let nest = Nest::new(&config, &tiny().input, &builder).unwrap();
    let params = builder.finish();
    fill_params(&params);
    (nest, params)
}

#[test]
fn tokens_loss_gradients_and_statistics_equal_nemo() {
    let golden = &golden()["tiny"];
    let (nest, params) = nest();
    let ((clean, noisy), mask) = (speech(), mask());
    let tokens = nest.tokens(&clean).unwrap();
    let expected: Vec<Vec<u32>> = serde_json::from_value(golden["tokens"].clone()).unwrap();
    assert_eq!(tokens.to_vec2::<u32>().unwrap(), expected);
    let eval =
        nest.encode(&noisy, &mask, &LENGTHS, &ForwardContext::eval(Precision::Fp32)).unwrap();
    near_summary("eval", &eval.transpose(1, 2).unwrap(), &golden["eval_encoder_out"]);

    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    params.begin_pass(Some(&sink));
    let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32).direct();
    let encoded = nest.encode(&noisy, &mask, &LENGTHS, &pass).unwrap();
    let scores = nest.scores(&encoded, &pass).unwrap();
    let compared = nest.masked(&scores, &tokens, &mask).unwrap();
    assert_eq!(compared.outputs.dims(), [golden["n_masked"].as_u64().unwrap() as usize, 32]);
    let loss = ops::cross_entropy(&compared.outputs, &compared.targets, 0.0).unwrap();
    loss.backward().unwrap();
    params.end_pass();
    near_summary("encoder", &encoded.transpose(1, 2).unwrap(), &golden["encoder_out"]);
    near_summary("log-probabilities", &log_softmax(&scores, 2).unwrap(), &golden["logprobs"]);
    let loss = f64::from(loss.to_scalar::<f32>().unwrap());
    near("loss", loss, number(golden, "loss_train_mode"), 1e-5);
    let expected = golden["grads"].as_object().unwrap();
    let gradients = collected.by_index();
    assert_eq!((gradients.len(), expected.len()), (88, 88));
    for (index, gradient) in gradients {
        let name = params.parameters()[index].name();
        let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        // A bias before a batch norm has no gradient but rounding: 1e-6 where others have a length
        // of about 1.
        let allowed = (1e-3 * number(&expected[name], "l2")).max(5e-6);
        near(name, l2, number(&expected[name], "l2"), allowed);
        near(name, check_sum(&gradient), number(&expected[name], "check"), allowed);
    }
    for (name, expected) in golden["bn_after"].as_object().unwrap() {
        let buffer = params.buffers().iter().find(|buffer| buffer.name() == name).unwrap();
        near_summary(name, buffer.var().unwrap().as_tensor(), expected);
    }
}

#[test]
fn counts_and_keys_are_nemos() {
    let golden = golden();
    let registry = Kinds::default().models;
    for (size, [width, heads, layers]) in [
        ("small", [176, 4, 16]),
        ("medium", [256, 4, 16]),
        ("large", [512, 8, 17]),
        ("large18_released", [512, 8, 18]),
    ] {
        let facts = registry.describe(&plan([80, width, heads, layers], &json!({})));
        let facts = facts.unwrap();
        let counts = &golden["param_counts"][size];
        assert_eq!(counts["trainable"], facts.lengths().sum::<usize>(), "{size}");
        let frozen: usize = facts
            .buffers
            .iter()
            .filter(|(name, _)| name.starts_with("quantizer") || name.starts_with("mask"))
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        let expected = number(counts, "quantizer_frozen") + number(counts, "mask_frozen");
        assert_eq!(frozen as f64, expected, "{size}");
    }
    let keys: Vec<(String, Vec<usize>)> =
        serde_json::from_value(golden["tiny_keys"].clone()).unwrap();
    let facts = registry.describe(&tiny()).unwrap();
    let is_learnt = |name: &str| {
        !["running", "num_batches", "quantizer", "mask_"].iter().any(|part| name.contains(part))
    };
    let learnt: Vec<_> = keys.iter().filter(|(name, _)| is_learnt(name)).cloned().collect();
    assert_eq!(facts.parameters, learnt);
    let mut others: Vec<_> = keys
        .into_iter()
        .filter(|(name, _)| !is_learnt(name) && !name.ends_with("num_batches_tracked"))
        .collect();
    let mut found = facts.buffers;
    others.sort();
    found.sort();
    assert_eq!(found, others);
}

#[test]
fn features_are_those_of_nemos_preprocessor() {
    let golden = &golden()["mel_features"];
    let tone = |i: usize, hertz: f64| (std::f64::consts::TAU * hertz * i as f64 / 16_000.0).sin();
    let noise = fill("audio.noise", 16_000);
    let first = (0..16_000).map(|i| 0.3 * tone(i, 440.0) + 0.2 * tone(i, 1234.5) + 0.05 * noise[i]);
    let second = fill("audio.noise2", 16_000).into_iter().enumerate();
    let second = second.map(|(i, value)| if i < 12_000 { 0.5 * value } else { 0.0 });
    let signals: [Vec<f32>; 2] =
        [first.map(|value| value as f32).collect(), second.map(|value| value as f32).collect()];
    let mel = LogMel::new(16_000, 80);
    let bands_first = |rows: Vec<f32>, frames: usize| {
        let rows = Tensor::from_vec(rows, (frames, 80), &Device::Cpu).unwrap();
        rows.t().unwrap().contiguous().unwrap()
    };
    let (mut raw, mut normalised, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for (signal, length) in signals.iter().zip([16_000, 12_000]) {
        let logarithms = mel.logarithms(signal, length).into_iter().map(|v| v as f32).collect();
        raw.push(bands_first(logarithms, 101));
        let (features, real) = mel.features(signal, length, 112);
        normalised.push(bands_first(features, 112));
        lengths.push(real);
    }
    assert_eq!(golden["lengths"], serde_json::json!(lengths));
    near_summary("raw", &Tensor::stack(&raw, 0).unwrap(), &golden["raw_log_mel"]);
    near_summary("features", &Tensor::stack(&normalised, 0).unwrap(), &golden["normalised_padded"]);
}

/// So that a sample's mask does not depend on the ranks that its batch is spread over.
#[test]
fn each_utterance_has_its_own_mask_wherever_it_stands() {
    let (model, _) = filled(&tiny());
    let (clean, noisy) = speech();
    let rows = |speech: &Tensor| {
        let lengths: Vec<f32> =
            LENGTHS.iter().flat_map(|&n| [&[n as f32][..], &[0.0; 15]].concat()).collect();
        let last = Tensor::from_vec(lengths, (2, 1, 16), &Device::Cpu).unwrap();
        Tensor::cat(&[speech, &last], 1).unwrap()
    };
    let inputs = Tensor::stack(&[rows(&clean), rows(&noisy)], 1).unwrap();
    let key = |sample| Key::new(1, Purpose::Draw, 0, sample);
    let asked = |first: usize, draws: &[Key]| {
        let inputs = inputs.narrow(0, first, draws.len()).unwrap().contiguous().unwrap();
        let labels = Tensor::zeros(draws.len(), candle_core::DType::U32, &Device::Cpu).unwrap();
        model.compare(&inputs, &labels, draws, &ForwardContext::eval(Precision::Fp32)).unwrap()
    };
    let (both, second) = (asked(0, &[key(5), key(6)]), asked(1, &[key(6)]));
    let (all, one) = (both.targets.to_vec1::<u32>().unwrap(), second.targets.to_vec1().unwrap());
    assert!(all.len() > one.len() && all.ends_with(&one), "{all:?} {one:?}");
    let (all, one) = (flat(&both.outputs), flat(&second.outputs));
    for (all, one) in all[all.len() - one.len()..].iter().zip(&one) {
        assert!((all - one).abs() < 1e-5);
    }
}
