//! `ddprun ls`: the runs and sweeps of a folder, and how they stand.

use std::path::{Path, PathBuf};

use console::Term;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::answers;
use crate::cli::runs::table::{WIDTH, aligned_to};
use crate::cli::runs_args::LsArgs;
use crate::kinds::Kinds;
use crate::record::text::{cut, duration, escape, metric, wrapped};
use crate::record::{is_json, to_stderr};
use crate::runs::{self, FolderScan, LOGS, Listing, RUN, State, Summary, SweepSummary, leftovers};
use crate::sweep;
use crate::terminal::shell_word;
use crate::user_error::{ErrorPage, ExitCode};

/// Shown where something is not known.
const NONE: &str = "-";
/// The least room for the names of experiments.
const MIN_NAME: usize = 6;

/// `ddprun ls [FOLDER | RUN]`
pub(crate) fn ls(args: &LsArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let folder = folder(&args.folder);
    let mut listing = runs::list(&folder);
    if !is_json() {
        for left in &leftovers(&folder) {
            say_left(left, &folder);
        }
    }
    if listing.is_empty() {
        return Err(no_run(&folder));
    }
    listing.runs.retain(|run| is_wanted(args, run.state, &run.tags));
    listing.sweeps.retain(|sweep| is_wanted(args, sweep.state, &[]));
    if args.sort != "start" {
        listing.sort_by_metric(&args.sort, &kinds.vocabulary())?;
    }
    if is_json() {
        return answers(|| objects(&listing), String::new);
    }
    for unreadable in &listing.unreadable {
        to_stderr(&format!("note: {}: {}", unreadable.folder.display(), unreadable.why));
    }
    if listing.runs.is_empty() && listing.sweeps.is_empty() {
        let is_filtered = !args.states.is_empty() || !args.tags.is_empty();
        to_stderr(if is_filtered { "no run matches" } else { "no run can be read" });
    }
    let sorted = (args.sort != "start").then_some(args.sort.as_str());
    answers(Vec::new, || page(&listing, sorted, columns()))
}

/// A folder, or the folder of that name in `logs`, or a run. A folder of something else, such as
/// data, does not hide the runs of its name.
fn folder(word: &Path) -> PathBuf {
    let Some(text) = word.to_str() else { return word.to_owned() };
    let name = text.strip_prefix(RUN).unwrap_or(text);
    let (outer, inner) = (Path::new(name), Path::new(LOGS).join(name));
    let is_named =
        name != text || (runs::is_name(name) && runs::find(outer) == FolderScan::default());
    if inner.is_dir() && (is_named || !outer.is_dir()) {
        return inner;
    }
    if outer.is_dir() {
        return outer.to_owned();
    }
    runs::find_run(Path::new(LOGS), Some(name)).unwrap_or_else(|_| outer.to_owned())
}

fn say_left(left: &Path, all: &Path) {
    let all = if all == Path::new(LOGS) {
        String::new()
    } else {
        format!(" {}", shell_word(&all.display().to_string()))
    };
    to_stderr(&format!(
        "note: `{}` is left of an interrupted `ddprun rm`; `ddprun rm --leftovers{all}` removes it",
        left.display()
    ));
}

fn no_run(folder: &Path) -> ErrorPage {
    let near = folder.to_str().filter(|_| !folder.is_dir()).and_then(runs::nearest_run);
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "train one with `ddprun EXPERIMENT.toml`, or look into another folder with \
                 `ddprun ls FOLDER`"
            .to_owned(),
    };
    let may_be_new = folder.is_dir() || folder == Path::new(LOGS);
    let what = if may_be_new { "run under" } else { "run or folder" };
    let what = format!("there is no {what} `{}`", folder.display());
    ErrorPage::refused(what, help)
}

fn is_wanted(args: &LsArgs, state: State, tags: &[String]) -> bool {
    let is_state = args.states.is_empty() || args.states.iter().any(|word| word == state.word());
    is_state && args.tags.iter().all(|tag| tags.contains(tag))
}

/// An object for each run, each sweep, and each folder that cannot be read.
fn objects(listing: &Listing) -> Vec<(&'static str, Value)> {
    fn of(value: &impl Serialize) -> Value {
        serde_json::to_value(value).unwrap_or_default()
    }
    let runs = listing.runs.iter().map(|run| ("run", of(run)));
    let sweeps = listing.sweeps.iter().map(|sweep| ("sweep", of(sweep)));
    let unreadable = listing.unreadable.iter().map(|it| {
        ("unreadable", json!({ "folder": it.folder.to_string_lossy(), "reason": it.why }))
    });
    runs.chain(sweeps).chain(unreadable).collect()
}

/// Columns of a line: the terminal's, or as many as it needs where no terminal shows it.
fn columns() -> usize {
    let terminal = Term::stdout();
    if !terminal.is_term() {
        return usize::MAX;
    }
    terminal.size_checked().map_or(WIDTH, |(_, columns)| WIDTH.max(usize::from(columns)))
}

/// The tables in lines of `columns`. `sorted` is the metric by which the runs are sorted.
fn page(listing: &Listing, sorted: Option<&str>, columns: usize) -> String {
    let runs = runs_table(&listing.runs, sorted, columns);
    let parts = [runs, sweeps_table(&listing.sweeps, columns)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

fn runs_table(runs: &[Summary], sorted: Option<&str>, columns: usize) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let shared = shared_metric(runs, sorted);
    let head = ["run", "name", "state", "progress", shared.unwrap_or("best"), "time"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(runs.iter().map(|run| row(run, shared)));
    let room = room_for_names(&rows, columns);
    for row in &mut rows {
        row[1] = cut(&row[1], room);
    }
    let text = aligned_to(&rows, 3, columns);
    let mut lines = text.lines();
    let mut page = lines.next().unwrap_or_default().to_owned() + "\n";
    for (line, run) in lines.zip(runs) {
        page += &format!("{line}\n{}", below(run));
    }
    page
}

/// The metric that one column can show for all runs.
fn shared_metric<'a>(runs: &'a [Summary], sorted: Option<&'a str>) -> Option<&'a str> {
    let mut monitors = runs.iter().filter_map(|run| run.monitor.as_deref());
    let first = monitors.next();
    sorted.or(first.filter(|first| monitors.all(|other| other == *first)))
}

fn row(run: &Summary, shared: Option<&str>) -> Vec<String> {
    let best = match (shared, &run.monitor, run.best) {
        (Some(name), ..) => run.value(name).map(|value| metric(name, value)),
        (None, Some(name), Some(best)) => Some(format!("{name} {}", metric(name, best.value))),
        _ => None,
    };
    vec![
        id(run),
        run.name.clone(),
        run.state.word().to_owned(),
        progress(run),
        best.unwrap_or_else(|| NONE.to_owned()),
        duration(run.seconds),
    ]
}

/// The id. The run of a range test is `trial-0001`, as that of any other, so its folder is named
/// too; of a sweep, the sweep itself is listed.
fn id(run: &Summary) -> String {
    let is_of_range_test = run.sweep.is_none() && sweep::is_trial(&run.folder);
    let folder = run.folder.parent().and_then(Path::file_name).filter(|_| is_of_range_test);
    folder.map_or_else(|| run.id.clone(), |name| format!("{}/{}", name.to_string_lossy(), run.id))
}

/// Epochs, as in `3/12`; `step 25/50` of a run within one epoch, `step 25` of one that time ends.
fn progress(run: &Summary) -> String {
    match (run.epochs, run.total_steps) {
        (Some(epochs), _) if epochs > 1 => format!("{}/{epochs}", run.epoch),
        (_, Some(steps)) => format!("step {}/{steps}", run.step),
        _ => format!("step {}", run.step),
    }
}

/// Columns that the others leave for the names of the experiments.
fn room_for_names(rows: &[Vec<String>], columns: usize) -> usize {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let others: usize = [0, 2, 3, 4, 5].iter().filter_map(|&column| width(column)).sum();
    columns.saturating_sub(others + 10).max(MIN_NAME)
}

/// Tags and what went wrong, below the line of a run.
fn below(run: &Summary) -> String {
    let tags = (!run.tags.is_empty()).then(|| format!("tags: {}", run.tags.join(", ")));
    let reason = match run.state {
        State::Failed | State::Running => run.reason.clone(),
        State::Finished => run.reason.clone().filter(|reason| reason != "completed"),
        State::Stopped | State::Killed | State::Pruned => None,
    };
    let part = |text: String| {
        let text = escape(&text.replace('\n', " ")).into_owned();
        format!("  {}\n", wrapped(&text, WIDTH - 2, 4))
    };
    [tags, reason].into_iter().flatten().map(part).collect()
}

fn sweeps_table(sweeps: &[SweepSummary], columns: usize) -> String {
    if sweeps.is_empty() {
        return String::new();
    }
    let mut rows =
        vec![["sweep", "state", "trials", "best", "value", "started"].map(str::to_owned).to_vec()];
    rows.extend(sweeps.iter().map(|sweep| {
        let best = sweep.best.map(|value| metric(&sweep.monitor, value));
        vec![
            cut(&sweep.name, columns.saturating_sub(WIDTH).saturating_add(20)),
            sweep.state.word().to_owned(),
            format!("{}/{}", sweep.done, sweep.trials),
            sweep.monitor.clone(),
            best.unwrap_or_else(|| NONE.to_owned()),
            sweep
                .started
                .to_zoned(jiff::tz::TimeZone::system())
                .strftime("%Y-%m-%d %H:%M")
                .to_string(),
        ]
    }));
    aligned_to(&rows, 2, columns)
}
