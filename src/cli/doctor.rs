//! `ddprun doctor x.toml`: whether results are bitwise identical at several world sizes, or with
//! `--nnodes N` on several machines.

use std::time::Duration;

use serde_json::{Value, json};

use crate::checkpoint::Manifest;
use crate::cli::args::{DoctorArgs, Run};
use crate::cli::node_args::{self, role};
use crate::cli::{answer, answers};
use crate::doctor::{
    BUCKET_BYTES, Links, Machine, MachinesProgress, SMALL_BYTES, WorldSizesProgress,
    check_machines, check_world_sizes, slow_machines, speed,
};
use crate::kinds::Kinds;
use crate::launch::NodeConfig;
use crate::plan::Plan;
use crate::terminal::counted;
use crate::units::Bytes;
use crate::user_error::{ErrorPage, ExitCode};

/// Trains at each world size and compares the results. Exit 9 names the first parameter that
/// differs.
pub(crate) fn doctor(args: &DoctorArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let run = node_args::run_with_variables(&args.run, &role()?)?;
    if let Some(place) = node_args::place(&run.launch)? {
        return on_machines(&run, args.steps, &place, kinds);
    }
    let path = run.experiment.clone().unwrap_or_default();
    let mut report = |progress: WorldSizesProgress<'_>| match progress {
        WorldSizesProgress::Started { plan, steps } => print_start(plan, steps),
        WorldSizesProgress::Trained { world, manifest, time } => {
            let line = || {
                let ranks = counted(u64::from(world.get()), "rank");
                let hash = manifest.fingerprint();
                format!("{ranks:<9} {hash:.16}  {:.1} s\n", time.as_secs_f64())
            };
            answer("trained", || trained(world.get(), manifest, time), line).map(drop)
        }
    };
    let sizes = &args.world_sizes;
    check_world_sizes(&path, run.all_changes(), sizes, args.steps, kinds, &mut report)?;
    answer(
        "identical",
        || json!({ "world_sizes": args.world_sizes }),
        || "the same bits at every world size: parameters, optimizer and progress\n".to_owned(),
    )
}

fn print_start(plan: &Plan, steps: u64) -> Result<(), ErrorPage> {
    let Plan { name, batch, .. } = plan;
    let shards = batch.shards.get();
    let precision = format!("{:?}", plan.precision).to_lowercase();
    let object = || {
        json!({
            "experiment": name,
            "steps": steps,
            "global_batch_size": batch.global,
            "shards": shards,
            "precision": precision,
        })
    };
    let line = || {
        let (steps, global) = (counted(steps, "step"), batch.global);
        let shards = counted(u64::from(shards), "shard");
        format!("{steps} of {name}: global batch {global} in {shards}, {precision}\n")
    };
    answer("doctor", object, line).map(drop)
}

/// The ranks of a training, the hash of its weights, and its time in seconds.
fn trained(ranks: u32, manifest: &Manifest, time: Duration) -> Value {
    let hash = manifest.fingerprint();
    json!({ "ranks": ranks, "fingerprint": hash, "seconds": time.as_secs_f64() })
}

/// Node 0 prints the result. Exit 9 if a machine computes other bits, on all machines.
fn on_machines(
    run: &Run,
    steps: u64,
    place: &NodeConfig,
    kinds: &Kinds,
) -> Result<ExitCode, ErrorPage> {
    let path = run.experiment.clone().unwrap_or_default();
    let mut report = |progress: MachinesProgress<'_>| match progress {
        MachinesProgress::Measured { plan, links, machines } => {
            let text = || table(plan, links, machines) + &notes(links, machines);
            answers(|| objects(links, machines), text).map(drop)
        }
        MachinesProgress::Trained { plan, manifest, time } => {
            let (ranks, hash) = (plan.distributed.world_size.get(), manifest.fingerprint());
            let line = || format!("all together  {:.1} s  {hash:.16}\n", time.as_secs_f64());
            answer("trained", || trained(ranks, manifest, time), line).map(drop)
        }
    };
    let machines = check_machines(&path, &run.all_changes(), steps, place, kinds, &mut report)?;
    let Some(machines) = machines else { return Ok(ExitCode::Ok) };
    answer(
        "identical",
        || json!({ "machines": machines }),
        || {
            "the same bits on each machine alone and on all together: parameters, optimizer and \
         progress\n"
                .to_owned()
        },
    )
}

/// An object for each machine.
fn objects(links: &Links, machines: &[Machine]) -> Vec<(&'static str, Value)> {
    let machine = |(node, (machine, rate)): (usize, (&Machine, &f64))| {
        let alone = machine.alone.as_ref().ok();
        let object = json!({
            "node": node,
            "host": machine.host,
            "cpu": machine.cpu,
            "cores": machine.cores,
            "bytes_per_second": rate,
            "seconds": alone.map(|alone| alone.seconds),
            "fingerprint": alone.map(|alone| alone.manifest.fingerprint()),
        });
        ("machine", object)
    };
    machines.iter().zip(&links.into).enumerate().map(machine).collect()
}

/// A line for each machine.
fn table(plan: &Plan, links: &Links, machines: &[Machine]) -> String {
    let ranks = counted(u64::from(plan.distributed.local_world().get()), "rank");
    let precision = format!("{:?}", plan.precision).to_lowercase();
    let (small, bucket) = (links.small.as_secs_f64() * 1e3, links.bucket.as_secs_f64() * 1e3);
    let mut text = format!(
        "{} of {ranks} each: {} of {}, global batch {} in {}, {precision}\n\
         all-reduce between machines: {small:.2} ms for {}, {bucket:.0} ms for {}\n",
        counted(machines.len() as u64, "machine"),
        counted(plan.length.total_steps, "step"),
        plan.name,
        plan.batch.global,
        counted(u64::from(plan.batch.shards.get()), "shard"),
        Bytes(SMALL_BYTES as u64),
        Bytes(BUCKET_BYTES as u64),
    );
    for (node, (machine, rate)) in machines.iter().zip(&links.into).enumerate() {
        let Machine { host, cores, alone, .. } = machine;
        let trained = match alone {
            Ok(alone) => {
                format!("{:.1} s alone, {:.16}", alone.seconds, alone.manifest.fingerprint())
            }
            Err(_) => "failed".to_owned(),
        };
        let cores = counted(*cores as u64, "core");
        text += &format!("node {node}  {host}, {cores}, receives {}  {trained}\n", speed(*rate));
    }
    text
}

/// Notes on machines that are slow, or have another processor.
fn notes(links: &Links, machines: &[Machine]) -> String {
    let mut text = String::new();
    let name = |node: usize| format!("node {node} ({})", machines[node].host);
    if let Some((node, how)) = links.slow() {
        text += &format!("note: {} {how}\n", name(node));
    }
    for (node, own, fastest) in slow_machines(machines) {
        let name = name(node);
        text +=
            &format!("note: {name} computes slowly: {own:.1} s, but the fastest {fastest:.1} s\n");
    }
    let cpu = |machine: &Machine| machine.cpu.clone().unwrap_or_else(|| "unknown".to_owned());
    if let Some(node) = machines.iter().position(|machine| machine.cpu != machines[0].cpu) {
        let (own, first) = (cpu(&machines[node]), cpu(&machines[0]));
        let name = name(node);
        text += &format!("note: {name} has another processor, {own}, than node 0, {first}\n");
    }
    text
}
