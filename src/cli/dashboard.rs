//! The page of runs: `ddprun serve` and `ddprun report --html`.

use std::path::{Path, PathBuf};

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::address::refuse_others;
use crate::cli::answer;
use crate::cli::args::ServeArgs;
use crate::dashboard::{self, Error, Server};
use crate::files;
use crate::record::to_stderr;
use crate::runs::{self, LOGS, find_sweep};
use crate::session::read_token;
use crate::user_error::{ErrorPage, ExitCode};

/// `ddprun report [RUN | FOLDER] --html FILE`
pub(crate) fn report_html(word: Option<&str>, file: &Path) -> Result<ExitCode, ErrorPage> {
    let is_folder = |word: &&str| Path::new(word).is_dir();
    let folder = match word {
        None => PathBuf::from(LOGS),
        Some(word) => match find_sweep(Path::new(word)) {
            Some(sweep) => sweep,
            None if is_folder(&word) => PathBuf::from(word),
            None => runs::named_run(Some(word))?,
        },
    };
    let page =
        dashboard::html(&folder).map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    let Some(page) = page else { return Err(no_runs(&folder)) };
    files::create_parent(file)
        .and_then(|()| files::write_atomic(file, page.as_bytes()))
        .map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    answer("page", || json!({ "file": file }), || format!("{}\n", file.display()))
}

/// The refusal of a folder without runs.
fn no_runs(folder: &Path) -> ErrorPage {
    let what = format!("there is no run below `{}`", folder.display());
    let help = "name a folder of runs, as `logs/<name>`; `ddprun experiment.toml` makes one";
    ErrorPage::refused(what, help)
}

/// `ddprun serve [FOLDER]`
pub(crate) fn serve(args: &ServeArgs) -> Result<ExitCode, ErrorPage> {
    let ServeArgs { folder, host, port, allow_remote, token_file } = args;
    if !folder.is_dir() {
        let what = format!("there is no folder `{}`", folder.display());
        let help = "name the folder of your runs; it is made by the first `ddprun experiment.toml`";
        return Err(ErrorPage::refused(what, help));
    }
    refuse_others(host, *allow_remote, "your runs", *port)?;
    // Before anything else: Ctrl-C ends this quietly from now on.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| not_served(&error.into()))?;
    let token = match token_file {
        Some(file) => Some(read_token(file)?),
        None => dashboard::kept_token(folder),
    };
    let server = Server::listen(host, *port, token.as_ref()).map_err(|error| not_served(&error))?;
    let mut printed = Ok(ExitCode::Ok);
    let ready = |has_runs: bool, address: &str| {
        if !has_runs {
            let words = "no run below `{}` yet; the first one shows up by itself";
            to_stderr(&words.replace("{}", &folder.display().to_string()));
        }
        printed = answer("page", || json!({ "url": address }), || format!("{address}\n"));
        to_stderr("press Ctrl-C to stop");
    };
    server.start(folder, ready).map_err(|error| not_served(&error))?;
    printed?;
    signals.forever().next();
    Ok(ExitCode::Ok)
}

fn not_served(error: &Error) -> ErrorPage {
    let help = match error {
        Error::PortInUse { .. } => {
            "stop the other program, or choose another port with `--port` (0: any that is free)"
        }
        Error::Listen { .. } => "choose an address of this machine, and a port from 1024 on",
        Error::System(_) => "close other programs, and try again",
    };
    ErrorPage::of(ExitCode::Refused, error).help(help)
}
