//! The diffusion policy of images against `LeRobot`'s in PyTorch (f64, `golden/policy_image.py`):
//! counts, names, noise, loss and gradients, with an encoder for all cameras and with one for each.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use ddprun::kinds::Kinds;
use ddprun::nn::{Builder, ForwardContext};
use ddprun::ops::{self, GradientSink};
use ddprun::plan::{Cameras, Convolutions, ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};
use ddprun::trajectories::policy::DiffusionPolicyImage;
use serde_json::{Value, json};

use crate::golden::{
    Collected, check_sum, fill, fill_params, model_plan, near, near_summary, number, with,
};

const NAME: &str = "diffusion_policy_image";

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/policy_image.json")).unwrap()
}

/// Two observations of so many numbers and of images of `cameras` cameras.
fn plan(actions: usize, numbers: usize, cameras: usize, shape: [usize; 3]) -> ModelPlan {
    let names = (0..cameras).map(|camera| format!("camera{camera}")).collect();
    let cameras = Cameras { names, shape };
    let input = [2, numbers + cameras.values()];
    let plan = model_plan(NAME, actions, &input, vec![16, actions]);
    ModelPlan { cameras: Some(cameras), ..plan }
}

fn tensor(name: &str, shape: &[usize]) -> Tensor {
    let values: Vec<f32> =
        fill(name, shape.iter().product()).into_iter().map(|v| v as f32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// A small policy of two cameras, its noise, loss and gradients.
#[track_caller]
fn check(name: &str, shape: [usize; 3], separate: bool) {
    let golden = &golden()[name];
    let sizes = json!({
        "down_dims": [16, 32], "diffusion_step_embed_dim": 16, "spatial_softmax_num_keypoints": 4,
        "use_separate_rgb_encoder_per_camera": separate
    });
    let plan = with(plan(2, 3, 2, shape), &sizes);
    let options = serde_json::to_value(&plan.kind.options).unwrap();
    let builder = Builder::new(1);
    let config = serde_json::from_value(options).unwrap();
    let policy = DiffusionPolicyImage::new(&config, &plan, &builder).unwrap();
    let params = builder.finish();
    fill_params(&params);
    let facts = Kinds::default().models.describe(&plan).unwrap();
    let mut names = [facts.parameters, facts.buffers].concat();
    let mut expected: Vec<(String, Vec<usize>)> =
        serde_json::from_value(golden["keys"].clone()).unwrap();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);

    let steps = [0, 50, 99];
    let [clean, noise] =
        ["clean", "noise"].map(|what| tensor(&format!("{name}.{what}"), &[3, 16, 2]));
    let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (clean, drawn) = (flat(&clean), flat(&noise));
    let noisy: Vec<f32> = steps
        .iter()
        .enumerate()
        .flat_map(|(i, &step)| {
            let chunk = 32 * i..32 * (i + 1);
            policy.diffusion().noised(&clean[chunk.clone()], &drawn[chunk], step)
        })
        .collect();
    let noisy = Tensor::from_vec(noisy, (3, 16, 2), &Device::Cpu).unwrap();
    let observed = tensor(&format!("{name}.observed"), &[3, 2, plan.input[1]]);

    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    params.begin_pass(Some(&sink));
    let mut pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
    // A rounding more, and a value at a ReLU's kink falls on its other side.
    pass.convolutions = Convolutions::Direct;
    let found = policy.predict_noise(&noisy, &steps, &observed, &pass).unwrap();
    let loss = ops::mse(&found, &noise).unwrap();
    loss.backward().unwrap();
    params.end_pass();

    near_summary("prediction", &found.detach(), &golden["output"]);
    near("loss", f64::from(loss.to_scalar::<f32>().unwrap()), number(golden, "loss"), 1e-5);
    let expected = golden["grads"].as_object().unwrap();
    let gradients = collected.by_index();
    assert_eq!(gradients.len(), expected.len());
    for (index, gradient) in gradients {
        let name = params.parameters()[index].name();
        let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let allowed = (1e-3 * number(&expected[name], "l2")).max(1e-6);
        near(name, l2, number(&expected[name], "l2"), allowed);
        near(name, check_sum(&gradient), number(&expected[name], "check"), allowed);
    }
}

#[test]
fn one_encoder_for_all_cameras_is_lerobots() {
    check("shared", [3, 40, 48], false);
}

#[test]
fn an_encoder_for_each_camera_is_lerobots() {
    check("separate", [3, 33, 33], true);
}

#[test]
fn policies_have_as_many_parameters_as_lerobots() {
    let golden = golden();
    let count =
        |plan: &ModelPlan| Kinds::default().models.describe(plan).unwrap().lengths().sum::<usize>();
    let seen = [3, 84, 84];
    assert_eq!(golden["pusht"], count(&plan(2, 2, 1, seen)));
    let separate = json!({ "use_separate_rgb_encoder_per_camera": true });
    assert_eq!(golden["aloha"], count(&with(plan(14, 14, 4, seen), &separate)));
    let of_resnet18 = count(&plan(2, 2, 1, seen)) as i64;
    for (name, encoder) in golden["encoders"].as_object().unwrap() {
        let found = count(&with(plan(2, 2, 1, seen), &json!({ "vision_backbone": name }))) as i64;
        let [encoder, resnet18] =
            [encoder, &golden["encoders"]["resnet18"]].map(|n| n.as_i64().unwrap());
        assert_eq!(found - of_resnet18, encoder - resnet18, "{name}");
    }
}

#[test]
fn observations_without_images_and_images_without_this_policy_are_refused() {
    let refusal = |plan: &ModelPlan| Kinds::default().models.describe(plan).unwrap_err();
    let blind = ModelPlan { cameras: None, ..plan(2, 3, 1, [3, 33, 33]) };
    assert!(refusal(&blind).contains("takes observations with images"), "{}", refusal(&blind));
    let seeing = ModelPlan {
        cameras: plan(2, 3, 1, [3, 33, 33]).cameras,
        ..model_plan("diffusion_policy", 2, &[2, 3270], vec![16, 2])
    };
    assert!(refusal(&seeing).contains("diffusion_policy_image"), "{}", refusal(&seeing));
}
