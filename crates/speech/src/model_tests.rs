//! The models, as small as their options make them.

#[path = "../../train/src/model/tests/onnx/onnxruntime.rs"]
mod onnxruntime;

use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use crate::config::kind::Choice;
use crate::data::DataSources;
use crate::model::Models;
use crate::nn::ForwardContext;
use crate::plan::{ModelPlan, Precision};
use crate::rng::{Key, Purpose};

const NAMES: [&str; 2] = ["nest", "fastconformer"];

fn models() -> Models {
    let mut models = Models::default();
    crate::register(&mut DataSources::default(), &mut models);
    models
}

/// 16 frames of 8 mel bands, clean and noisy.
fn small(name: &str) -> ModelPlan {
    let mut kind = Choice::named(name);
    let sizes = [("d_model", 8), ("n_heads", 2), ("n_layers", 1), ("subsampling_channels", 4)];
    for (key, value) in sizes {
        kind.set(key, value);
    }
    if name == "nest" {
        kind.set("codebook_size", 5);
    }
    ModelPlan::new(kind, &[2, 17, 8], 5)
}

/// `n` samples of ones.
fn ones(plan: &ModelPlan, n: usize) -> Tensor {
    Tensor::ones([&[n], &plan.input[..]].concat(), DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn models_are_described_and_run_in_both_modes() {
    let models = models();
    for (name, expected) in [("nest", &[2, 2, 5][..]), ("fastconformer", &[2, 5])] {
        let plan = small(name);
        let facts = models.describe(&plan).unwrap();
        let (model, params) = models.instantiate(&plan, 1).unwrap();
        assert_eq!(params.parameters().len(), facts.parameters.len());
        let key = Key::new(1, Purpose::Dropout, 0, 0);
        for pass in
            [ForwardContext::train(key, Precision::Fp32), ForwardContext::eval(Precision::Bf16)]
        {
            assert_eq!(model.forward(&ones(&plan, 2), &pass).unwrap().dims(), expected, "{name}");
        }
    }
}

#[test]
fn a_model_says_how_few_values_its_batch_norms_see_in_a_sample() {
    let short = ModelPlan { input: vec![2, 9, 8], ..small("fastconformer") };
    for (plan, expected) in [(small("fastconformer"), 2), (short, 1)] {
        let models = models();
        assert_eq!(models.describe(&plan).unwrap().least_rows, Some(expected));
        let (model, _) = models.instantiate(&plan, 1).unwrap();
        let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
        let refused = model.forward(&ones(&plan, 1), &pass).is_err();
        assert_eq!(refused, expected == 1, "a batch of one");
    }
}

#[test]
fn models_answer_the_same_in_onnxruntime() {
    let (folder, models) = (tempfile::tempdir().unwrap(), models());
    // Targets and masks are of training alone.
    let unused = ["quantizer.", "mask_processor."];
    let case = |name: &str| {
        let file = format!("{name}.onnx");
        onnxruntime::write(folder.path(), &file, &small(name), &models, &unused)
    };
    let cases: Vec<Value> = NAMES.into_iter().map(case).collect();
    onnxruntime::compare(folder.path(), &cases);
}
