//! Groups of parameters: rates of their own, and freezing for a part of a run.

use std::path::Path;
use std::sync::Arc;

use ddprun::config::kind::Kind;
use ddprun::engine::Engine;
use ddprun::internals::checkpoint::{self, Snapshot};
use ddprun::kinds::Kinds;
use ddprun::model::Models;
use ddprun::optim::{self, Adafactor, Lamb, Muon, Optimizer};
use ddprun::plan::{EmaPlan, OptimizerPlan, ParameterGroup, Plan};
use ddprun::units::Rank;

use crate::sequences::{
    forecast_plan, gpt_plan, llama_plan, lora_plan, policy_plan, seeing_policy_plan, speech_plan,
};
use crate::support::{self, engine, fingerprint, group, on_ranks, plan, step};
use crate::{IMAGE, check_same_bits, train};

/// Time of a group: of the steps from one on, and up to another.
type Time = (u64, Option<u64>);
const ALWAYS: Time = (0, None);
const NEVER: Time = (0, Some(0));

/// Puts every parameter into the first group of which the beginning of its name is that of the
/// parameter.
fn grouped(plan: &mut Plan, groups: &[(&str, f64, Time)]) {
    let facts = Models::default().describe(&plan.model).unwrap();
    let of = |name: &String| groups.iter().position(|(start, ..)| name.starts_with(start));
    plan.optimizer.group_of = facts.parameters.iter().map(|(name, _)| of(name).unwrap()).collect();
    let group = |&(name, lr_factor, (unfreezes_at, freezes_at)): &(&str, f64, _)| ParameterGroup {
        name: name.to_owned(),
        lr_factor,
        weight_decay: 0.01,
        unfreezes_at,
        freezes_at,
        is_matrix: false,
        n_state: 0,
        n_tensors: 0,
        n_parameters: 0,
    };
    plan.optimizer.groups = groups.iter().map(group).collect();
}

/// A residual network of which a part is never trained, parts from the second and third step on,
/// and one for five steps.
fn in_phases(plan: &mut Plan) {
    let late = (3, None);
    let groups = [
        ("conv1", 1.0, NEVER),
        ("bn1", 1.0, (2, None)),
        ("layer1", 0.5, late),
        ("layer2", 1.0, (0, Some(5))),
        ("", 2.0, ALWAYS),
    ];
    grouped(plan, &groups);
    plan.ema = Some(EmaPlan { decay: 0.5, power: None, use_buffers: true });
}

#[test]
fn freezing_and_unfreezing_give_the_same_bits_at_any_world_size() {
    check_same_bits("resnet8", &IMAGE, in_phases);
    check_same_bits("resnet8", &IMAGE, |plan| {
        in_phases(plan);
        plan.activation_checkpointing = true;
    });
}

/// The plan under `rule`, its matrices apart from all else.
fn ruled<K: Kind + Optimizer>(plan: &mut Plan, rule: &K) {
    grouped(plan, &[("", 1.0, ALWAYS)]);
    let facts = Models::default().describe(&plan.model).unwrap();
    let other = plan.optimizer.groups[0].clone();
    plan.optimizer = OptimizerPlan {
        groups: vec![other.clone(), ParameterGroup { is_matrix: true, ..other }],
        group_of: facts.parameters.iter().map(|(_, shape)| usize::from(shape.len() == 2)).collect(),
        ..optim::plan(rule, 0.02)
    };
}

#[test]
fn rules_over_whole_tensors_give_the_same_bits_at_any_world_size() {
    check_same_bits("mlp", &[10], |plan| ruled(plan, &Muon::default()));
    check_same_bits("mlp", &[10], |plan| ruled(plan, &Lamb::default()));
    check_same_bits("mlp", &[10], |plan| {
        ruled(plan, &Adafactor::default());
        plan.ema = Some(EmaPlan { decay: 0.5, power: None, use_buffers: false });
    });
}

#[test]
fn state_of_rows_and_columns_is_saved_under_pytorchs_names_and_shapes() {
    let mut plan = plan("mlp", &[10], 1);
    ruled(&mut plan, &Adafactor::default());
    check_resumes(&plan, &[3]);
    let folder = tempfile::tempdir().unwrap();
    let mut engine = engine(&plan, group(&plan).remove(0));
    step(&mut engine, &plan, Rank(0)).unwrap();
    save(&engine, &plan, folder.path());
    let opened = checkpoint::newest(folder.path()).unwrap();
    let tensors = checkpoint::tensors(&opened, "optimizer.safetensors").unwrap();
    let shape = |name: &str| {
        let found = tensors.iter().find(|tensor| tensor.name.starts_with(name));
        found.unwrap_or_else(|| panic!("{name}")).shape.clone()
    };
    let first = engine.params().parameters()[0].shape().to_vec();
    assert_eq!(shape("row_var."), [first[0], 1]);
    assert_eq!(shape("col_var."), [1, first[1]]);
    assert_eq!(shape("variance.").len(), 1);
}

#[test]
fn transformers_and_policies_train_with_a_part_of_them_frozen() {
    type OfWorld = fn(u32) -> Plan;
    let plans: [(&str, OfWorld); 9] = [
        ("gpt", gpt_plan),
        ("llama", llama_plan),
        ("lora", lora_plan),
        ("policy", policy_plan),
        ("seeing policy", seeing_policy_plan),
        ("patchtst", |world| forecast_plan("patchtst", world)),
        ("timebridge", |world| forecast_plan("timebridge", world)),
        ("nest", |world| speech_plan("nest", world)),
        ("fastconformer", |world| speech_plan("fastconformer", world)),
    ];
    for (name, make) in plans {
        let facts = Kinds::default().models.describe(&make(1).model).unwrap();
        let n = facts.parameters.len();
        let halves: [fn(usize, usize) -> bool; 3] =
            [|i, n| i < n / 2, |i, n| i >= n / 2 && i + 1 < n, |i, _| i % 2 == 0];
        for is_frozen in halves {
            let frozen = |world| {
                let mut plan = make(world);
                grouped(&mut plan, &[("", 1.0, ALWAYS), ("", 1.0, NEVER)]);
                plan.optimizer.group_of = (0..n).map(|i| usize::from(is_frozen(i, n))).collect();
                // The published one has a norm that it never uses.
                plan.distributed.find_unused_parameters = name == "timebridge";
                plan
            };
            assert_eq!(train(&frozen(2)), train(&frozen(1)), "{name}");
        }
    }
}

/// Values of all parameters whose name begins so.
fn values(engine: &Engine, start: &str) -> Vec<Vec<f32>> {
    let params =
        engine.params().parameters().iter().filter(|param| param.name().starts_with(start));
    params.map(|param| param.var().unwrap().flatten_all().unwrap().to_vec1().unwrap()).collect()
}

#[test]
fn what_is_frozen_stays_without_state_until_it_is_trained() {
    let mut plan = plan("resnet8", &IMAGE, 2);
    in_phases(&mut plan);
    on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        let mut before = ["conv1", "layer1", "layer2", "layer3"].map(|name| values(&engine, name));
        for done in 0..8 {
            step(&mut engine, &plan, rank).unwrap();
            let after = ["conv1", "layer1", "layer2", "layer3"].map(|name| values(&engine, name));
            let moved: Vec<bool> = before.iter().zip(&after).map(|(a, b)| a != b).collect();
            assert_eq!(moved, [false, done >= 3, done < 5, true], "step {}", done + 1);
            before = after;
            for (index, state) in
                engine.optimizer_state().iter().enumerate().take(plan.model.n_tensors)
            {
                let is_trained = plan.optimizer.is_trained(index, done + 1);
                assert_eq!(state.tensors.is_empty(), !is_trained, "{index} after {}", done + 1);
            }
        }
        // The average of what moves no more comes to rest at it.
        let names = engine.params().parameters().iter().map(ddprun::nn::Param::name);
        let first = names.clone().position(|name| name.starts_with("layer2")).unwrap();
        let near = engine.optimizer_state()[first].average.iter().zip(&before[2][0]);
        assert!(near.clone().all(|(average, value)| (average - value).abs() < 0.02));
        assert_eq!(engine.state().missed["layer1.0.conv1.weight"], 3);
        assert!(!engine.state().missed.contains_key("layer2.0.conv1.weight"));
    });
}

#[test]
fn a_frozen_part_leaves_the_gradients_of_the_others_as_they_are() {
    let first = |change: fn(&mut Plan)| {
        let mut plan = plan("resnet8", &IMAGE, 1);
        // The norm is that of fewer gradients.
        plan.clip.norm = None;
        grouped(&mut plan, &[("", 1.0, ALWAYS)]);
        change(&mut plan);
        let mut engine = engine(&plan, group(&plan).remove(0));
        step(&mut engine, &plan, Rank(0)).unwrap();
        values(&engine, "layer3")
    };
    let frozen = first(|plan| {
        grouped(plan, &[("layer2", 1.0, NEVER), ("conv1", 1.0, NEVER), ("", 1.0, ALWAYS)]);
    });
    assert!(frozen == first(|_| ()));
}

#[test]
fn a_resume_before_at_and_after_the_step_of_a_change_is_exact() {
    let mut plan = plan("resnet8", &IMAGE, 1);
    in_phases(&mut plan);
    check_resumes(&plan, &[2, 3, 4, 5, 6]);
}

fn save(engine: &Engine, plan: &Plan, folder: &Path) {
    let (params, optimizer_state, state) =
        (engine.params(), engine.optimizer_state(), engine.state());
    checkpoint::save(folder, &Snapshot { plan, params, optimizer_state, state }).unwrap();
}

/// A run of 8 steps that is resumed after each of `stops` ends as one that is not.
fn check_resumes(plan: &Plan, stops: &[usize]) {
    let train = |mut engine: Engine| {
        while engine.state().step < 8 {
            step(&mut engine, plan, Rank(0)).unwrap();
        }
        fingerprint(&engine)
    };
    let undisturbed = train(engine(plan, group(plan).remove(0)));
    for &stop in stops {
        let folder = tempfile::tempdir().unwrap();
        let mut first = engine(plan, group(plan).remove(0));
        for _ in 0..stop {
            step(&mut first, plan, Rank(0)).unwrap();
        }
        save(&first, plan, folder.path());
        let (model, params) = Models::default().instantiate(&plan.model, 999).unwrap();
        let restored = checkpoint::restore_newest(folder.path(), plan, &params).unwrap().unwrap();
        let restored = Some((restored.state, restored.optimizer_state));
        let components = support::components(plan, (model, params));
        let collective = group(plan).remove(0);
        let engine = Engine::new(Arc::new(plan.clone()), components, collective, restored).unwrap();
        assert_eq!(train(engine), undisturbed, "resumed after step {stop}");
    }
}
