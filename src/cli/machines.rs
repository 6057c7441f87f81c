//! Several machines: the flags -> this machine's place among them, and its part of the run (docs/machines.md).

use std::path::Path;

use crate::cli::args::Launch;
use crate::cli::prepare::{OwnedRun, join_run};
use crate::cli::train::{Asked, supervise, take_part};
use crate::cli::{Refusal, to_stderr, to_stdout};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::rank_env::Foreign;
use crate::launch::{self, NodeConfig, NodeRendezvousError, PreparedRun};
use crate::plan::RunFolders;
use crate::transport::{self, Key};
use crate::units::Rank;
use crate::worker::exit;

/// Port of node 0, as torchrun has it.
const PORT: u16 = 29_500;

/// This machine's place, if the flags speak of several.
pub(crate) fn place(launch: &Launch) -> Result<Option<NodeConfig>, Refusal> {
    let (nodes, flags) = (launch.nnodes, &launch.rendezvous);
    if nodes == 1 {
        return Ok(None);
    }
    let refuse = |what: &str, help: &str| {
        let page = format!("error: `--nnodes {nodes}` {what}\n  do: {help}");
        Err(Refusal::new(exit::REFUSED, page))
    };
    let node = match flags.node_rank {
        Some(node) if node < nodes => node,
        Some(node) => {
            let what = format!("has no node {node}");
            return refuse(&what, "number the machines from 0 with `--node-rank`");
        }
        None => {
            let help = "add `--node-rank 0` on the first machine, `--node-rank 1` on the next ...";
            return refuse("needs the number of this machine", help);
        }
    };
    let Some((master, port)) = master(launch) else {
        let help =
            "add the first machine's address on all, `--master-addr HOST [--master-port PORT]`";
        return refuse("needs the address where the machines meet", help);
    };
    let Some(file) = &flags.token_file else {
        let help = "generate one with `ddprun token run.token`, copy it to all machines, and add \
            `--token-file run.token`";
        return refuse("needs the token that authenticates the run's machines", help);
    };
    Ok(Some(NodeConfig { node, nodes, master, port, token: read_token(file)? }))
}

/// The place of a rank that another launcher started beside ranks of other machines, if it may meet them.
pub(crate) fn launched_place(foreign: &Foreign) -> Result<Option<NodeConfig>, Refusal> {
    let Some(endpoint) = &foreign.rendezvous else { return Ok(None) };
    let (node, nodes, port) = (foreign.rank.0, foreign.world.get(), endpoint.port);
    let token = read_token(&endpoint.token_file)?;
    Ok(Some(NodeConfig { node, nodes, master: endpoint.master.clone(), port, token }))
}

fn read_token(file: &Path) -> Result<Key, Refusal> {
    transport::read_token(file).map_err(|error| {
        let help = "`ddprun token FILE` generates one; copies need `chmod 600`";
        Refusal::of(exit::REFUSED, &error, Some(help.into()))
    })
}

/// Where the machines meet: torchrun's two ways to say it.
fn master(launch: &Launch) -> Option<(String, u16)> {
    let flags = &launch.rendezvous;
    if let Some(host) = &flags.master_addr {
        return Some((host.clone(), flags.master_port.unwrap_or(PORT)));
    }
    let endpoint = flags.rdzv_endpoint.as_deref()?;
    match endpoint.rsplit_once(':') {
        Some((host, port)) => Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?)),
        None => Some((endpoint.to_owned(), flags.master_port.unwrap_or(PORT))),
    }
}

/// This machine's part of a run: meets the others, and runs its own ranks. Node 0 makes the run's folders.
pub(crate) fn train(place: &NodeConfig, asked: &Asked, kinds: &Kinds) -> Result<u8, Refusal> {
    let plan = &asked.prepared.plan;
    let mut owned = None;
    let make = make(asked, kinds, &mut owned);
    let met = launch::join_nodes(place, plan, make, &mut |line| to_stderr(line));
    let (prepared, mut nodes) = met.map_err(apart)?;
    let PreparedRun { plan, folders, resume } = prepared;
    let mut run = owned_or_joined(owned, &folders, asked)?;
    if place.node > 0 {
        let ranks: Vec<Rank> = nodes.ranks().collect();
        let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        let (names, logs) = (names.join(", "), run.folders.logs.display());
        to_stderr(&format!(
            "node {} of {}: rank {names}; node 0 shows the progress; the logs of these ranks are in {logs}",
            place.node, place.nodes
        ));
    }
    supervise(&plan, vec![], &mut run, resume, Some(&mut nodes))
}

/// A rank of another launcher, which meets those of all machines itself. Rank 0 makes the run's folders.
pub(crate) fn train_launched(
    foreign: &Foreign,
    place: &NodeConfig,
    asked: &Asked,
    kinds: &Kinds,
) -> Result<u8, Refusal> {
    let plan = &asked.prepared.plan;
    let mut owned = None;
    let make = make(asked, kinds, &mut owned);
    let met = launch::join_machines(foreign, place, plan, make, &mut |line| to_stderr(line));
    let membership = met.map_err(apart)?;
    // Rank 0 holds the run's lock as long as it lives.
    let _run = owned_or_joined(owned, &membership.rank_plan.run, asked)?;
    Ok(take_part(membership, kinds))
}

/// Makes the run where this process is the first of all, and leaves it in `owned`.
fn make<'a>(
    asked: &'a Asked,
    kinds: &'a Kinds,
    owned: &'a mut Option<OwnedRun>,
) -> impl FnOnce() -> Result<PreparedRun, Refusal> + 'a {
    move || {
        let (run, resume) = asked.open(kinds)?;
        let run = owned.insert(run);
        let (plan, folders) = (asked.prepared.plan.clone(), run.folders.clone());
        Ok(PreparedRun { plan, folders, resume })
    }
}

/// The run that this process made, or its part of the run that the first one made.
fn owned_or_joined(
    owned: Option<OwnedRun>,
    folders: &RunFolders,
    asked: &Asked,
) -> Result<OwnedRun, Refusal> {
    owned.map_or_else(|| join_run(folders.clone(), &asked.prepared, asked.other_data()), Ok)
}

fn apart(error: NodeRendezvousError<Refusal>) -> Refusal {
    let (code, help) = match error {
        NodeRendezvousError::Prepare(refusal) => return refusal,
        NodeRendezvousError::Refused { .. } => (
            exit::REFUSED,
            "start the same program with the same experiment and flags on all machines",
        ),
        NodeRendezvousError::Unauthenticated { .. } => (
            exit::PEER,
            "copy node 0's token file to this machine, and make sure that nothing else uses the port",
        ),
        NodeRendezvousError::Missing { .. } | NodeRendezvousError::Io { .. } => (
            exit::PEER,
            "make sure that all machines were started and can reach each other, with no firewall between them",
        ),
    };
    Refusal::of(code, &error, Some(help.to_owned()))
}

/// `ddprun token [FILE]`: a new token, in a new file that its user alone can read, or printed.
pub(crate) fn token(file: Option<&Path>) -> Result<u8, Refusal> {
    let token =
        transport::new_token().map_err(|error| Refusal::of(exit::RESOURCE, &error, None))?;
    let Some(file) = file else { return to_stdout(&token) };
    files::write_secret(file, token.as_bytes()).map_err(|error| {
        Refusal::of(exit::STORAGE, &error, Some("name a file that does not exist yet".into()))
    })?;
    Ok(0)
}
