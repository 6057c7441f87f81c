//! A pass that is as long as its longest sample, against the same samples padded to a fixed length:
//! what the models compute of a text does not depend on the padding behind it.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use ddprun::model::Models;
use ddprun::nn::ForwardContext;
use ddprun::ops::{self, GradientSink, IGNORED_LABEL};
use ddprun::plan::Precision;
use ddprun::rng::{Key, Purpose};
use serde_json::json;

use crate::golden::{Collected, filled, flat, model_plan, with};

/// Tokens of the samples; the rest of a row is padding.
const LENGTHS: [usize; 3] = [40, 7, 23];
const PADDED: usize = 128;
const VOCABULARY: usize = 50;

/// Samples in rows of `length`, and the labels, which do not count for the padding.
fn batch(length: usize) -> (Tensor, Tensor) {
    let token = |row: usize, at: usize| (row * 31 + at * 17) % VOCABULARY;
    let places = || LENGTHS.iter().enumerate().flat_map(|row| (0..length).map(move |at| (row, at)));
    let seen = |((row, &used), at): ((usize, &usize), usize)| {
        if at < used { token(row, at) as u32 } else { 0 }
    };
    let next = |((row, &used), at): ((usize, &usize), usize)| {
        if at < used { token(row, at + 1) as i64 } else { IGNORED_LABEL }
    };
    let shape = (LENGTHS.len(), length);
    let seen = Tensor::from_vec(places().map(seen).collect::<Vec<_>>(), shape, &Device::Cpu);
    let next = Tensor::from_vec(places().map(next).collect::<Vec<_>>(), shape, &Device::Cpu);
    (seen.unwrap(), next.unwrap().flatten_all().unwrap())
}

#[test]
fn padding_changes_no_logit_and_no_loss_and_gradients_by_rounding_only() {
    for name in ["gpt", "llama"] {
        let sizes = json!({ "n_layers": 2, "n_heads": 2, "d_model": 32 });
        let plan = with(model_plan(name, VOCABULARY, &[PADDED], vec![PADDED]), &sizes);
        assert!(Models::default().describe(&plan).unwrap().ignores_padding, "{name}");
        let (model, params) = filled(&plan);
        let run = |length: usize| {
            let (x, y) = batch(length);
            let collected = Arc::new(Collected::default());
            let sink: Arc<dyn GradientSink> = collected.clone();
            params.begin_pass(Some(&sink));
            let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
            let logits = model.forward(&x, &pass).unwrap();
            let loss = ops::cross_entropy(&logits.flatten_to(1).unwrap(), &y, 0.0).unwrap();
            loss.backward().unwrap();
            params.end_pass();
            let logits: Vec<Vec<f32>> = (0..LENGTHS.len())
                .map(|row| flat(&logits.get(row).unwrap().narrow(0, 0, LENGTHS[row]).unwrap()))
                .collect();
            (logits, loss.to_scalar::<f32>().unwrap(), collected.by_index())
        };
        let (whole, short) = (run(PADDED), run(40));
        assert!(whole.0 == short.0, "{name}: logits");
        assert_eq!(whole.1.to_bits(), short.1.to_bits(), "{name}: loss");
        assert_eq!(whole.2.len(), params.parameters().len());
        for (index, expected) in &whole.2 {
            let norm = |of: &mut dyn Iterator<Item = f32>| of.map(|g| g * g).sum::<f32>().sqrt();
            let found = &short.2[index];
            let away = norm(&mut expected.iter().zip(found).map(|(a, b)| a - b));
            let size = norm(&mut expected.iter().copied());
            let parameter = params.parameters()[*index].name();
            assert!(away <= 1e-6 * size, "{name}: {parameter} is {away} of {size} away");
        }
    }
}
