//! A trial of a sweep -> a run of this program, one process per rank.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::checkpoint;
use crate::config::schema::Data;
use crate::config::sweep::Sweep;
use crate::config::{self, Loaded, Problem, Problems};
use crate::kinds::Kinds;
use crate::launch::{self, Console, LauncherEvent, Program, Start};
use crate::plan::{Facts, RunFolders, Targets};
use crate::record::JsonStream;
use crate::session::hooks::Hooks;
use crate::session::sweep_weights::SweepWeights;
use crate::session::{
    OtherData, Prepared, SINGLE_NODE, check_weights, clear, complete, draw, make_plan, measure,
    other_data, own_run, program, source_of, targets,
};
use crate::sweep::{self, Cause, Job, Length, Outcome, Trainer};
use crate::units::Rank;
use crate::user_error::{ErrorPage, ExitCode};

/// The variable by which CUDA sees some GPUs only.
pub const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";

/// Trains trials as runs of this program: one process per rank.
pub struct TrialRunner<'a> {
    kinds: &'a Kinds,
    base: &'a Path,
    program: Program,
    /// `CUDA_VISIBLE_DEVICES` of this process.
    visible_gpus: Option<String>,
    /// For the events of trials, with `--json`.
    stream: Option<JsonStream>,
    /// Held while a trial's folders and data are made.
    opening: Mutex<()>,
    /// Facts of data that has been counted: most trials have the same.
    surveyed: Mutex<Vec<(Surveyed, Facts)>>,
    /// Checkpoints from which trials start.
    weights: SweepWeights,
}

/// Problems of one trial in one line: its text is a command line that was never typed.
#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn in_words(problems: Problems) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// A refusal as the reason why a trial failed.
fn without_mark(refusal: &ErrorPage) -> String {
    refusal.page().trim_start_matches("error: ").to_owned()
}

/// Treatment of data other than those that a trial began with: one without a checkpoint was trained
/// on none.
fn on_other_data(folders: &RunFolders) -> OtherData {
    let has_none = checkpoint::all(&folders.checkpoints).is_ok_and(|all| all.is_empty());
    if has_none { OtherData::Begun } else { OtherData::Refused }
}

/// A failure, whose cause follows from the exit code.
fn failed(error: String, code: ExitCode) -> Outcome {
    let cause = match code {
        ExitCode::Numeric => Cause::Diverged,
        ExitCode::Storage => Cause::Storage,
        _ => Cause::Other,
    };
    Outcome::Failed { error, cause }
}

/// Everything that the facts about data depend on.
#[derive(PartialEq)]
struct Surveyed {
    data: Data,
    /// Name of the experiment.
    experiment: String,
    seed: u64,
    targets: Targets,
}

impl<'a> TrialRunner<'a> {
    /// A runner of the trials of the sweep in `folder`, which change the experiment `base`.
    /// `visible_gpus` is `CUDA_VISIBLE_DEVICES`.
    pub fn new(
        base: &'a Path,
        folder: &Path,
        visible_gpus: Option<String>,
        kinds: &'a Kinds,
    ) -> Result<Self, ErrorPage> {
        Ok(Self {
            kinds,
            base,
            program: program()?,
            visible_gpus,
            stream: JsonStream::open(),
            opening: Mutex::new(()),
            surveyed: Mutex::new(Vec::new()),
            weights: SweepWeights::of(folder),
        })
    }

    /// Writes the remaining events, so that what follows on stdout comes after them.
    pub fn end_stream(&mut self) {
        self.stream = None;
    }

    /// Refuses a metric that has no meaning for what the base learns, once for all trials.
    pub fn check_metric(&self, sweep: &Sweep, base: &Loaded, cores: usize) -> Result<(), Problem> {
        let decides = |key: &str| key.starts_with("loss.") || key.starts_with("data.");
        if sweep.search.parameters.iter().any(|parameter| decides(&parameter.key)) {
            return Ok(());
        }
        // Whatever else is wrong is that of a trial.
        let planned = self.facts(base, cores).map(|facts| make_plan(base, &facts, self.kinds));
        let Ok(Err(problems)) = planned else { return Ok(()) };
        let found = problems.iter().find(|problem| problem.key() == "checkpoint.monitor");
        found.map_or(Ok(()), |problem| Err(problem.clone()))
    }

    /// The base with `changes`, decided for `cores` and the GPUs of the machine that a trial has,
    /// without touching anything.
    fn decide(
        &self,
        changes: &[String],
        cores: usize,
        gpus: Option<&[usize]>,
    ) -> Result<Prepared, String> {
        let vocabulary = self.kinds.vocabulary();
        let mut loaded = config::load(self.base, changes, &vocabulary).map_err(in_words)?;
        let finish = |loaded: &mut Loaded| complete(loaded, &vocabulary, self.kinds);
        let completed = self.weights.hold(&mut loaded, finish);
        completed.map_err(|refusal| without_mark(&refusal))?;
        let mut facts = self.facts(&loaded, cores).map_err(|refusal| without_mark(&refusal))?;
        if let (Some(all), Some(own)) = (&mut facts.gpus, gpus) {
            *all = own.iter().filter_map(|gpu| all.get(*gpu).cloned()).collect();
        }
        let plan = make_plan(&loaded, &facts, self.kinds).map_err(in_words)?;
        let source = source_of(&plan, self.kinds).map_err(|refusal| without_mark(&refusal))?;
        Ok(Prepared { loaded, plan, facts, source })
    }

    /// Facts of this machine and the data, for a trial that may use `cores`.
    fn facts(&self, loaded: &Loaded, cores: usize) -> Result<Facts, ErrorPage> {
        let experiment = &loaded.experiment;
        let targets = targets(loaded, self.kinds)?;
        let key = Surveyed {
            data: experiment.data.clone(),
            experiment: loaded.name().to_owned(),
            seed: experiment.experiment.seed,
            targets,
        };
        let mut surveyed = self.surveyed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, facts)) = surveyed.iter().find(|(known, _)| *known == key) {
            return Ok(Facts { cores, ..facts.clone() });
        }
        let facts = measure(loaded, SINGLE_NODE, None, self.kinds)?;
        surveyed.push((key, facts.clone()));
        Ok(Facts { cores, ..facts })
    }

    /// This program, for ranks that see only these GPUs, numbered from 0; without any, all that
    /// this process sees.
    fn program_on(&self, gpus: &[usize]) -> Program {
        let mut program = self.program.clone();
        if !gpus.is_empty() {
            let names = sweep::visible_gpus(gpus, self.visible_gpus.as_deref());
            program.env.push((VISIBLE_GPUS.into(), names.into()));
        }
        program
    }

    fn run(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Result<Outcome, String> {
        let prepared = self.decide(&job.changes, job.cores, Some(&job.gpus))?;
        if !job.resume {
            check_weights(&prepared.loaded, &prepared.plan, self.kinds).map_err(in_words)?;
        }
        let run = {
            // Two trials that begin together must not both generate the same data.
            let _alone = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = self.weights.keep() {
                return Ok(failed(error.to_string(), ExitCode::Storage));
            }
            match own_run(job.folders.clone(), &prepared, on_other_data(&job.folders)) {
                Ok(run) => run,
                Err(refusal) => return Ok(failed(without_mark(&refusal), refusal.code())),
            }
        };
        let hooks = Hooks::start(&prepared.plan, &run.folders);
        let program = self.program_on(&job.gpus);
        let program = match &hooks {
            Some(hooks) if hooks.wants_events() => program.telling_events(),
            _ => program,
        };
        let start = Start {
            resume: job.resume,
            program,
            console: Console::File,
            smaller: prepared.smaller(self.kinds).map_err(|refusal| without_mark(&refusal))?,
            waker: Some(job.waker.clone()),
        };
        let mut on_event = |event: LauncherEvent| match event {
            LauncherEvent::Progress { rank: Rank(0), step, .. } => on_step(step),
            LauncherEvent::Recorded(event) => {
                if let Some(hooks) = &hooks {
                    hooks.calls().on_event(&event);
                }
                if let Some(stream) = &self.stream {
                    stream.event(event, Some(&run.folders.id));
                }
            }
            _ => {}
        };
        let ended = launch::run(&prepared.plan, &run.folders, &start, &mut on_event);
        clear(&run.folders);
        if let Some(hooks) = hooks {
            match &ended {
                Ok(end) => hooks.end_trial(end.exit_code(), None),
                Err(failure) => hooks.end_trial(failure.exit_code(), Some(&failure.to_string())),
            }
        }
        Ok(match ended {
            Ok(launch::Ended::Completed | launch::Ended::Missed) => Outcome::Done,
            Ok(launch::Ended::Stopped | launch::Ended::Interrupted { .. }) => Outcome::Stopped,
            Err(failure) => failed(failure.to_string(), failure.exit_code()),
        })
    }
}

impl Trainer for TrialRunner<'_> {
    fn check(&self, changes: &[String]) -> Result<Length, String> {
        let prepared = self.decide(changes, 1, None)?;
        check_weights(&prepared.loaded, &prepared.plan, self.kinds).map_err(in_words)?;
        let length = prepared.plan.length;
        Ok(Length { steps_per_epoch: length.steps_per_epoch, total_steps: length.total_steps })
    }

    fn train(&self, job: &Job, on_step: &mut dyn FnMut(u64)) -> Outcome {
        self.run(job, on_step).unwrap_or_else(|error| failed(error, ExitCode::Refused))
    }

    fn other_data(&self, folders: &RunFolders, changes: &[String]) -> Vec<String> {
        // What cannot be decided now, the trials say.
        let prepared = self.decide(changes, 1, None);
        prepared.map(|prepared| other_data(&folders.logs, &prepared)).unwrap_or_default()
    }

    fn report(&self, job: &Job) {
        if let Ok(prepared) = self.decide(&job.changes, job.cores, Some(&job.gpus)) {
            draw(&prepared.plan, &job.folders);
        }
    }
}
