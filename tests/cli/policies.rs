//! Policies: trained on generated behaviour, tested in its simulation, asked for actions.

use candle_core::{DType, Device, Tensor};

use crate::harness::lab::Lab;

/// Two ranks train a small policy for three steps; it is tested in a simulation.
pub(crate) const POLICY: &str = r#"schema = 1

[experiment]
name = "small"
seed = 7

[model]
name = "diffusion_policy"
down_dims = [8, 16]
diffusion_step_embed_dim = 8
n_groups = 4
num_inference_steps = 2

[data]
name = "push_t_like"
episodes = 4
val_ratio = 0.25
num_workers = 1

[train]
steps = 3
batch_size = 4
global_batch_size = 8

[loss]
name = "mse"

[optimizer]
name = "adamw"
lr = 1e-3

[ema]
decay = 0.99

[distributed]
devices = 2
threads_per_rank = 1

[expect]
"test/success" = { at_least = 0.0 }
"#;

#[test]
fn a_policy_is_trained_tested_in_its_simulation_and_asked_for_actions() {
    let lab = Lab::with(POLICY);
    let ended = lab.run_to(0, &["small.toml"]);
    let tested = lab.events().into_iter().find(|event| event["event"] == "tested");
    let tested = tested.unwrap_or_else(|| panic!("{ended:?}"));
    let success = tested["metrics"]["test/success"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&success));

    let ended = lab.run_to(0, &["eval", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(found["metrics"]["test/success"].as_f64(), Some(success));
    assert!(found["metrics"]["val/mse"].as_f64().unwrap() > 0.0);

    let ended = lab.run_to(0, &["sample", "--episodes", "2"]);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], "episode,step,agent_x,agent_y,disc_x,disc_y,action_x,action_y");
    let start = |line: &str| line.split(',').skip(2).take(4).collect::<Vec<_>>().join(",");
    let starts: Vec<&&str> =
        lines.iter().filter(|line| line.split(',').nth(1) == Some("0")).collect();
    assert_eq!((starts.len(), start(starts[0])), (2, start(starts[1])));

    let ended = lab.run_to(0, &["sample", "--prompt", "200 200 256 150, 200 200 256 150"]);
    assert_eq!(ended.stdout.lines().count(), 8);
    assert!(ended.stdout.lines().all(|line| line.split(',').count() == 2), "{}", ended.stdout);
    let ended = lab.run_to(2, &["sample", "--prompt", "200 200"]);
    assert!(ended.stderr.contains("the last 2 observations of 4 numbers"), "{}", ended.stderr);
}

#[test]
fn actions_are_drawn_in_the_evaluations_that_were_asked_for_and_in_the_last() {
    let lab = Lab::with(POLICY);
    lab.run_to(0, &["small.toml", "validation.every=1 step", "validation.sample_every=2"]);
    let events = lab.events();
    let evaluated = events.iter().filter(|event| event["event"] == "evaluated");
    let has = |name: &str| -> Vec<bool> {
        evaluated.clone().map(|event| event["metrics"][name].is_number()).collect()
    };
    assert_eq!((has("val/loss"), has("val/mse")), (vec![true; 3], vec![true, false, true]));
    assert_eq!(has("val/mae"), has("val/mse"));
}

/// The same with pictures, which are shifted in training.
pub(crate) fn seeing() -> Lab {
    let crop = |name: &str| format!("[{{ name = \"{name}\", size = 20 }}]");
    let (train, val) = (crop("random_crop"), crop("center_crop"));
    let text = POLICY
        .replace(
            "\"diffusion_policy\"",
            "\"diffusion_policy_image\"\nvision_backbone = \"resnet8\"",
        )
        .replace(
            "episodes = 4",
            &format!(
                "episodes = 4\nimage_size = 24\ntransforms.train = {train}\ntransforms.val = {val}"
            ),
        );
    Lab::with(&text)
}

#[test]
fn a_policy_that_sees_pictures_is_tested_and_sampled() {
    let lab = seeing();
    lab.run_to(0, &["small.toml"]);
    let tested = lab.events().into_iter().find(|event| event["event"] == "tested").unwrap();
    let success = tested["metrics"]["test/success"].as_f64().unwrap();
    let ended = lab.run_to(0, &["eval", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(found["metrics"]["test/success"].as_f64(), Some(success));

    let ended = lab.run_to(0, &["sample", "--episodes", "1"]);
    let head = ended.stdout.lines().next();
    assert_eq!(head, Some("episode,step,agent_x,agent_y,action_x,action_y"));
    let ended = lab.run_to(2, &["sample", "--prompt", "200 200"]);
    assert!(ended.stderr.contains("the policy sees images"), "{}", ended.stderr);
}

#[test]
fn what_does_not_go_with_images_is_refused_with_its_key() {
    let lab = seeing();
    let check = |changes: &[&str], words: &[&str]| {
        lab.run_to(2, &[&["plan", "small.toml"], changes].concat()).says(words);
    };
    let crop = "data.transforms.train=[{ name = \"random_crop\", size = 30 }]";
    check(&[crop], &["`data.transforms.train[0].size`: is larger than the images, 24x24"]);
    check(&["~data.image_size"], &["change images, but the observations hold none"]);
    check(&["model.name=diffusion_policy"], &["sees no images"]);
    let plain = ["~data.image_size", "~data.transforms.train", "~data.transforms.val"];
    check(&plain, &["takes observations with images"]);
    lab.write("runs.npz", "");
    let steps = 40;
    let numbers = |n: usize| Tensor::zeros((steps, n), DType::F32, &Device::Cpu).unwrap();
    let ends = Tensor::new(&[20u32, 40], &Device::Cpu).unwrap().to_dtype(DType::I64).unwrap();
    let images = Tensor::zeros((steps, 24, 24, 3), DType::U8, &Device::Cpu).unwrap();
    let arrays =
        [("obs", numbers(2)), ("actions", numbers(2)), ("episode_ends", ends), ("front", images)];
    Tensor::write_npz(&arrays, lab.path("runs.npz")).unwrap();
    let recorded = [
        "data.name=trajectories",
        "data.file=runs.npz",
        "~data.episodes",
        "~data.image_size",
        "~expect",
        "data.val_ratio=0.5",
    ];
    check(
        &[&recorded[..], &["data.cameras=[\"top\"]"]].concat(),
        &["`data.cameras`", "has no images `top`; it has `front`"],
    );
    let page = lab.run_to(
        0,
        &[&["plan", "small.toml"], &recorded[..], &["data.cameras=[\"front\"]"]].concat(),
    );
    assert!(page.stdout.contains("with 24x24 images of front"), "{}", page.stdout);
}
