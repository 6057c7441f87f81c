//! Connects several machines, measures how fast they exchange gradients, and compares the results
//! of a few steps of the experiment on each machine alone and on all together.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Manifest;
use crate::collective::{self, Collective};
use crate::config;
use crate::doctor::links::Links;
use crate::doctor::short_run::{
    ScratchFolder, refuse_torch_order, shortened, train, train_together,
};
use crate::kinds::Kinds;
use crate::launch::{self, NodeConfig, PreparedRun, Role};
use crate::plan::{Plan, admitted_worlds};
use crate::record::{Environment, to_stderr};
use crate::session::{
    self, LaunchOrigin, Prepared, SINGLE_NODE, generate, prepare, rendezvous_page,
};
use crate::user_error::{ErrorPage, ExitCode};

/// A machine is named as slow if it takes so many times as long as the fastest, and a second more.
const SLOW_FACTOR: f64 = 1.5;
const SLOW_SECONDS: f64 = 1.0;

/// A machine as it describes itself to the others.
#[derive(Serialize, Deserialize)]
pub struct Machine {
    pub host: String,
    pub cpu: Option<String>,
    pub cores: usize,
    /// Training on this machine alone, or why it failed.
    pub alone: Result<TrainedAlone, String>,
}

/// A short training on one machine.
#[derive(Serialize, Deserialize)]
pub struct TrainedAlone {
    pub manifest: Manifest,
    pub seconds: f64,
}

/// Results of [`check_machines`] as they come, on node 0.
pub enum MachinesProgress<'a> {
    /// The machines have met, measured their links and trained alone.
    Measured { plan: &'a Plan, links: &'a Links, machines: &'a [Machine] },
    /// All machines have trained together.
    Trained { plan: &'a Plan, manifest: &'a Manifest, time: Duration },
}

/// Compares the first `steps` of the experiment at `path` with `changes` on each machine alone with
/// those on all together. Returns the number of machines on node 0, and nothing on the others.
///
/// # Errors
///
/// A machine is lost, or computes other bits: on all machines.
pub fn check_machines(
    path: &Path,
    changes: &[String],
    steps: u64,
    place: &NodeConfig,
    kinds: &Kinds,
    report: &mut dyn FnMut(MachinesProgress<'_>) -> Result<(), ErrorPage>,
) -> Result<Option<usize>, ErrorPage> {
    let prepared =
        prepare(path, changes, LaunchOrigin { role: &Role::Parent, nodes: place.nodes }, kinds)?;
    refuse_torch_order(&prepared.plan)?;
    let alone = plan_alone(&prepared, steps, kinds)?;
    generate(&prepared)?;
    let plan = shortened(prepared.plan.clone(), steps);
    let mut scratch = ScratchFolder::make(&plan, place.node)?;
    let folders = scratch.folders("together")?;
    let make = |_: Option<&str>| {
        Ok(PreparedRun { plan: plan.clone(), folders: folders.clone(), resume: false })
    };
    let met = launch::join_nodes(place, &plan, &[], make, &mut |line| to_stderr(line));
    let (_, mut nodes) = met.map_err(rendezvous_page)?;
    let group = nodes.group_of_first_ranks().map_err(|error| lost(&error))?;
    let links = Links::measure(&*group).map_err(|error| lost(&error))?;
    let own = Machine::measure(&alone, &mut scratch);
    let machines = exchange(&*group, &own).map_err(|error| lost(&error))?;
    drop(group);
    if place.node == 0 {
        report(MachinesProgress::Measured { plan: &plan, links: &links, machines: &machines })?;
    }
    own.alone.map_err(|block| ErrorPage::new(ExitCode::Peer, block))?;
    refuse_different_machines(&machines)?;
    launch::join_nodes_again(&mut nodes).map_err(|error| lost(&error))?;
    let (manifest, time) = train_together(&plan, &mut nodes, &mut scratch)?;
    let Some(manifest) = manifest else { return Ok(None) };
    report(MachinesProgress::Trained { plan: &plan, manifest: &manifest, time })?;
    refuse_different_together(&manifest, &machines)?;
    Ok(Some(machines.len()))
}

/// The plan of the same training on this machine alone: with as many ranks as among the others, if
/// the shards admit it.
fn plan_alone(prepared: &Prepared, steps: u64, kinds: &Kinds) -> Result<Plan, ErrorPage> {
    let experiment = prepared.plan.pin(prepared.loaded.experiment.clone());
    let text = session::to_toml(&experiment)?;
    let ranks = prepared.plan.distributed.local_world().get();
    let admitted = admitted_worlds(prepared.plan.batch.shards.get());
    let ranks = admitted.into_iter().find(|world| *world >= ranks).unwrap_or(ranks);
    let changes = [
        format!("distributed.devices={ranks}"),
        "distributed.backend=auto".to_owned(),
        "distributed.min_world_size=auto".to_owned(),
    ];
    let loaded = config::load_text(&prepared.loaded.path, &text, &changes, &kinds.vocabulary());
    let alone = Prepared::of(loaded?, SINGLE_NODE, None, kinds)?;
    Ok(shortened(alone.plan, steps))
}

impl Machine {
    /// Describes this machine, and trains on it alone.
    fn measure(plan: &Plan, scratch: &mut ScratchFolder) -> Self {
        let Environment { host, cpu, cores, .. } = Environment::measure();
        let alone = train(plan, scratch).map_err(|refusal| refusal.to_string());
        let alone =
            alone.map(|(manifest, time)| TrainedAlone { manifest, seconds: time.as_secs_f64() });
        Self { host, cpu, cores, alone }
    }
}

/// Gathers the descriptions of all machines, in their order.
fn exchange(group: &dyn Collective, own: &Machine) -> Result<Vec<Machine>, collective::Error> {
    let damaged = |error: serde_json::Error| collective::Error::Connections {
        what: format!("what a machine tells of itself cannot be read: {error}"),
    };
    let bytes = serde_json::to_vec(own).map_err(damaged)?;
    let all = group.all_gather(&bytes)?;
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(damaged)).collect()
}

/// Node, seconds and the fastest machine's seconds of each machine that computes slowly.
pub fn slow_machines(machines: &[Machine]) -> impl Iterator<Item = (usize, f64, f64)> {
    let seconds = |machine: &Machine| machine.alone.as_ref().ok().map(|alone| alone.seconds);
    let fastest = machines.iter().filter_map(seconds).fold(f64::INFINITY, f64::min);
    machines.iter().enumerate().filter_map(move |(node, machine)| {
        let own = seconds(machine).filter(|own| is_slow(*own, fastest))?;
        Some((node, own, fastest))
    })
}

fn is_slow(seconds: f64, fastest: f64) -> bool {
    seconds > fastest * SLOW_FACTOR && seconds > fastest + SLOW_SECONDS
}

/// Refuses machines whose results differ bitwise, or that have none. The majority is right.
fn refuse_different_machines(machines: &[Machine]) -> Result<(), ErrorPage> {
    let name = |node: usize| format!("node {node} ({})", machines[node].host);
    if let Some(node) = machines.iter().position(|machine| machine.alone.is_err()) {
        let page = format!("error: {} could not train alone", name(node));
        let help = "read the output of ddprun on that machine";
        return Err(ErrorPage::new(ExitCode::Peer, page).help(help));
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
         processors, libraries or data differ, or one of them computes wrongly",
        name(node),
        name(usual),
    );
    let help = format!(
        "compare `data` on both; train on machines of one kind; {} is the one to suspect if there \
         are more than two",
        name(node),
    );
    Err(ErrorPage::new(ExitCode::Expectation, page).help(help))
}

/// Refuses a training on all machines whose result differs from that of each alone.
fn refuse_different_together(together: &Manifest, machines: &[Machine]) -> Result<(), ErrorPage> {
    let alone = machines.iter().find_map(|machine| machine.alone.as_ref().ok());
    let difference = alone.and_then(|alone| together.first_difference(&alone.manifest));
    let Some(difference) = difference else { return Ok(()) };
    let page = format!(
        "error: all machines together and each alone differ bitwise, first in {difference}\n  why: an \
         operation of the model adds in an order, or draws numbers, that depend on the rank"
    );
    let help = "compare world sizes on one machine with `ddprun doctor`";
    Err(ErrorPage::new(ExitCode::Expectation, page).help(help))
}

fn lost(error: &(dyn std::error::Error + 'static)) -> ErrorPage {
    let help =
        "make sure that ddprun still runs on all machines, and that they can reach each other";
    ErrorPage::of(ExitCode::Peer, error).help(help)
}
