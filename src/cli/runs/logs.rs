//! `ddprun logs`: the log of a rank, which may still grow.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::output;
use crate::cli::runs_args::LogsArgs;
use crate::files::{self, Follower, NewLines};
use crate::record::{RankLog, to_stderr};
use crate::runs::{self, Summary};
use crate::units::Rank;
use crate::user_error::{ErrorPage, ExitCode};

/// Time between two looks at a log that grows.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// `ddprun logs [-f] [RUN] [--rank N]`
pub(crate) fn logs(args: &LogsArgs) -> Result<ExitCode, ErrorPage> {
    let folder = runs::named_run(args.run.as_deref())?;
    let path = RankLog::path(&folder, Rank(args.rank));
    let is_running = || files::lock_holder(&folder).is_some();
    let is_awaited = args.follow && args.rank == 0 && is_running();
    if !path.is_file() && !is_awaited {
        return Err(no_log(&folder, args.rank));
    }
    let mut follower = Follower::new(&path);
    let stop = stop_flag()?;
    while args.follow && is_running() {
        if stop.load(Ordering::Relaxed) {
            return Ok(ExitCode::Interrupted);
        }
        if !print(follower.poll())? {
            return Ok(ExitCode::Ok);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    print(follower.poll_to_the_end())?;
    if args.follow
        && let Ok(run) = runs::summary(&folder)
    {
        to_stderr(&ending(&run));
    }
    Ok(ExitCode::Ok)
}

/// Prints new lines. Returns false if nobody reads stdout any more.
pub(crate) fn print(news: Result<NewLines, files::Error>) -> Result<bool, ErrorPage> {
    let NewLines { is_anew, lines } =
        news.map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    if is_anew {
        to_stderr("the log was replaced; it begins again:");
    }
    print_lines(&lines)
}

/// Prints lines of a log. Returns false if nobody reads stdout any more.
pub(crate) fn print_lines(lines: &str) -> Result<bool, ErrorPage> {
    let objects = || lines.lines().map(|line| ("log", json!({ "line": line }))).collect();
    output::answer_to_reader(objects, || lines.to_owned())
}

/// A flag that becomes true at Ctrl-C.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, ErrorPage> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second one ends the process at once.
        let register = signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        register.map_err(|error| ErrorPage::of(ExitCode::Resource, &error))?;
    }
    Ok(stop)
}

/// The state of the run, for after the last line of its log.
fn ending(run: &Summary) -> String {
    let Summary { id, state, reason, step, .. } = run;
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("run {id} {} after step {step}{reason}", state.word())
}

fn no_log(folder: &Path, rank: u32) -> ErrorPage {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let rank_of = |name: &str| name.strip_prefix("rank-")?.strip_suffix(".log")?.parse().ok();
    let mut ranks: Vec<u32> =
        entries.filter_map(|entry| rank_of(entry.file_name().to_str()?)).collect();
    ranks.sort_unstable();
    let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let help = if ranks.is_empty() {
        "add `-f` to wait for the run, which has not begun".to_owned()
    } else {
        format!("choose a rank with a log here: {}", ranks.join(", "))
    };
    let what = format!("there is no log of rank {rank} in `{}`", folder.display());
    ErrorPage::refused(what, help)
}
