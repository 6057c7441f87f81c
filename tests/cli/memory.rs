//! The memory that `ddprun plan` foretells is the memory that a rank needs.

use serde_json::Value;

use crate::harness::lab::Lab;

/// A run of three steps; each rank has one thread, so that its numbers do not depend on the
/// machine.
const SHORT: &str = r#"
[experiment]
name = "small"
[model]
name = "mlp"
[data]
name = "shapes"
classes = 4
train_per_class = 200
val_per_class = 4
num_workers = 0
[train]
steps = 3
[distributed]
devices = 1
threads_per_rank = 1
[optimizer]
lr = 0.01
momentum = 0.9
"#;

/// The plan of such a run, and what the run left.
pub(crate) fn planned_and_trained(changes: &[&str]) -> (Lab, Value) {
    let lab = Lab::with(SHORT);
    let run = |verb: &[&str]| lab.run_to(0, &[verb, &["small.toml"], changes].concat());
    let plan = serde_json::from_str(&run(&["plan", "--json"]).stdout).unwrap();
    run(&[]);
    (lab, plan)
}

pub(crate) fn mib(bytes: &Value) -> f64 {
    bytes.as_u64().unwrap() as f64 / f64::from(1 << 20)
}

/// What the plan foretells and what rank 0 had resident at most, in MiB.
fn foretold_and_measured(changes: &[&str]) -> (f64, f64) {
    let (lab, plan) = planned_and_trained(changes);
    let events = lab.events();
    let finished = events.iter().find(|event| event["event"] == "finished").unwrap();
    (mib(&plan["peak_memory"]), mib(&finished["peak_memory"]))
}

#[test]
fn the_plan_foretells_a_ranks_memory_to_a_fifth() {
    for changes in [
        &["model.name=mlp", "model.hidden=[512,512]", "train.batch_size=64"][..],
        &[
            "model.name=mlp",
            "model.hidden=[2048,2048]",
            "train.batch_size=256",
            "optimizer.name=adamw",
            "~optimizer.momentum",
        ],
        &["model.name=simple_cnn", "train.batch_size=32"],
        &["model.name=simple_cnn", "train.batch_size=128"],
        &["model.name=resnet8", "train.batch_size=32"],
        &["model.name=resnet8", "train.batch_size=128"],
        &["model.name=resnet8", "train.batch_size=128", "train.activation_checkpointing=true"],
        &["model.name=resnet8", "train.batch_size=64", "distributed.devices=2"],
        // So large that smaller ones are measured.
        &[
            "model.name=resnet8",
            "train.batch_size=2",
            "data.transforms.train=[{name='resize',size=[640,640]}]",
            "data.transforms.val=[{name='resize',size=[640,640]}]",
        ],
    ] {
        let (foretold, measured) = foretold_and_measured(changes);
        assert!(
            (foretold / measured - 1.0).abs() < 0.2,
            "{changes:?}: {foretold} and {measured} MiB"
        );
    }
}

#[test]
fn recomputed_activations_need_visibly_less_memory() {
    let with = |checkpointing| {
        let key = format!("train.activation_checkpointing={checkpointing}");
        foretold_and_measured(&["model.name=resnet20", "train.batch_size=128", &key])
    };
    let (kept, recomputed) = (with(false), with(true));
    assert!(recomputed.0 < 0.75 * kept.0, "{kept:?} and {recomputed:?} MiB foretold and measured");
    assert!(recomputed.1 < 0.75 * kept.1, "{kept:?} and {recomputed:?} MiB foretold and measured");
}
