//! Diffusion policy against the original's network in PyTorch (f64, `golden/policy.py`) and the
//! schedulers of diffusers: counts, keys, noise, loss, gradients, 20 steps of AdamW with averaged
//! weights, DDIM and DDPM samples. Weights and inputs are functions of their names; the numbers are
//! in `golden/policy.json`.

use std::sync::Arc;

use crate::golden::{
    Collected, check_sum, fill, fill_params, filled, flat, model_plan, near, near_summary, number,
    with,
};
use crate::steps::{Gradients, Steps};
use candle_core::{Device, Tensor};
use ddprun::kinds::Kinds;
use ddprun::nn::{Builder, ForwardContext, Params};
use ddprun::ops::{self, GradientSink};
use ddprun::optim::AdamW;
use ddprun::plan::{EmaPlan, ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};
use ddprun::trajectories::policy::{DiffusionPolicy, DiffusionPolicyConfig, NoiseScheduler};
use serde_json::{Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/policy.json")).unwrap()
}

/// Numbers of an action, of the condition; channels; features of a step.
fn plan(actions: usize, condition: usize, dims: &[usize], features: usize) -> ModelPlan {
    let sizes = json!({ "down_dims": dims, "diffusion_step_embed_dim": features });
    let input = vec![2, condition / 2];
    with(model_plan("diffusion_policy", actions, &input, vec![16, actions]), &sizes)
}

fn small(change: impl FnOnce(&mut DiffusionPolicyConfig)) -> (DiffusionPolicy, Params) {
    let plan = plan(2, 10, &[64, 128, 256], 64);
    let options = serde_json::to_value(&plan.kind.options).unwrap();
    let mut config: DiffusionPolicyConfig = serde_json::from_value(options).unwrap();
    change(&mut config);
    let builder = Builder::new(1);
    let policy = DiffusionPolicy::new(&config, &plan, &builder).unwrap();
    let params = builder.finish();
    fill_params(&params);
    (policy, params)
}

fn values(name: &str, n: usize) -> Vec<f32> {
    fill(name, n).into_iter().map(|value| value as f32).collect()
}

fn tensor(name: &str, shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    Tensor::from_vec(values(name, n), shape, &Device::Cpu).unwrap()
}

/// Chunks of 16 actions with noise, what is noise in them, and the observations.
struct Question {
    noisy: Tensor,
    noise: Tensor,
    observed: Tensor,
    steps: Vec<usize>,
}

impl Question {
    fn new(policy: &DiffusionPolicy, names: [&str; 3], steps: Vec<usize>) -> Self {
        let shape = [steps.len(), 16, 2];
        let [clean, noise] = [names[0], names[1]].map(|name| values(name, 32 * steps.len()));
        let noised = |(i, &step): (usize, &usize)| {
            let chunk = 32 * i..32 * (i + 1);
            policy.diffusion().noised(&clean[chunk.clone()], &noise[chunk], step)
        };
        let noisy: Vec<f32> = steps.iter().enumerate().flat_map(noised).collect();
        Self {
            noisy: Tensor::from_vec(noisy, &shape, &Device::Cpu).unwrap(),
            noise: Tensor::from_vec(noise, &shape, &Device::Cpu).unwrap(),
            observed: tensor(names[2], &[steps.len(), 10]),
            steps,
        }
    }

    /// Prediction, loss and gradients.
    fn pass(&self, policy: &DiffusionPolicy, params: &Params) -> (Tensor, f64, Gradients) {
        let collected = Arc::new(Collected::default());
        let sink: Arc<dyn GradientSink> = collected.clone();
        params.begin_pass(Some(&sink));
        let pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
        let found = policy.predict_noise(&self.noisy, &self.steps, &self.observed, &pass).unwrap();
        let loss = ops::mse(&found, &self.noise).unwrap();
        loss.backward().unwrap();
        params.end_pass();
        (found.detach(), f64::from(loss.to_scalar::<f32>().unwrap()), collected.by_index())
    }
}

#[test]
fn noise_loss_and_every_gradient_equal_the_original() {
    let golden = &golden()["small"];
    let (policy, params) = small(|_| ());
    let names = ["input.sample", "input.noise", "input.cond"];
    let question = Question::new(&policy, names, vec![0, 50, 99]);
    near_summary("noisy", &question.noisy, &golden["noisy"]);
    let (found, loss, gradients) = question.pass(&policy, &params);
    near_summary("prediction", &found, &golden["output"]);
    near("loss", loss, number(golden, "mse_loss"), 1e-5);
    let expected = golden["grads"].as_object().unwrap();
    assert_eq!((gradients.len(), expected.len()), (148, 148));
    for (index, gradient) in gradients {
        let name = params.parameters()[index].name();
        let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let allowed = (1e-3 * number(&expected[name], "l2")).max(1e-6);
        near(name, l2, number(&expected[name], "l2"), allowed);
        near(name, check_sum(&gradient), number(&expected[name], "check"), allowed);
    }
}

#[test]
fn twenty_steps_equal_the_original() {
    let golden = &golden()["small"];
    let (policy, params) = small(|_| ());
    let adamw = AdamW { betas: [0.95, 0.999], ..AdamW::default() };
    let mut steps = Steps::new(&params, adamw, 1e-4, (1e-6, f64::INFINITY));
    steps.keep = |count| {
        let plan = EmaPlan { decay: 0.9999, power: Some(0.75), use_buffers: false };
        plan.decay_at(count)
    };
    for (param, state) in params.parameters().iter().zip(&mut steps.states) {
        state.average = param.var().unwrap().flatten_all().unwrap().to_vec1().unwrap();
    }
    let losses = golden["adamw_lr1e-4_b.95_losses_20"].as_array().unwrap();
    assert_eq!(losses.len(), 20);
    for (step, expected) in losses.iter().enumerate() {
        let name = |what| format!("step{step}.{what}");
        let [x, n, c] = [name("x"), name("n"), name("c")];
        let depths = fill(&name("t"), 4);
        let depths = depths.into_iter().map(|u| (f64::midpoint(u, 1.0) * 100.0) as usize).collect();
        let question = Question::new(&policy, [&x, &n, &c], depths);
        let (_, loss, gradients) = question.pass(&policy, &params);
        near(&format!("loss of step {step}"), loss, expected.as_f64().unwrap(), 1e-5);
        steps.step(&params, &gradients);
    }
    let last = params.parameters().iter().position(|p| p.name() == "final_conv.1.weight").unwrap();
    let average = &steps.states[last].average;
    let average = Tensor::new(average.as_slice(), &Device::Cpu).unwrap();
    near_summary("average", &average, &golden["ema_final_conv.1.weight_after20"]);
}

#[test]
fn samples_of_both_schedulers_equal_those_of_diffusers() {
    let golden = &golden()["small"];
    for (scheduler, count, key) in [
        (NoiseScheduler::Ddim, 10, "ddim10_from_init"),
        (NoiseScheduler::Ddpm, 100, "ddpm100_from_init"),
    ] {
        let (policy, _) = small(|sizes| {
            sizes.noise_scheduler = scheduler;
            sizes.num_inference_steps = Some(count);
        });
        let (observed, first) = (tensor("input.cond", &[3, 10]), values("sample.init", 96));
        let draw = |step| values(&format!("ddpm.noise{step}"), 96);
        let pass = ForwardContext::eval(Precision::Fp32);
        let actions = policy.denoise(&observed, first, draw, &pass).unwrap();
        near_summary(key, &actions, &golden[key]);
    }
}

/// So that a sample's question does not depend on the ranks that its batch is spread over.
#[test]
fn each_sample_has_its_own_draws_wherever_it_stands() {
    let mut plan = plan(2, 4, &[8, 16], 8);
    plan.kind.set("num_inference_steps", 2);
    let (model, _) = filled(&plan);
    let key = |sample| Key::new(1, Purpose::Draw, 0, sample);
    let (seen, chunks) = (tensor("seen", &[3, 2, 2]), tensor("chunks", &[3, 16, 2]));
    let pass = ForwardContext::eval(Precision::Fp32);
    let asked = |first, n| {
        let part = |t: &Tensor| t.narrow(0, first, n).unwrap().contiguous().unwrap();
        let draws: Vec<Key> = (first..first + n).map(|i| key(i as u64)).collect();
        let compared = model.compare(&part(&seen), &part(&chunks), &draws, &pass).unwrap();
        let answer = model.predict(&part(&seen), &draws, &pass).unwrap().unwrap();
        [compared.outputs, compared.targets, answer].map(|t| flat(&t))
    };
    let (all, one) = (asked(0, 3), asked(1, 1));
    for (all, one) in all.iter().zip(&one) {
        assert_eq!(all[32..64], *one);
        assert_ne!(all[..32], *one);
    }
}

#[test]
fn counts_and_keys_are_the_originals() {
    let golden = golden();
    let counts = &golden["param_counts"];
    let registry = Kinds::default().models;
    for (key, actions, condition, dims, features) in [
        ("droid_in10_cond1024", 10, 1024, &[256, 512, 1024][..], 256),
        ("pusht_lowdim_in2_cond40_official(down256-512-1024)", 2, 40, &[256, 512, 1024], 256),
        ("pusht_small_in2_cond10_down64-128-256", 2, 10, &[64, 128, 256], 64),
        ("pusht_state5_in2_cond10", 2, 10, &[256, 512, 1024], 256),
        ("pusht_in2_cond10_down32-64", 2, 10, &[32, 64], 32),
    ] {
        let facts = registry.describe(&plan(actions, condition, dims, features)).unwrap();
        assert_eq!(counts[key], facts.lengths().sum::<usize>(), "{key}");
    }
    let keys: Vec<(String, Vec<usize>)> =
        serde_json::from_value(golden["small_keys"].clone()).unwrap();
    let facts = registry.describe(&plan(2, 10, &[64, 128, 256], 64)).unwrap();
    assert_eq!(facts.parameters, keys);
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_the_key_to_change() {
    let refusal = |change: &dyn Fn(&mut ModelPlan)| {
        let mut plan = plan(2, 10, &[32, 64], 32);
        change(&mut plan);
        Kinds::default().models.describe(&plan).unwrap_err()
    };
    for (change, word) in [
        (&(|plan: &mut ModelPlan| plan.target = vec![15, 2]) as &dyn Fn(&mut ModelPlan), "horizon"),
        (&|plan| plan.target = vec![], "data.name"),
        (&|plan| plan.kind.set("n_groups", 5), "n_groups"),
        (&|plan| plan.kind.set("kernel_size", 4), "kernel_size"),
        (&|plan| plan.kind.set("down_dims", [32]), "down_dims"),
        (&|plan| plan.kind.set("num_inference_steps", 101), "num_inference_steps"),
        (&|plan| plan.kind.set("diffusion_step_embed_dim", 7), "diffusion_step_embed_dim"),
    ] {
        let refusal = refusal(change);
        assert!(refusal.contains(word), "{refusal}");
    }
}
