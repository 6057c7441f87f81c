//! A pass that is as long as its longest sample, and texts that are packed into one sample, against
//! the same samples padded to a fixed length: what the models compute of a text does not depend on
//! the padding behind it, nor on the texts beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use ddprun::model::{Model, Models};
use ddprun::nn::{ForwardContext, Params};
use ddprun::ops::{self, GradientSink, IGNORED_LABEL, Segments};
use ddprun::plan::Precision;
use ddprun::rng::{Key, Purpose};
use serde_json::json;

use crate::families::{families, plan_of};
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

/// The same texts in one sample of a batch, behind one another.
fn pack(length: usize) -> (Tensor, Tensor) {
    let (x, y) = batch(PADDED);
    let y = y.reshape((LENGTHS.len(), PADDED)).unwrap();
    let packed = |of: &Tensor, fill: &Tensor| {
        let text = |row: usize| of.get(row).unwrap().narrow(0, 0, LENGTHS[row]).unwrap();
        let mut parts: Vec<Tensor> = (0..LENGTHS.len()).map(text).collect();
        parts.push(fill.repeat(length - LENGTHS.iter().sum::<usize>()).unwrap());
        Tensor::cat(&parts, 0).unwrap()
    };
    let fill = Tensor::new(&[0_u32], &Device::Cpu).unwrap();
    let x = packed(&x, &fill).unsqueeze(0).unwrap();
    (x, packed(&y, &Tensor::new(&[IGNORED_LABEL], &Device::Cpu).unwrap()))
}

/// Logits of each text, loss, and gradients by the parameters' places.
type Found = (Vec<Vec<f32>>, f32, BTreeMap<usize, Vec<f32>>);

/// A pass over `x`, in which the texts are at these rows and places.
fn run(
    (model, params): (&dyn Model, &Params),
    (x, y): (Tensor, Tensor),
    texts: [(usize, usize); 3],
    segments: Option<Segments>,
) -> Found {
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    params.begin_pass(Some(&sink));
    let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
    let logits = model.forward(&x, &ForwardContext { segments, ..pass }).unwrap();
    let loss = ops::cross_entropy(&logits.flatten_to(1).unwrap(), &y, 0.0).unwrap();
    loss.backward().unwrap();
    params.end_pass();
    let of = |((row, start), length): ((usize, usize), usize)| {
        flat(&logits.get(row).unwrap().narrow(0, start, length).unwrap())
    };
    let logits = texts.into_iter().zip(LENGTHS).map(of).collect();
    (logits, loss.to_scalar::<f32>().unwrap(), collected.by_index().into_iter().collect())
}

#[track_caller]
fn near_gradients(name: &str, params: &Params, whole: &Found, other: &Found) {
    assert_eq!(whole.2.len(), params.parameters().len());
    for (index, expected) in &whole.2 {
        let norm = |of: &mut dyn Iterator<Item = f32>| of.map(|g| g * g).sum::<f32>().sqrt();
        let away = norm(&mut expected.iter().zip(&other.2[index]).map(|(a, b)| a - b));
        let size = norm(&mut expected.iter().copied());
        let parameter = params.parameters()[*index].name();
        assert!(away <= 1e-6 * size, "{name}: {parameter} is {away} of {size} away");
    }
}

/// `check` of a small model of each kind that takes such samples, and of each family of language
/// models.
fn each(check: impl Fn(&str, &dyn Model, &Params)) {
    let sizes = json!({ "n_layers": 2, "n_heads": 2, "d_model": 32 });
    let gpt = with(model_plan("gpt", VOCABULARY, &[PADDED], vec![PADDED]), &sizes);
    let mut plans = vec![("gpt".to_owned(), gpt)];
    for (name, golden) in families() {
        let mut config = golden["config"].clone();
        config["max_position_embeddings"] = PADDED.into();
        plans.push((name, plan_of(&config, PADDED)));
    }
    for (name, plan) in plans {
        let facts = Models::default().describe(&plan).unwrap();
        assert!(facts.ignores_padding && facts.keeps_texts_apart, "{name}");
        let (model, params) = filled(&plan);
        check(&name, &*model, &params);
    }
}

#[test]
fn padding_changes_no_logit_and_no_loss_and_gradients_by_rounding_only() {
    each(|name, model, params| {
        let of = |length| run((model, params), batch(length), [(0, 0), (1, 0), (2, 0)], None);
        let (whole, short) = (of(PADDED), of(40));
        assert!(whole.0 == short.0, "{name}: logits");
        assert_eq!(whole.1.to_bits(), short.1.to_bits(), "{name}: loss");
        near_gradients(name, params, &whole, &short);
    });
}

#[test]
fn a_packed_text_has_exactly_the_logits_of_the_text_alone() {
    each(|name, model, params| {
        let alone = run((model, params), batch(PADDED), [(0, 0), (1, 0), (2, 0)], None);
        let [first, second, _] = LENGTHS;
        let texts = [(0, 0), (0, first), (0, first + second)];
        let segments = || Segments::new(vec![LENGTHS.to_vec()]);
        for length in [70, 96, PADDED] {
            let packed = run((model, params), pack(length), texts, Some(segments()));
            assert!(alone.0 == packed.0, "{name}: logits in a sample of {length}");
            assert!((alone.1 - packed.1).abs() <= 1e-6 * alone.1, "{name}: loss");
            near_gradients(name, params, &alone, &packed);
        }
        // Without segments, the second text sees the first.
        let mixed = run((model, params), pack(PADDED), texts, None);
        assert!(alone.0[0] == mixed.0[0] && alone.0[1] != mixed.0[1], "{name}");
    });
}
