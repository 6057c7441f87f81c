//! `ddprun doctor x.toml --nnodes N ...`, on each of several machines: whether they meet, how fast
//! they exchange gradients, and whether a few steps of the experiment give the same bits on each
//! machine alone and on all together.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::checkpoint::Manifest;
use crate::cli::args::Run;
use crate::cli::doctor_links::{BUCKET_BYTES, Links, SMALL_BYTES, speed};
use crate::cli::doctor_training::{
    ScratchFolder, refuse_torch_order, shortened, train, train_together, trained,
};
use crate::cli::{answer, answers};
use crate::collective::{self, Collective};
use crate::config;
use crate::kinds::Kinds;
use crate::launch::{self, NodeConfig, PreparedRun, Role};
use crate::plan::{Plan, admitted_worlds};
use crate::record::{Environment, to_stderr};
use crate::session::{self, ALONE, Prepared, apart, generate, prepare, vocabulary};
use crate::terminal::counted;
use crate::units::Bytes;
use crate::user_error::{ErrorPage, ExitCode};

/// A machine is named as slow if it takes so many times as long as the fastest, and a second more.
const SLOW_FACTOR: f64 = 1.5;
const SLOW_SECONDS: f64 = 1.0;

/// What a machine tells all others of itself.
#[derive(Serialize, Deserialize)]
struct Machine {
    host: String,
    cpu: Option<String>,
    cores: usize,
    /// What it trained alone, or why it could not.
    alone: Result<Alone, String>,
}

#[derive(Serialize, Deserialize)]
struct Alone {
    manifest: Manifest,
    seconds: f64,
}

/// Node 0 prints the result. Exit 9 if a machine computes other bits, on all machines.
pub(crate) fn doctor(
    run: &Run,
    steps: u64,
    place: &NodeConfig,
    kinds: &Kinds,
) -> Result<ExitCode, ErrorPage> {
    let path = run.experiment.clone().unwrap_or_default();
    let prepared = prepare(&path, &run.all_changes(), (&Role::Parent, place.nodes), kinds)?;
    refuse_torch_order(&prepared.plan)?;
    let alone = alone(&prepared, steps, kinds)?;
    generate(&prepared)?;
    let plan = shortened(prepared.plan.clone(), steps);
    let mut room = ScratchFolder::make(&plan, place.node)?;
    let folders = room.folders("together")?;
    let make = |_: Option<&str>| {
        Ok(PreparedRun { plan: plan.clone(), folders: folders.clone(), resume: false })
    };
    let met = launch::join_nodes(place, &plan, &[], make, &mut |line| to_stderr(line));
    let (_, mut nodes) = met.map_err(apart)?;
    let group = nodes.group_of_first_ranks().map_err(|error| lost(&error))?;
    let links = Links::measure(&*group).map_err(|error| lost(&error))?;
    let own = Machine::measure(&alone, &mut room);
    let machines = exchange(&*group, &own).map_err(|error| lost(&error))?;
    drop(group);
    if place.node == 0 {
        answers(
            || objects(&links, &machines),
            || table(&plan, &links, &machines) + &notes(&links, &machines),
        )?;
    }
    own.alone.map_err(|block| ErrorPage::new(ExitCode::Peer, block))?;
    same(&machines)?;
    launch::join_nodes_again(&mut nodes).map_err(|error| lost(&error))?;
    let (manifest, time) = train_together(&plan, &mut nodes, &mut room)?;
    let Some(manifest) = manifest else { return Ok(ExitCode::Ok) };
    let hash = manifest.fingerprint();
    let ranks = plan.distributed.world_size.get();
    answer(
        "trained",
        || trained(ranks, &manifest, time),
        || format!("all together  {:.1} s  {hash:.16}\n", time.as_secs_f64()),
    )?;
    same_together(&manifest, &machines)?;
    answer(
        "identical",
        || json!({ "machines": machines.len() }),
        || {
            "the same bits on each machine alone and on all together: parameters, optimizer and \
         progress\n"
                .to_owned()
        },
    )
}

/// What was measured, an object for each machine.
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

/// The same training on this machine alone: with as many ranks as among the others, if the shards
/// admit it.
fn alone(prepared: &Prepared, steps: u64, kinds: &Kinds) -> Result<Plan, ErrorPage> {
    let experiment = prepared.plan.pin(prepared.loaded.experiment.clone());
    let text = session::written(&experiment)?;
    let ranks = prepared.plan.distributed.local_world().get();
    let admitted = admitted_worlds(prepared.plan.batch.shards.get());
    let ranks = admitted.into_iter().find(|world| *world >= ranks).unwrap_or(ranks);
    let changes = [
        format!("distributed.devices={ranks}"),
        "distributed.backend=auto".to_owned(),
        "distributed.min_world_size=auto".to_owned(),
    ];
    let loaded = config::load_text(&prepared.loaded.path, &text, &changes, &vocabulary(kinds));
    let alone = Prepared::of(loaded?, ALONE, None, kinds)?;
    Ok(shortened(alone.plan, steps))
}

impl Machine {
    /// Looks at this machine, and trains on it alone.
    fn measure(plan: &Plan, room: &mut ScratchFolder) -> Self {
        let Environment { host, cpu, cores, .. } = Environment::measure();
        let alone = train(plan, room).map_err(|refusal| refusal.to_string());
        let alone = alone.map(|(manifest, time)| Alone { manifest, seconds: time.as_secs_f64() });
        Self { host, cpu, cores, alone }
    }
}

/// What all machines tell of themselves, in their order.
fn exchange(group: &dyn Collective, own: &Machine) -> Result<Vec<Machine>, collective::Error> {
    let damaged = |error: serde_json::Error| collective::Error::Connections {
        what: format!("what a machine tells of itself cannot be read: {error}"),
    };
    let bytes = serde_json::to_vec(own).map_err(damaged)?;
    let all = group.all_gather(&bytes)?;
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(damaged)).collect()
}

/// What was measured, a line for each machine.
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
            Ok(Alone { manifest, seconds }) => {
                format!("{seconds:.1} s alone, {:.16}", manifest.fingerprint())
            }
            Err(_) => "failed".to_owned(),
        };
        let cores = counted(*cores as u64, "core");
        text += &format!("node {node}  {host}, {cores}, receives {}  {trained}\n", speed(*rate));
    }
    text
}

/// Which machine is slow, or is another kind of machine, in words.
fn notes(links: &Links, machines: &[Machine]) -> String {
    let mut text = String::new();
    let name = |node: usize| format!("node {node} ({})", machines[node].host);
    if let Some((node, how)) = links.slow() {
        text += &format!("note: {} {how}\n", name(node));
    }
    let seconds = |machine: &Machine| machine.alone.as_ref().ok().map(|alone| alone.seconds);
    let fastest = machines.iter().filter_map(seconds).fold(f64::INFINITY, f64::min);
    for (node, own) in machines.iter().map(seconds).enumerate() {
        if let Some(own) = own.filter(|own| is_slow(*own, fastest)) {
            let name = name(node);
            text += &format!(
                "note: {name} computes slowly: {own:.1} s, but the fastest {fastest:.1} s\n"
            );
        }
    }
    let cpu = |machine: &Machine| machine.cpu.clone().unwrap_or_else(|| "unknown".to_owned());
    if let Some(node) = machines.iter().position(|machine| machine.cpu != machines[0].cpu) {
        let (own, first) = (cpu(&machines[node]), cpu(&machines[0]));
        let name = name(node);
        text += &format!("note: {name} has another processor, {own}, than node 0, {first}\n");
    }
    text
}

fn is_slow(seconds: f64, fastest: f64) -> bool {
    seconds > fastest * SLOW_FACTOR && seconds > fastest + SLOW_SECONDS
}

/// Refuses machines whose results differ bitwise, or that have none. What most have is right.
fn same(machines: &[Machine]) -> Result<(), ErrorPage> {
    let name = |node: usize| format!("node {node} ({})", machines[node].host);
    if let Some(node) = machines.iter().position(|machine| machine.alone.is_err()) {
        let page = format!(
            "error: {} could not train alone\n  do: read the output of ddprun on that machine",
            name(node)
        );
        return Err(ErrorPage::new(ExitCode::Peer, page));
    }
    let all: Vec<&Manifest> = machines
        .iter()
        .filter_map(|machine| Some(&machine.alone.as_ref().ok()?.manifest))
        .collect();
    let like = |one: &Manifest| {
        all.iter().filter(|other| other.fingerprint() == one.fingerprint()).count()
    };
    let Some(usual) = (0..all.len()).rev().max_by_key(|&node| like(all[node])) else {
        return Ok(());
    };
    let other =
        (0..all.len()).find_map(|node| Some((node, all[usual].first_difference(all[node])?)));
    let Some((node, difference)) = other else { return Ok(()) };
    let page = format!(
        "error: {} and {} differ bitwise when each trains alone, first in {difference}\n  why: their \
         processors, libraries or data differ, or one of them computes wrongly\n  do: compare \
         `data` on both; train on machines of one kind; {} is the one to suspect if there are more \
         than two",
        name(node),
        name(usual),
        name(node),
    );
    Err(ErrorPage::new(ExitCode::Expectation, page))
}

/// Refuses a training on all machines whose result is not that of each alone.
fn same_together(together: &Manifest, machines: &[Machine]) -> Result<(), ErrorPage> {
    let alone = machines.iter().find_map(|machine| machine.alone.as_ref().ok());
    let difference = alone.and_then(|alone| together.first_difference(&alone.manifest));
    let Some(difference) = difference else { return Ok(()) };
    let page = format!(
        "error: all machines together and each alone differ bitwise, first in {difference}\n  why: an \
         operation of the model adds in an order, or draws numbers, that depend on the rank\n  do: \
         compare world sizes on one machine with `ddprun doctor`"
    );
    Err(ErrorPage::new(ExitCode::Expectation, page))
}

fn lost(error: &(dyn std::error::Error + 'static)) -> ErrorPage {
    let help =
        "make sure that ddprun still runs on all machines, and that they can reach each other";
    ErrorPage::of(ExitCode::Peer, error).help(help)
}
