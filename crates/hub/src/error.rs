//! Failures to find or download a file.

use ddprun_host::files;
use ddprun_host::user_error::{ExitCode, UserError};
use ddprun_plan::config::HUB;

use crate::name::{BadName, Repo};

/// A file that could not be found or downloaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Text that is no name.
    #[error(transparent)]
    BadName(#[from] BadName),
    /// `HF_HUB_OFFLINE` is set, and the cache does not have it.
    #[error("`{name}` is not in the cache `{cache}`, and `HF_HUB_OFFLINE` forbids fetching it")]
    Offline { name: String, cache: String, near: Vec<String> },
    /// No answer, and the cache does not have it.
    #[error("`{name}` cannot be fetched: {endpoint} does not answer: {why}")]
    Unreachable { name: String, endpoint: String, why: String },
    /// The hub has no such repository, or does not show it to us; its answer is the same for both.
    #[error("there is no `{name}` on {endpoint}, or it is private")]
    NoRepo { name: Repo, endpoint: String, token: Option<String>, near: Vec<String> },
    /// A repository whose owner asks for consent first.
    #[error("`{name}` is gated: its owner gives access to those who accept its conditions")]
    Gated { name: Repo, endpoint: String, token: Option<String> },
    /// A token that has expired or was mistyped.
    #[error("{endpoint} does not accept the token of {origin}")]
    BadToken { endpoint: String, origin: String },
    /// A branch, tag or commit that is not there.
    #[error("`{name}` has no revision `{revision}`")]
    NoRevision { name: Repo, revision: String },
    /// A file that is not there.
    #[error("`{name}` has no file `{file}`")]
    NoFile { name: Repo, file: String, near: Vec<String> },
    /// A repository without a file, where its files do not say which one is meant.
    #[error("`{name}` has {what}")]
    Unclear { name: Repo, what: String, files: Vec<String> },
    /// Too many requests, for longer than is worth waiting.
    #[error("{endpoint} refuses further requests for now (429)")]
    RateLimited { endpoint: String, token: Option<String> },
    /// An unexpected status.
    #[error("{endpoint} answered {status} for `{what}`")]
    Status { endpoint: String, status: u16, what: String },
    /// An answer that is not what the hub's API says.
    #[error("{endpoint} answered for `{name}` with something that is not the hub's: {why}")]
    Answer { name: Repo, endpoint: String, why: String },
    /// A connection that breaks again and again.
    #[error("`{file}` breaks off after {done} of {size} bytes: {why}")]
    Cut { file: String, done: u64, size: u64, why: String },
    /// Bytes that differ from those announced, twice.
    #[error(
        "`{file}` arrived twice with other bytes than the hub announced: its hash is {found}, not {expected}"
    )]
    Corrupt { file: String, expected: String, found: String },
    /// An archive that is damaged, or not of the layout that is known.
    #[error("`{file}` cannot be unpacked: {why}")]
    Unpack { file: String, why: String },
    /// Certificates that cannot be read.
    #[error("the certificates in `{path}` cannot be read: {why}")]
    Certificates { path: String, why: String },
    /// The user stopped it.
    #[error("stopped while `{file}` was fetched")]
    Stopped { file: String },
    /// The cache cannot be written.
    #[error("{}", .0.with_cause())]
    Files(#[from] files::Error),
}

impl Error {
    /// True if there is no network, or what is asked for is not on it; another time or place may have it.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::Offline { .. }
                | Self::Unreachable { .. }
                | Self::RateLimited { .. }
                | Self::Status { .. }
                | Self::Cut { .. }
        )
    }
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::BadName(_)
            | Self::Offline { .. }
            | Self::NoRepo { .. }
            | Self::Gated { .. }
            | Self::BadToken { .. }
            | Self::NoRevision { .. }
            | Self::NoFile { .. }
            | Self::Unclear { .. }
            | Self::Certificates { .. } => ExitCode::Refused,
            Self::Stopped { .. } => ExitCode::Interrupted,
            Self::Unreachable { .. }
            | Self::RateLimited { .. }
            | Self::Status { .. }
            | Self::Answer { .. }
            | Self::Cut { .. }
            | Self::Corrupt { .. }
            | Self::Unpack { .. }
            | Self::Files(_) => ExitCode::Storage,
        }
    }

    fn help(&self) -> Option<String> {
        Some(match self {
            Self::BadName(BadName { name }) => match name.strip_prefix(HUB) {
                Some("gpt2") => "write its organization too: `hf:openai-community/gpt2`".to_owned(),
                _ => "write `hf:ORG/NAME`, with `@REVISION` for a branch, tag or commit and `/FILE` for one file, \
                      such as `hf:timm/resnet18.a1_in1k`"
                    .to_owned(),
            },
            Self::Offline { near, .. } => {
                let fetch = "unset `HF_HUB_OFFLINE`, or fetch it on a machine with a network (`ddprun plan`) and copy \
                             the cache";
                match near.as_slice() {
                    [] => fetch.to_owned(),
                    near => format!("{fetch}; the cache has {}", listed(near)),
                }
            }
            Self::Unreachable { .. } => "check the network; a proxy is named by `HTTPS_PROXY`, a mirror of the hub by \
                                         `HF_ENDPOINT`; or fetch it on a machine with a network (`ddprun plan`) and \
                                         copy the cache"
                .to_owned(),
            Self::NoRepo { token, near, .. } => {
                let near = match near.as_slice() {
                    [] => "check the spelling.".to_owned(),
                    near => format!("did you mean {}?", listed(near)),
                };
                match token {
                    None => format!("{near} If it is private, set `HF_TOKEN` or run `hf auth login`"),
                    Some(origin) => format!("{near} If it is private, the token of {origin} does not give access"),
                }
            }
            Self::Gated { name, endpoint, token } => {
                let page = format!("accept them on {endpoint}/{}", name.url_path());
                match token {
                    None => format!("{page}, then set `HF_TOKEN` or run `hf auth login`"),
                    Some(origin) => format!("{page} as the user of the token of {origin}"),
                }
            }
            Self::BadToken { origin, .. } => {
                format!("make a new token in the settings of your account, and put it into {origin}; or remove that one")
            }
            Self::NoRevision { .. } => "name a branch, a tag or a commit of it; without `@`, `main` is meant".to_owned(),
            Self::NoFile { near, .. } => match near.as_slice() {
                [] => "look at its list of files on the hub".to_owned(),
                near => format!("did you mean {}?", listed(near)),
            },
            Self::Unclear { name, files, .. } => match files.as_slice() {
                [] => "name another repository".to_owned(),
                files => format!("name one of its files, such as `{name}/{}`; it has {}", files[0], files.join(", ")),
            },
            Self::RateLimited { token, .. } => match token {
                None => "wait some minutes; with a token (`HF_TOKEN`) the hub allows more".to_owned(),
                Some(_) => "wait some minutes, and run the command again".to_owned(),
            },
            Self::Status { status: 500.., .. } | Self::Cut { .. } => {
                "run the command again: what has arrived is kept".to_owned()
            }
            Self::Status { .. } | Self::Answer { .. } => {
                "check `HF_ENDPOINT`, and whether a proxy stands in between".to_owned()
            }
            Self::Corrupt { .. } => "run the command again; if it stays so, a proxy or a mirror changes files".to_owned(),
            Self::Unpack { .. } => "remove it, and run the command again".to_owned(),
            Self::Certificates { .. } => {
                "`SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` and `CURL_CA_BUNDLE` name a file of certificates in PEM".to_owned()
            }
            Self::Stopped { .. } => "run the command again: what has arrived is kept".to_owned(),
            Self::Files(error) => {
                error.help_or("choose another folder for the cache with `HF_HUB_CACHE`")
            }
        })
    }
}

fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().take(3).map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}
