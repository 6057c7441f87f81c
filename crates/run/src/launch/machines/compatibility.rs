//! Compares the plans of two machines of one run. Pure.

use crate::plan::{DistributedPlan, Plan};

/// Returns the reason why the plan of another node does not fit that of node 0, if any.
pub(in crate::launch) fn objection(plan: &Plan, other: &serde_json::Value) -> Option<String> {
    let Ok(theirs) = serde_json::from_value::<Plan>(other.clone()) else {
        return Some("its plan cannot be read".to_owned());
    };
    if let Some(why) = device_objection(&plan.distributed, &theirs.distributed) {
        return Some(why);
    }
    if let Some(why) = bf16_objection(plan, &theirs) {
        return Some(why);
    }
    let ours = serde_json::to_value(adapted(plan, &theirs)).unwrap_or_default();
    difference("", &ours, other)
}

/// Devices that do not fit: GPUs on some machines and CPUs on others, other numbers of them, or
/// ranks that share a GPU on some machines only.
fn device_objection(ours: &DistributedPlan, theirs: &DistributedPlan) -> Option<String> {
    let kind = |plan: &DistributedPlan| if plan.is_on_gpus() { "on GPUs" } else { "on the CPU" };
    let (our_kind, their_kind) = (kind(ours), kind(theirs));
    if our_kind != their_kind {
        return Some(format!(
            "it computes {their_kind}, but node 0 {our_kind}; CUDA_VISIBLE_DEVICES= on all \
             machines hides all GPUs"
        ));
    }
    let (our_ranks, their_ranks) = (ours.local_world(), theirs.local_world());
    if our_ranks != their_ranks {
        return Some(format!(
            "its number of ranks is {their_ranks}, but node 0's is {our_ranks}: set it with \
             `--nproc-per-node`"
        ));
    }
    let shares = |plan: &DistributedPlan| {
        if plan.nccl_shares_a_gpu() { "share a GPU" } else { "have a GPU each" }
    };
    (shares(ours) != shares(theirs))
        .then(|| format!("its ranks {}, but those of node 0 {}", shares(theirs), shares(ours)))
}

/// Processors that multiply bf16 numbers in different ways: results would depend on who computes.
fn bf16_objection(ours: &Plan, theirs: &Plan) -> Option<String> {
    let way = |plan: &Plan| {
        plan.bf16_instructions.map_or("rounded fp32".to_owned(), |found| found.to_string())
    };
    let differ = ours.precision == theirs.precision && way(ours) != way(theirs);
    differ.then(|| {
        format!(
            "its processor multiplies bf16 by {}, node 0's by {}; `train.precision = \"fp32\"` is \
             the same on both",
            way(theirs),
            way(ours)
        )
    })
}

/// `plan` with what may differ between machines taken from `theirs`: which GPUs, threads, and
/// loader workers. None of it changes a bit of the results.
pub(in crate::launch) fn adapted(plan: &Plan, theirs: &Plan) -> Plan {
    let mut plan = plan.clone();
    if plan.distributed.is_on_gpus() && theirs.distributed.is_on_gpus() {
        plan.distributed.devices.clone_from(&theirs.distributed.devices);
    }
    plan.distributed.threads_per_rank = theirs.distributed.threads_per_rank;
    plan.data.num_workers = theirs.data.num_workers;
    plan.data.prefetch_factor = theirs.data.prefetch_factor;
    plan
}

/// The first key in which two plans differ, in words.
fn difference(at: &str, ours: &serde_json::Value, theirs: &serde_json::Value) -> Option<String> {
    use serde_json::Value::{Array, Object};
    let inside = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    match (ours, theirs) {
        (Object(a), Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            let null = serde_json::Value::Null;
            keys.into_iter().find_map(|key| {
                difference(&inside(key), a.get(key).unwrap_or(&null), b.get(key).unwrap_or(&null))
            })
        }
        (Array(a), Array(b)) if a.len() == b.len() => (0..)
            .zip(a.iter().zip(b))
            .find_map(|(n, (a, b)): (usize, _)| difference(&inside(&n.to_string()), a, b)),
        _ => (ours != theirs)
            .then(|| format!("in its plan `{at}` is {theirs}, but in that of node 0 it is {ours}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::plan::{BackendCapabilities, BackendPlan};
    use crate::units::WorldSize;

    fn distributed(devices: &[&str], nodes: u32) -> DistributedPlan {
        let world = WorldSize::new(devices.len() as u32 * nodes).unwrap();
        let devices: Vec<&&str> = devices.iter().cycle().take(world.count()).collect();
        let backend = BackendPlan::sharing("nccl", None);
        let capabilities = BackendCapabilities { sums_on_gpus: true, ..Default::default() };
        serde_json::from_value(json!({
            "world_size": world, "nodes": nodes, "devices": devices, "threads_per_rank": 1, "backend": backend, "capabilities": capabilities,
            "bucket_cap": 1, "first_bucket_cap": 1, "overlap": true, "find_unused_parameters": false,
            "timeout": Duration::from_secs(1),
        }))
        .unwrap()
    }

    #[test]
    fn machines_with_and_without_gpus_do_not_fit_and_each_uses_its_own_gpus() {
        let ours = distributed(&["cuda:0", "cuda:1"], 2);
        let told = |theirs: &[&str]| device_objection(&ours, &distributed(theirs, 2));
        assert_eq!(told(&["cuda:0", "cuda:1"]), None);
        assert_eq!(told(&["cuda:3", "cuda:2"]), None, "which GPUs it uses may differ");
        let cpus = told(&["cpu", "cpu"]).unwrap();
        assert!(cpus.starts_with("it computes on the CPU, but node 0 on GPUs"), "{cpus}");
        let fewer = told(&["cuda:0"]).unwrap();
        assert!(fewer.starts_with("its number of ranks is 1, but node 0's is 2"), "{fewer}");
        let shared = told(&["cuda:0", "cuda:0"]).unwrap();
        assert_eq!(shared, "its ranks share a GPU, but those of node 0 have a GPU each");
    }

    #[test]
    fn the_first_value_that_differs_is_named_with_its_key() {
        let ours = json!({ "name": "a", "optimizer": { "lr": 0.1, "betas": [0.9, 0.999] } });
        let told = |theirs: serde_json::Value| difference("", &ours, &theirs);
        assert_eq!(told(ours.clone()), None);
        assert_eq!(
            told(json!({ "name": "a", "optimizer": { "lr": 0.1, "betas": [0.9, 0.95] } })).unwrap(),
            "in its plan `optimizer.betas.1` is 0.95, but in that of node 0 it is 0.999"
        );
        assert_eq!(
            told(json!({ "name": "a", "optimizer": { "betas": [0.9, 0.999] } })).unwrap(),
            "in its plan `optimizer.lr` is null, but in that of node 0 it is 0.1"
        );
        let more =
            json!({ "name": "a", "optimizer": { "lr": 0.1, "betas": [0.9, 0.999] }, "x": 1 });
        assert_eq!(told(more).unwrap(), "in its plan `x` is 1, but in that of node 0 it is null");
    }
}
