//! Both policies at once: their shapes, and as ONNX.

#[path = "../../../train/src/model/tests/onnx/onnxruntime.rs"]
#[expect(dead_code, reason = "a policy is written as one step, which has other inputs")]
mod onnxruntime;

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::*;
use crate::config::kind::{Choice, Kind};
use crate::data::DataSources;
use crate::model::{Model, Models};
use crate::nn::{Builder, ForwardContext, Params};
use crate::onnx::ModelProto;
use crate::plan::{Cameras, ModelPlan, Precision};
use crate::rng::{Key, Purpose};

use onnxruntime::{check_structure, compare, numbers, stir};

fn models() -> Models {
    let (mut data, mut models) = (DataSources::default(), Models::default());
    crate::register(&mut data, &mut models);
    models
}

fn of<K: Kind>(kind: &K, input: &[usize]) -> ModelPlan {
    ModelPlan { target: vec![4, 5], ..ModelPlan::new(Choice::of(kind), input, 5) }
}

/// 2 observations of 3 numbers, 4 actions of 5.
fn policy() -> ModelPlan {
    let config = DiffusionPolicyConfig {
        down_dims: vec![8, 16],
        diffusion_step_embed_dim: 8,
        n_groups: 4,
        num_inference_steps: Some(2),
        ..DiffusionPolicyConfig::default()
    };
    of(&config, &[2, 3])
}

/// The same with the images of two cameras.
fn seeing_policy() -> ModelPlan {
    let config = DiffusionPolicyImageConfig {
        vision_backbone: VisionBackbone::Resnet8,
        spatial_softmax_num_keypoints: 3,
        down_dims: vec![8, 16],
        diffusion_step_embed_dim: 8,
        n_groups: 4,
        num_inference_steps: Some(2),
        ..DiffusionPolicyImageConfig::default()
    };
    let cameras = Cameras { names: vec!["a".to_owned(), "b".to_owned()], shape: [3, 9, 10] };
    let plan = of(&config, &[2, 3 + cameras.values()]);
    ModelPlan { cameras: Some(cameras), ..plan }
}

#[test]
fn policies_are_described_and_run_in_both_modes() {
    for plan in [policy(), seeing_policy()] {
        let facts = models().describe(&plan).unwrap();
        let (model, params) = models().instantiate(&plan, 1).unwrap();
        assert_eq!(params.parameters().len(), facts.parameters.len());
        let shape = [&[2], &plan.input[..]].concat();
        let x = Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let key = Key::new(1, Purpose::Dropout, 0, 0);
        for pass in
            [ForwardContext::train(key, Precision::Fp32), ForwardContext::eval(Precision::Bf16)]
        {
            assert_eq!(model.forward(&x, &pass).unwrap().dims(), [2, 4, 5], "{}", plan.name());
        }
    }
}

/// Noise in actions at steps, by observations.
type Noise<'a> = &'a dyn Fn(&Tensor, &[usize], &Tensor) -> candle_core::Result<Tensor>;

/// Writes a policy and the noise that it finds.
fn write(
    folder: &Path,
    plan: &ModelPlan,
    policy: &dyn Model,
    params: &Params,
    noise: Noise<'_>,
) -> Json {
    let file = format!("{}.onnx", plan.name());
    let bytes = models().onnx(plan, policy).unwrap();
    let graph = ModelProto::read(&bytes).unwrap().graph.unwrap();
    let names: Vec<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["input", "noisy_actions", "timestep"]);
    check_structure(&graph, params, &[]);
    crate::files::write_atomic(&folder.join(&file), &bytes).unwrap();
    let run = |n: usize| {
        let tensor = |dims: &[usize], seed| {
            let shape = [&[n], dims].concat();
            let values = numbers(shape.iter().product(), seed);
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        let (observed, noisy) = (tensor(&plan.input, 1), tensor(&plan.target, 2));
        let steps: Vec<usize> = (0..n).map(|sample| 7 + 30 * sample).collect();
        let y = noise(&noisy, &steps, &observed).unwrap();
        let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let feed = |name: &str, x: &Tensor| json!({"name": name, "dtype": "float32", "shape": x.dims(), "values": values(x)});
        let steps = json!({"name": "timestep", "dtype": "int64", "shape": [n], "values": steps});
        let feeds = [feed("input", &observed), feed("noisy_actions", &noisy), steps];
        json!({"feeds": feeds, "shape": y.dims(), "expected": values(&y)})
    };
    json!({"file": file, "runs": [run(1), run(3)]})
}

#[test]
fn a_policy_is_one_step_of_many_in_onnxruntime() {
    let folder = tempfile::tempdir().unwrap();
    let pass = ForwardContext::eval(Precision::Fp32);
    let (plan, builder) = (policy(), Builder::new(3));
    let config = DiffusionPolicyConfig::deserialize(json!(plan.kind.options)).unwrap();
    let policy = DiffusionPolicy::new(&config, &plan, &builder).unwrap();
    let params = builder.finish();
    stir(&params);
    let first = write(folder.path(), &plan, &policy, &params, &|noisy, steps, observed| {
        policy.predict_noise(noisy, steps, observed, &pass)
    });
    let (plan, builder) = (seeing_policy(), Builder::new(3));
    let config = DiffusionPolicyImageConfig::deserialize(json!(plan.kind.options)).unwrap();
    let policy = DiffusionPolicyImage::new(&config, &plan, &builder).unwrap();
    let params = builder.finish();
    stir(&params);
    let second = write(folder.path(), &plan, &policy, &params, &|noisy, steps, observed| {
        policy.predict_noise(noisy, steps, observed, &pass)
    });
    compare(folder.path(), &[first, second]);
}
