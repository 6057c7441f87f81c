//! `ddprun serve`: the page of all runs below a folder, until Ctrl-C.

use std::net::IpAddr;

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::answer;
use crate::cli::args::ServeArgs;
use crate::dashboard::{Error, Server};
use crate::record::to_stderr;
use crate::user_error::{ErrorPage, ExitCode};

/// `ddprun serve [FOLDER]`
pub(crate) fn serve(args: &ServeArgs) -> Result<ExitCode, ErrorPage> {
    let ServeArgs { folder, host, port, allow_remote } = args;
    if !folder.is_dir() {
        let what = format!("error: there is no folder `{}`", folder.display());
        let help = "name the folder of your runs; it is made by the first `ddprun experiment.toml`";
        return Err(ErrorPage::new(ExitCode::Refused, format!("{what}\n  do: {help}")));
    }
    if !is_own(host) && !allow_remote {
        let what = format!("error: `--host {host}` lets other machines see your runs");
        let help = "add `--allow-remote`, or leave the page on this machine and reach it by \
            `ssh -L 8430:127.0.0.1:8430 MACHINE`";
        return Err(ErrorPage::new(ExitCode::Refused, format!("{what}\n  do: {help}")));
    }
    // Before anything else: Ctrl-C ends this quietly from now on.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| refused(&error.into()))?;
    let server = Server::listen(host, *port).map_err(|error| refused(&error))?;
    let mut said = Ok(ExitCode::Ok);
    let ready = |has_runs: bool, address: &str| {
        if !has_runs {
            let words = "no run below `{}` yet; the first one shows up by itself";
            to_stderr(&words.replace("{}", &folder.display().to_string()));
        }
        said = answer("page", || json!({ "url": address }), || format!("{address}\n"));
        to_stderr("press Ctrl-C to stop");
    };
    server.start(folder, ready).map_err(|error| refused(&error))?;
    said?;
    signals.forever().next();
    Ok(ExitCode::Ok)
}

/// Whether only this machine can reach `host`.
fn is_own(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn refused(error: &Error) -> ErrorPage {
    let help = match error {
        Error::PortInUse { .. } => {
            "stop the other program, or choose another port with `--port` (0: any that is free)"
        }
        Error::Listen { .. } => "choose an address of this machine, and a port from 1024 on",
        Error::System(_) => "close other programs, and try again",
    };
    ErrorPage::of(ExitCode::Refused, error).help(help)
}
