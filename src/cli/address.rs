//! Addresses that a server may listen on.

use std::net::IpAddr;

use crate::user_error::ErrorPage;

/// Refuses to listen where other machines could see `what`, unless they may.
pub(crate) fn refuse_others(
    host: &str,
    allow_remote: bool,
    what: &str,
    port: u16,
) -> Result<(), ErrorPage> {
    if is_own(host) || allow_remote {
        return Ok(());
    }
    let refusal = format!("`--host {host}` lets other machines see {what}");
    let help = format!(
        "add `--allow-remote`, or leave it on this machine and reach it by \
         `ssh -L {port}:127.0.0.1:{port} MACHINE`"
    );
    Err(ErrorPage::refused(refusal, help))
}

/// True if only this machine can reach `host`.
fn is_own(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}
