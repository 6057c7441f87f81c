//! `ddprun submit`, `ddprun jobs`, `ddprun cancel`, and the output of a job.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cli::runs::{self, POLL_INTERVAL, aligned, print, stop_flag};
use crate::cli::runs_args::{CancelArgs, JobsArgs, LogsArgs, SubmitArgs};
use crate::cli::{answer, answers, verbatim};
use crate::cluster::{self, JobHandle, Output, Submitted};
use crate::files::{self, Follower, NewLines};
use crate::jobs::{self, JobStatus, JobWatch, Submission, SubmitRequest, cluster_of, no_answer};
use crate::kinds::Kinds;
use crate::record::{is_json, to_stderr};
use crate::runs::LOGS;
use crate::user_error::{ErrorPage, ExitCode};

/// Time between two questions to an engine.
const QUESTION_INTERVAL: Duration = Duration::from_secs(5);

/// `ddprun submit FILE [key=value ...] --on NAME [--workers N] [--print]`
pub(crate) fn submit(args: &SubmitArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let request = SubmitRequest {
        experiment: &args.experiment,
        changes: &args.changes,
        on: &args.on,
        cluster_files: cluster_files(&args.experiment),
        workers: args.workers,
        print: args.print,
    };
    let submission = Submission::prepare(&request, kinds)?;
    let cluster = &submission.described;
    if args.print {
        let script = submission.script();
        let object = || json!({ "cluster": cluster.name, "script": script });
        return verbatim("script", object, || script.clone());
    }
    let id = submission.submit(kinds)?;
    let name = &submission.job.name;
    let on = format!("`{}` ({})", cluster.name, cluster.kind.name);
    to_stderr(&format!(
        "submitted `{name}` to {on}, {}\n  `ddprun jobs` shows its state, `ddprun logs -f {id}` \
         follows it, `ddprun cancel {id}` stops it",
        submission.size()
    ));
    let object = || json!({ "job": id, "cluster": cluster.name, "experiment": name });
    answer("submitted", object, || format!("{id}\n"))
}

/// Files that may describe a cluster, the nearest to the experiment first.
fn cluster_files(experiment: &Path) -> Vec<PathBuf> {
    let beside = experiment.parent().unwrap_or(Path::new("")).join("ddprun.toml");
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
    let of_user = config.map(|folder| folder.join("ddprun/clusters.toml"));
    [beside, "ddprun.toml".into()].into_iter().chain(of_user).collect()
}

/// `ddprun jobs [--on NAME]`
pub(crate) fn jobs(args: &JobsArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let all = jobs::submitted(args.on.as_deref());
    if all.is_empty() {
        to_stderr("no job was submitted from this folder: `ddprun submit EXPERIMENT --on NAME`");
        return Ok(ExitCode::Ok);
    }
    let rows = jobs::statuses(all, kinds);
    let objects = || rows.iter().map(|row| ("job", as_json(row))).collect();
    answers(objects, || {
        let head = ["job", "cluster", "experiment", "submitted", "state", "run"];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        table.extend(rows.iter().map(cells));
        aligned(&table, head.len())
    })
}

fn cells(row: &JobStatus) -> Vec<String> {
    let Submitted { id, cluster, name, time, .. } = &row.job;
    let time = time.to_zoned(jiff::tz::TimeZone::system()).strftime("%m-%d %H:%M");
    vec![id.clone(), cluster.clone(), name.clone(), time.to_string(), row.word(), row.run_id()]
}

fn as_json(row: &JobStatus) -> serde_json::Value {
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
        "folder": row.handle.folder,
        "run": row.run,
    })
}

/// `ddprun cancel JOB ...`
pub(crate) fn cancel(args: &CancelArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let all: Result<Vec<_>, _> = args.jobs.iter().map(|id| jobs::named(id)).collect();
    for (place, job) in all? {
        let kind = cluster_of(&job, kinds)?;
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

/// `ddprun logs [-f] [RUN | JOB]`
pub(crate) fn logs(args: &LogsArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let job = args.run.as_deref().and_then(|word| cluster::find(Path::new(LOGS), word));
    let Some((place, job)) = job else { return runs::logs(args) };
    match cluster_of(&job, kinds)?.output(&place, args.follow) {
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
    handle: &JobHandle,
    job: &Submitted,
    kinds: &Kinds,
) -> Result<ExitCode, ErrorPage> {
    let mut shown = Shown::of(paths);
    if follow && let Some(code) = follow_job(&mut shown, handle, job, kinds)? {
        return Ok(code);
    }
    if !paths.iter().any(|path| path.exists()) {
        let what = format!("job {} has no output yet", handle.id);
        return Err(ErrorPage::refused(
            what,
            format!("wait for it with `ddprun logs -f {}`", handle.id),
        ));
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
        poll: impl Fn(&mut Follower) -> Result<NewLines, files::Error>,
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

/// Prints the output of a job until it is over. Returns an exit code if the user stops before.
fn follow_job(
    shown: &mut Shown,
    handle: &JobHandle,
    job: &Submitted,
    kinds: &Kinds,
) -> Result<Option<ExitCode>, ErrorPage> {
    let stop = stop_flag()?;
    let mut last_question: Option<Instant> = None;
    let mut watch = JobWatch::default();
    loop {
        if last_question.is_none_or(|time| time.elapsed() >= QUESTION_INTERVAL) {
            last_question = Some(Instant::now());
            if watch.is_over(handle, job, kinds)? {
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
