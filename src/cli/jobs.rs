//! `ddprun jobs`, `ddprun cancel`, and the output of a job: what became of what was submitted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cli::cluster_args::{CancelArgs, JobsArgs};
use crate::cli::runs::{self, POLL_INTERVAL, aligned, print, stop_flag};
use crate::cli::runs_args::LogsArgs;
use crate::cli::{answer, answers};
use crate::cluster::{self, Cluster, Error, Output, Place, State, Submitted};
use crate::config::closest;
use crate::config::kind::Wrong;
use crate::files::{self, Follower, News};
use crate::kinds::Kinds;
use crate::record::{is_json, to_stderr};
use crate::runs::{LOGS, find_sweep, summary, sweep_summary};
use crate::session;
use crate::user_error::{ErrorPage, ExitCode, UserError};

/// Time between two questions to an engine.
const QUESTION_INTERVAL: Duration = Duration::from_secs(5);
/// Questions in a row that an engine may leave unanswered while a job is followed: ten minutes.
const MAX_UNANSWERED: u32 = 120;

/// An engine that gave no answer.
pub(crate) fn no_answer(cluster: &str, error: &Error) -> ErrorPage {
    let page = ErrorPage::new(error.exit_code(), format!("error: cluster `{cluster}`: {error}"));
    match error.help() {
        Some(help) => page.help(help),
        None => page,
    }
}

/// A job and how it stands.
struct Row {
    place: Place,
    job: Submitted,
    /// `None` = the engine has forgotten it.
    state: Option<State>,
    /// The folder of the run or of the sweep that it began.
    run: Option<PathBuf>,
}

impl Row {
    /// How it stands: in the engine's words, else in the run's.
    fn word(&self) -> String {
        let of_run = || {
            let folder = self.run.as_ref()?;
            let state = match self.job.workers {
                None => summary(folder).ok()?.state,
                Some(_) => sweep_summary(folder).ok()?.state,
            };
            Some(state.word().to_owned())
        };
        let of_engine = self.state.as_ref().map(|state| state.word.clone());
        of_engine.or_else(of_run).unwrap_or_else(|| "unknown".to_owned())
    }

    fn run_id(&self) -> String {
        let name = self.run.as_ref().and_then(|run| run.file_name());
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// `ddprun jobs [--on NAME]`
pub(crate) fn jobs(args: &JobsArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let is_asked = |job: &Submitted| args.on.as_ref().is_none_or(|name| *name == job.cluster);
    let mut all = cluster::all(Path::new(LOGS));
    all.retain(|(_, job)| is_asked(job));
    if all.is_empty() {
        to_stderr("no job was submitted from this folder: `ddprun submit EXPERIMENT --on NAME`");
        return Ok(ExitCode::Ok);
    }
    let rows = rows(all, kinds);
    let objects = || rows.iter().map(|row| ("job", as_json(row))).collect();
    answers(objects, || {
        let head = ["job", "cluster", "experiment", "submitted", "state", "run"];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        table.extend(rows.iter().map(cells));
        aligned(&table, head.len())
    })
}

fn cells(row: &Row) -> Vec<String> {
    let Submitted { id, cluster, name, time, .. } = &row.job;
    let time = time.to_zoned(jiff::tz::TimeZone::system()).strftime("%m-%d %H:%M");
    vec![id.clone(), cluster.clone(), name.clone(), time.to_string(), row.word(), row.run_id()]
}

fn as_json(row: &Row) -> serde_json::Value {
    let Submitted { id, cluster, kind, name, workers, time, .. } = &row.job;
    json!({
        "job": id,
        "cluster": cluster,
        "engine": kind.name,
        "experiment": name,
        "workers": workers,
        "submitted": time.to_string(),
        "state": row.word(),
        "is_over": row.state.as_ref().is_none_or(|state| state.is_over),
        "folder": row.place.folder,
        "run": row.run,
    })
}

/// Asks each engine once. One that does not answer is told, and hides no other.
fn rows(all: Vec<(Place, Submitted)>, kinds: &Kinds) -> Vec<Row> {
    let mut known: BTreeMap<String, Vec<(String, State)>> = BTreeMap::new();
    let engine = |job: &Submitted| serde_json::to_string(&job.kind).unwrap_or_default();
    for (_, job) in &all {
        if known.contains_key(&engine(job)) {
            continue;
        }
        let same = all.iter().filter(|(_, other)| other.kind == job.kind);
        let places: Vec<Place> = same.map(|(place, _)| place.clone()).collect();
        let states = states(job, &places, kinds).unwrap_or_else(|refusal| {
            to_stderr(&refusal.page());
            Vec::new()
        });
        known.insert(engine(job), states);
    }
    let row = |(place, job): (Place, Submitted)| {
        let state = known.get(&engine(&job)).and_then(|states| state_of(states, &place));
        let run = run_of(&place, &job);
        Row { place, job, state, run }
    };
    all.into_iter().map(row).collect()
}

fn state_of(states: &[(String, State)], place: &Place) -> Option<State> {
    states.iter().find(|(id, _)| *id == place.id).map(|(_, state)| state.clone())
}

/// The sweep of a job, or the run that it began: it notes by whom it was launched.
fn run_of(place: &Place, job: &Submitted) -> Option<PathBuf> {
    if job.workers.is_some() {
        return find_sweep(&Path::new(LOGS).join(&job.name));
    }
    let key = place.folder.file_name()?.to_str()?;
    session::run_of_job(&Path::new(LOGS).join(&job.name), key)
}

fn states(
    job: &Submitted,
    places: &[Place],
    kinds: &Kinds,
) -> Result<Vec<(String, State)>, ErrorPage> {
    let kind = kind_of(job, kinds)?;
    let answer = kind.list(places).run().map_err(|error| no_answer(&job.cluster, &error))?;
    Ok(kind.states(&answer))
}

/// The cluster that a job was submitted to. The file that says so may come from elsewhere, so it is
/// checked like a table of `ddprun.toml`.
fn kind_of(job: &Submitted, kinds: &Kinds) -> Result<Box<dyn Cluster>, ErrorPage> {
    let wrong = kinds.clusters.kind(&job.kind.name).map(|spec| spec.check(&job.kind.options));
    if let Some(Wrong { key, what, .. }) = wrong.unwrap_or_default().first() {
        let page = format!(
            "error: job {}: `{key}` of cluster `{}` in its job.json: {what}\n  do: if this folder \
             was sent to you, do not trust it; else remove the job's folder below `{LOGS}/.jobs`",
            job.id, job.cluster
        );
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let built = kinds.clusters.build(&job.kind);
    built.map_err(|error| ErrorPage::of(ExitCode::Refused, &error))
}

/// `ddprun cancel JOB ...`
pub(crate) fn cancel(args: &CancelArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let all: Result<Vec<_>, _> = args.jobs.iter().map(|id| named(id)).collect();
    for (place, job) in all? {
        let kind = kind_of(&job, kinds)?;
        kind.cancel(&place).run().map_err(|error| no_answer(&job.cluster, &error))?;
        let saves = kind.saves_when_cancelled();
        let told = if saves {
            "was told to save and to end"
        } else {
            "is stopped without saving: its newest checkpoint remains"
        };
        to_stderr(&format!("job {} of `{}` {told}", place.id, job.cluster));
        let object = || json!({ "job": place.id, "cluster": job.cluster, "saves": saves });
        answer("cancelled", object, String::new)?;
    }
    Ok(ExitCode::Ok)
}

fn named(id: &str) -> Result<(Place, Submitted), ErrorPage> {
    cluster::find(Path::new(LOGS), id).ok_or_else(|| {
        let all = cluster::all(Path::new(LOGS));
        let help = match closest(id, all.iter().map(|(place, _)| place.id.as_str())) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "see `ddprun jobs` for what was submitted from this folder".to_owned(),
        };
        ErrorPage::new(ExitCode::Refused, format!("error: there is no job `{id}`\n  do: {help}"))
    })
}

/// `ddprun logs [-f] [RUN | JOB]`
pub(crate) fn logs(args: &LogsArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let job = args.run.as_deref().and_then(|word| cluster::find(Path::new(LOGS), word));
    let Some((place, job)) = job else { return runs::logs(args) };
    match kind_of(&job, kinds)?.output(&place, args.follow) {
        Output::Call(call) if is_json() => {
            let mut is_read = Ok(true);
            let lines = call.lines(|lines| {
                is_read = runs::print_lines(lines);
                matches!(is_read, Ok(true))
            });
            is_read?;
            lines.map_err(|error| no_answer(&job.cluster, &error))?;
            Ok(ExitCode::Ok)
        }
        Output::Call(call) => {
            call.show().map_err(|error| no_answer(&job.cluster, &error))?;
            Ok(ExitCode::Ok)
        }
        Output::Files(paths) => show(&paths, args.follow, &place, &job, kinds),
    }
}

/// Prints the output of a job, and what is added to it until the job is over.
fn show(
    paths: &[PathBuf],
    follow: bool,
    place: &Place,
    job: &Submitted,
    kinds: &Kinds,
) -> Result<ExitCode, ErrorPage> {
    let mut shown = Shown::of(paths);
    if follow && let Some(code) = follow_job(&mut shown, place, job, kinds)? {
        return Ok(code);
    }
    if !paths.iter().any(|path| path.exists()) {
        let page = format!(
            "error: job {} has no output yet\n  do: wait for it with `ddprun logs -f {0}`",
            place.id
        );
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    shown.print(Follower::poll_to_the_end)?;
    Ok(ExitCode::Ok)
}

/// The output of a job: of all its workers, if it has several, each under its name.
struct Shown {
    followers: Vec<(String, Follower)>,
    /// Whose lines were printed last.
    last: Option<usize>,
}

impl Shown {
    fn of(paths: &[PathBuf]) -> Self {
        let name = |path: &Path| {
            path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let follower = |path: &PathBuf| (name(path), Follower::new(path));
        Self { followers: paths.iter().map(follower).collect(), last: None }
    }

    /// Prints what is new; false once no one reads it any more.
    fn print(
        &mut self,
        poll: impl Fn(&mut Follower) -> Result<News, files::Error>,
    ) -> Result<bool, ErrorPage> {
        let several = self.followers.len() > 1;
        for (index, (name, follower)) in self.followers.iter_mut().enumerate() {
            let news = poll(follower);
            let is_new = news.as_ref().is_ok_and(|news| !news.lines.is_empty());
            if several && is_new && self.last.replace(index) != Some(index) {
                to_stderr(&format!("==> {name} <=="));
            }
            if !print(news)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What the engine has said of a job.
#[derive(Default)]
struct Watched {
    word: String,
    /// Questions in a row that it did not answer.
    unanswered: u32,
}

impl Watched {
    /// Whether the job is over by this answer; prints a state that is new. An engine that has
    /// answered before may be silent for a while.
    fn is_over(
        &mut self,
        place: &Place,
        answer: Result<Vec<(String, State)>, ErrorPage>,
    ) -> Result<bool, ErrorPage> {
        let states = match answer {
            Ok(states) => states,
            Err(refusal) if self.word.is_empty() || self.unanswered == MAX_UNANSWERED => {
                return Err(refusal);
            }
            Err(refusal) => {
                if self.unanswered == 0 {
                    to_stderr(&refusal.page());
                }
                self.unanswered += 1;
                return Ok(false);
            }
        };
        self.unanswered = 0;
        // A job that its engine has forgotten is over.
        let state = state_of(&states, place).unwrap_or_else(|| State::over("over"));
        if state.word != self.word {
            to_stderr(&format!("job {}: {}", place.id, state.word));
            self.word.clone_from(&state.word);
        }
        Ok(state.is_over)
    }
}

/// Prints what a job says until it is over; an exit code if the user has seen enough before.
fn follow_job(
    shown: &mut Shown,
    place: &Place,
    job: &Submitted,
    kinds: &Kinds,
) -> Result<Option<ExitCode>, ErrorPage> {
    let stop = stop_flag()?;
    let mut asked: Option<Instant> = None;
    let mut watched = Watched::default();
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= QUESTION_INTERVAL) {
            asked = Some(Instant::now());
            if watched.is_over(place, states(job, std::slice::from_ref(place), kinds))? {
                return Ok(None);
            }
        }
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(Some(ExitCode::Interrupted));
        }
        if !shown.print(Follower::poll)? {
            return Ok(Some(ExitCode::Ok));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
