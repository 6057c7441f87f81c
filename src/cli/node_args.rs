//! The flags of several machines -> this machine's place among them, and the token that they share
//! (docs/machines.md).

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::args::{Launch, PORT, Run, bare, host_and_port};
use crate::cli::output::answer;
use crate::files;
use crate::launch::{NodeConfig, Role, rank_env};
use crate::session;
use crate::transport;
use crate::user_error::{ErrorPage, ExitCode};

/// The role of this process, by its environment.
pub(crate) fn role() -> Result<Role, ErrorPage> {
    rank_env::from_environment().map_err(|error| ErrorPage::of(ExitCode::Refused, &error))
}

/// The flags, with the values of torchrun's variables for those that are absent, unless a launcher
/// has started this process.
pub(crate) fn with_variables(launch: &Launch, role: &Role) -> Result<Launch, ErrorPage> {
    if !matches!(role, Role::Parent) {
        return Ok(launch.clone());
    }
    let of_variables = rank_env::elastic_flags();
    let variables = of_variables.map_err(|error| ErrorPage::of(ExitCode::Refused, &error))?;
    let mut launch = launch.clone();
    launch.nnodes = launch.nnodes.or(variables.nnodes);
    launch.nproc_per_node = launch.nproc_per_node.or(variables.nproc_per_node);
    let flags = &mut launch.rendezvous;
    flags.node_rank = flags.node_rank.or(variables.node_rank);
    if flags.rdzv_endpoint.is_none() {
        flags.master_addr = flags.master_addr.take().or(variables.master_addr);
        flags.master_port = flags.master_port.or(variables.master_port);
        flags.rdzv_endpoint = variables.rdzv_endpoint;
    }
    flags.token_file = flags.token_file.take().or(variables.token_file.map(PathBuf::from));
    Ok(launch)
}

/// Like [`with_variables`], for the whole command line of a run.
pub(crate) fn run_with_variables(run: &Run, role: &Role) -> Result<Run, ErrorPage> {
    Ok(Run { launch: with_variables(&run.launch, role)?, ..run.clone() })
}

/// This machine's place, if the flags speak of several.
pub(crate) fn place(launch: &Launch) -> Result<Option<NodeConfig>, ErrorPage> {
    let (nodes, flags) = (launch.nodes(), &launch.rendezvous);
    if nodes == 1 {
        return Ok(None);
    }
    let refuse = |what: &str, help: &str| {
        let what = format!("`--nnodes {nodes}` {what}");
        Err(ErrorPage::refused(what, help))
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
    Ok(Some(NodeConfig { node, nodes, master, port, token: session::read_token(file)? }))
}

/// The address and port at which the machines meet, from either of torchrun's two forms.
fn master(launch: &Launch) -> Option<(String, u16)> {
    let flags = &launch.rendezvous;
    if let Some(host) = &flags.master_addr {
        return Some((bare(host), flags.master_port.unwrap_or(PORT)));
    }
    host_and_port(flags.rdzv_endpoint.as_deref()?).ok()
}

/// `ddprun token [FILE]`: a new token, in a new file that its user alone can read, or printed.
pub(crate) fn token(file: Option<&Path>) -> Result<ExitCode, ErrorPage> {
    let token =
        transport::new_token().map_err(|error| ErrorPage::of(ExitCode::Resource, &error))?;
    let Some(file) = file else {
        return answer("token", || json!({ "token": token.trim_end() }), || token.to_string());
    };
    files::write_secret(file, token.as_bytes()).map_err(|error| {
        let help = error.help_or("name a file that does not exist yet");
        ErrorPage::of(ExitCode::Storage, &error).help(help)
    })?;
    answer("token", || json!({ "file": file }), String::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Rendezvous;

    #[test]
    fn brackets_are_no_part_of_an_address() {
        let check = |address: Option<&str>, endpoint: Option<&str>, expected: (&str, u16)| {
            let (master_addr, rdzv_endpoint) = (address.map(Into::into), endpoint.map(Into::into));
            let rendezvous = Rendezvous { master_addr, rdzv_endpoint, ..Rendezvous::default() };
            let found = master(&Launch { rendezvous, ..Launch::default() }).unwrap();
            assert_eq!((found.0.as_str(), found.1), expected, "{address:?} {endpoint:?}");
        };
        check(Some("[::1]"), None, ("::1", PORT));
        check(Some("fe80::1"), None, ("fe80::1", PORT));
        check(Some("node-0"), None, ("node-0", PORT));
        check(None, Some("[::1]:29400"), ("::1", 29_400));
        check(None, Some("[::1]"), ("::1", PORT));
        check(None, Some("::1"), ("::1", PORT));
        check(None, Some("node-0:7"), ("node-0", 7));
    }
}
