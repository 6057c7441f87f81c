//! Jobs of clusters: an experiment or a sweep -> a submitted job; submitted jobs -> how they stand.
//!
//! ```text
//! experiment + cluster ──Submission──▶ job, script ──submit──▶ logs/.jobs/KEY
//! logs/.jobs ──list──▶ JobStatus: the engine's state, the run that the job began
//! ```

mod submit;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use submit::{Submission, SubmitRequest};

use crate::cluster::{self, Cluster, Error, JobHandle, State, Submitted};
use crate::config::closest;
use crate::config::kind::OptionConflict;
use crate::kinds::Kinds;
use crate::record::to_stderr;
use crate::runs::{LOGS, find_sweep, summary, sweep_summary};
use crate::session;
use crate::user_error::{ErrorPage, ExitCode, UserError};

/// Questions in a row that an engine may leave unanswered while a job is followed: ten minutes.
const MAX_UNANSWERED: u32 = 120;

/// The page of an engine that gave no answer.
pub fn no_answer(cluster: &str, error: &Error) -> ErrorPage {
    let page = ErrorPage::new(error.exit_code(), format!("error: cluster `{cluster}`: {error}"));
    match error.help() {
        Some(help) => page.help(help),
        None => page,
    }
}

/// A job and its state.
pub struct JobStatus {
    pub handle: JobHandle,
    pub job: Submitted,
    /// `None` = the engine has forgotten it.
    pub state: Option<State>,
    /// The folder of the run or of the sweep that it began.
    pub run: Option<PathBuf>,
}

impl JobStatus {
    /// The state in the engine's words, or else in the run's.
    pub fn word(&self) -> String {
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

    /// The id of the run or sweep that it began; empty if there is none.
    pub fn run_id(&self) -> String {
        let name = self.run.as_ref().and_then(|run| run.file_name());
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Jobs that were submitted from this folder to the cluster `on`, or to any.
pub fn submitted(on: Option<&str>) -> Vec<(JobHandle, Submitted)> {
    let mut all = cluster::all(Path::new(LOGS));
    all.retain(|(_, job)| on.is_none_or(|name| name == job.cluster));
    all
}

/// The states of jobs. Asks each engine once; one that does not answer is reported on stderr, and
/// hides no other.
pub fn statuses(all: Vec<(JobHandle, Submitted)>, kinds: &Kinds) -> Vec<JobStatus> {
    let mut known: BTreeMap<String, Vec<(String, State)>> = BTreeMap::new();
    let engine = |job: &Submitted| serde_json::to_string(&job.kind).unwrap_or_default();
    for (_, job) in &all {
        if known.contains_key(&engine(job)) {
            continue;
        }
        let same = all.iter().filter(|(_, other)| other.kind == job.kind);
        let places: Vec<JobHandle> = same.map(|(place, _)| place.clone()).collect();
        let states = states(job, &places, kinds).unwrap_or_else(|refusal| {
            to_stderr(&refusal.page());
            Vec::new()
        });
        known.insert(engine(job), states);
    }
    let row = |(handle, job): (JobHandle, Submitted)| {
        let state = known.get(&engine(&job)).and_then(|states| state_of(states, &handle));
        let run = run_of(&handle, &job);
        JobStatus { handle, job, state, run }
    };
    all.into_iter().map(row).collect()
}

fn state_of(states: &[(String, State)], handle: &JobHandle) -> Option<State> {
    states.iter().find(|(id, _)| *id == handle.id).map(|(_, state)| state.clone())
}

/// The sweep of a job, or the run that it began, which records its launcher.
fn run_of(handle: &JobHandle, job: &Submitted) -> Option<PathBuf> {
    if job.workers.is_some() {
        return find_sweep(&Path::new(LOGS).join(&job.name));
    }
    let key = handle.folder.file_name()?.to_str()?;
    session::run_of_job(&Path::new(LOGS).join(&job.name), key)
}

/// The states of the jobs at `places` of the cluster of `job`, by their ids.
fn states(
    job: &Submitted,
    places: &[JobHandle],
    kinds: &Kinds,
) -> Result<Vec<(String, State)>, ErrorPage> {
    let kind = cluster_of(job, kinds)?;
    let answer = kind.list(places).run().map_err(|error| no_answer(&job.cluster, &error))?;
    Ok(kind.states(&answer))
}

/// The cluster that a job was submitted to. Its file may come from elsewhere, so it is checked like
/// a table of `ddprun.toml`.
pub fn cluster_of(job: &Submitted, kinds: &Kinds) -> Result<Box<dyn Cluster>, ErrorPage> {
    let wrong = kinds.clusters.kind(&job.kind.name).map(|spec| spec.check(&job.kind.options));
    if let Some(OptionConflict { key, what, .. }) = wrong.unwrap_or_default().first() {
        let what =
            format!("job {}: `{key}` of cluster `{}` in its job.json: {what}", job.id, job.cluster);
        return Err(ErrorPage::refused(
            what,
            format!(
                "if this folder was sent to you, do not trust it; else remove the job's folder below \
             `{LOGS}/.jobs`"
            ),
        ));
    }
    let built = kinds.clusters.build(&job.kind);
    built.map_err(|error| ErrorPage::of(ExitCode::Refused, &error))
}

/// The job `id` that was submitted from this folder.
pub fn named(id: &str) -> Result<(JobHandle, Submitted), ErrorPage> {
    cluster::find(Path::new(LOGS), id).ok_or_else(|| {
        let all = cluster::all(Path::new(LOGS));
        let help = match closest(id, all.iter().map(|(place, _)| place.id.as_str())) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "see `ddprun jobs` for what was submitted from this folder".to_owned(),
        };
        ErrorPage::refused(format!("there is no job `{id}`"), help)
    })
}

/// State of a job that is followed, as its engine answers.
#[derive(Default)]
pub struct JobWatch {
    word: String,
    /// Questions in a row that were not answered.
    unanswered: u32,
}

impl JobWatch {
    /// Asks the engine, and prints a state that is new. Returns true if the job is over. An engine
    /// that has answered before may be silent for a while.
    pub fn is_over(
        &mut self,
        handle: &JobHandle,
        job: &Submitted,
        kinds: &Kinds,
    ) -> Result<bool, ErrorPage> {
        let states = match states(job, std::slice::from_ref(handle), kinds) {
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
        let state = state_of(&states, handle).unwrap_or_else(|| State::over("over"));
        if state.word != self.word {
            to_stderr(&format!("job {}: {}", handle.id, state.word));
            self.word.clone_from(&state.word);
        }
        Ok(state.is_over)
    }
}
