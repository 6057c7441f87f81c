//! `ddprun sweep`: a sweep whose trials are DDP runs of this program.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::checkpoint;
use crate::cli::answer;
use crate::cli::args::SweepArgs;
use crate::cli::sweep_weights::SweepWeights;
use crate::cli::train::role;
use crate::config::schema::Data;
use crate::config::sweep::Sweep;
use crate::config::{self, Loaded, Problem, Problems};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::rank_env::Foreign;
use crate::launch::{self, Console, Note, Program, Role, Start};
use crate::plan::{Facts, RunFolders, Targets};
use crate::record::{JsonStream, complain, screen, to_stderr};
use crate::runs::{self, find_range_test, find_sweep};
use crate::session::{
    self, ALONE, OtherData, Prepared, check_weights, complete, follow_target, gpus, measure,
    other_data, own_run, planned, refuse_other_files, source_of, targets, vocabulary,
};
use crate::sweep::{
    self, Cause, Ended, Job, Length, Machine, Order, Outcome, State, Story, Trainer, Trial,
};
use crate::units::Rank;
use crate::user_error::{ErrorPage, ExitCode};

/// Runs a sweep or goes on with it; `--status` only looks.
pub(crate) fn sweep(args: &SweepArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    if let Some(folder) = &args.status {
        return show_status(folder, kinds);
    }
    if let Role::Foreign(place) = role()?
        && !args.share
    {
        return Err(launched(&place));
    }
    let path = args.file.clone().unwrap_or_default();
    let (mut sweep, base) = load(&path, &args.words, kinds)?;
    if let Some(first) = number(&mut sweep, &args.words, &base, args.extend)? {
        to_stderr(&format!(
            "`{first}` is a sweep of other values or of another experiment: this one is `{}`",
            sweep.name
        ));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let order = Order {
        sweep: &sweep,
        base: &base,
        methods: &kinds.methods,
        pruners: &kinds.pruners,
        machine: Machine { cores, gpus: gpus().map_or(0, |gpus| gpus.len()) },
        extend: args.extend,
        retry_failed: args.retry_failed,
        screen: screen(),
    };
    let mut trainer = Ddp {
        kinds,
        base: &sweep.base,
        program: session::program()?,
        stream: JsonStream::open(),
        opening: Mutex::new(()),
        surveyed: Mutex::new(Vec::new()),
        weights: SweepWeights::of(&order.folder()),
    };
    let method = order.method()?;
    let ended = if let Some(range) = method.range_test() {
        if args.share {
            return Err(one_run());
        }
        let (ended, found) = sweep::run_range_test(&order, range, &trainer)?;
        trainer.end_stream();
        if let Some(found) = found {
            let object = || serde_json::to_value(&found).unwrap_or_default();
            answer("range_test", object, || sweep::range_test_words(&found))?;
            to_stderr(&sweep::range_test_files(&order.folder(), &found));
        } else {
            to_stderr("stopped; the same command begins the range test again");
        }
        ended
    } else {
        trainer.check_metric(&sweep, &base, cores).map_err(|problem| {
            let vocabulary = vocabulary(kinds);
            ErrorPage::from(config::sweep::metric_problem(
                &path,
                &args.words,
                &vocabulary,
                &problem,
            ))
        })?;
        let ran = if args.share {
            sweep::run_shared(order, &trainer, &worker_name(), &to_stderr)
        } else {
            sweep::run(order, &trainer)
        };
        trainer.end_stream();
        let (ended, story) = ran?;
        let status = sweep::Status::of(story, &order.folder());
        let Story { subject, trials, .. } = &status.story;
        let ranking = subject.ranking(&kinds.pruners);
        let summary = || sweep::summary(subject, &ranking, trials);
        answer("sweep", summary, || sweep::table(&status, &ranking))?;
        say_end(ended, &order.folder(), &status.story, args.share);
        ended
    };
    Ok(match ended {
        Ended::Done { failed: 0 } | Ended::Extended => ExitCode::Ok,
        Ended::Done { .. } | Ended::TooManyFailures => ExitCode::Expectation,
        Ended::Stopped { interrupted: true } => ExitCode::Interrupted,
        Ended::Stopped { interrupted: false } => ExitCode::Preempted,
    })
}

/// Another launcher starts several processes of a sweep, which do not know of each other.
fn launched(place: &Foreign) -> ErrorPage {
    let page = format!(
        "error: another launcher has started {} processes of this command, and a sweep starts its \
         ranks itself\n  do: start `ddprun sweep` without a launcher, or with `--share`: each \
         process then trains trials of its own",
        place.world
    );
    ErrorPage::new(ExitCode::Refused, page)
}

/// The sweep that several machines are to share, as each of them will read it, and its folder.
pub(crate) fn shared(
    path: &Path,
    words: &[String],
    kinds: &Kinds,
) -> Result<(Sweep, PathBuf), ErrorPage> {
    let (mut sweep, base) = load(path, words, kinds)?;
    number(&mut sweep, words, &base, false)?;
    let method = kinds.methods.build(&sweep.search.method);
    let method = method.map_err(|error| ErrorPage::of(ExitCode::Bug, &error))?;
    if method.range_test().is_some() {
        return Err(one_run());
    }
    let folder = base.experiment.logging.dir.join(&sweep.name);
    Ok((sweep, folder))
}

/// The sweep and its base. A metric that is not given is the one that the base monitors, which may
/// follow from the target of its data.
fn load(path: &Path, words: &[String], kinds: &Kinds) -> Result<(Sweep, Loaded), ErrorPage> {
    refuse_other_files(path)?;
    let vocabulary = vocabulary(kinds);
    let (mut sweep, mut base) = config::sweep::load(path, words, &vocabulary)?;
    let text = files::read_to_string(path).unwrap_or_default();
    let file: toml::Table = text.parse().unwrap_or_default();
    let is_given = file.get("sweep").is_some_and(|sweep| sweep.get("metric").is_some())
        || words.iter().any(|word| word.trim_start_matches('+').starts_with("sweep.metric="));
    // A range test compares nothing by a metric.
    if !is_given && sweep.search.method.name != "lr_range" {
        // The base of a sweep already monitors its metric.
        let alone = config::load(&sweep.base, &sweep.changes, &vocabulary);
        let mut alone = alone?;
        follow_target(&mut alone, kinds);
        let monitored = &alone.experiment.checkpoint.monitor;
        if *monitored != sweep.search.metric {
            let metric = format!("sweep.metric={monitored}");
            let words: Vec<String> = words.iter().cloned().chain([metric]).collect();
            (sweep, base) = config::sweep::load(path, &words, &vocabulary)?;
        }
    }
    follow_target(&mut base, kinds);
    Ok((sweep, base))
}

/// Numbers a sweep that only the command line describes, and does not name, where its usual name is
/// that of another sweep: `resnet-sweep-2`. The same command finds it again. Returns that name.
fn number(
    sweep: &mut Sweep,
    words: &[String],
    base: &Loaded,
    extend: bool,
) -> Result<Option<String>, ErrorPage> {
    let is_named = words.iter().any(|word| word.trim_start_matches('+').starts_with("sweep.name="));
    let is_file = sweep.base != sweep.path;
    let usual = sweep.name.clone();
    let mut number = 1;
    while !is_named && !is_file && is_taken(sweep, base, extend)? {
        number += 1;
        sweep.name = format!("{usual}-{number}");
    }
    Ok((number > 1).then_some(usual))
}

fn is_taken(sweep: &Sweep, base: &Loaded, extend: bool) -> Result<bool, ErrorPage> {
    sweep::is_taken(sweep, base, extend).map_err(|error| ErrorPage::from_error(&error))
}

/// Refuses the folder of a sweep that begins if other runs are in it.
pub(crate) fn refuse_runs(folder: &Path) -> Result<(), ErrorPage> {
    sweep::refuse_runs(folder).map_err(|error| ErrorPage::from_error(&error))
}

/// A range test has no trials that could be shared.
fn one_run() -> ErrorPage {
    let page = "error: a learning-rate range test is one run, and only the trials of a \
                sweep can be shared\n  do: run `ddprun sweep` without `--share`";
    ErrorPage::new(ExitCode::Refused, page)
}

/// `gpu-07-4242-5f0c93ab`: of this process alone, also where machines number processes alike.
fn worker_name() -> String {
    format!("{}-{}-{:08x}", launch::host(), std::process::id(), files::random() as u32)
}

/// Last words: how it ended, and where everything is.
fn say_end(ended: Ended, folder: &Path, story: &Story, is_shared: bool) {
    let best = sweep::best(&story.trials, story.subject.goal);
    if best.is_some() {
        let names = format!("{}, {}, {}", sweep::BEST, sweep::CSV, sweep::JSON);
        to_stderr(&format!("{names} and pictures are in `{}`", folder.display()));
    }
    // `--share` takes no flag for it: other workers may be training the same trials.
    let retry = if is_shared {
        "without `--share`, with `--retry-failed`"
    } else {
        "with `--retry-failed`"
    };
    match ended {
        Ended::Stopped { .. } if is_shared => {
            to_stderr("stopped; other workers continue the sweep, and the same command rejoins it");
        }
        Ended::Stopped { .. } => to_stderr("stopped; run the same command to continue"),
        Ended::TooManyFailures => complain(&ErrorPage::new(
            ExitCode::Expectation,
            "error: more trials failed than `sweep.max_failures` allows\n  \
             do: look at `console.log` and `failure.json` of a failed trial, or raise the limit",
        )),
        Ended::Done { .. } | Ended::Extended => {}
    }
    if let Some(advice) = advice(&story.trials, retry) {
        to_stderr(&advice);
    }
}

/// How failed trials are tried again: by the same command, changed by the words `retry`.
fn advice(trials: &[Trial], retry: &str) -> Option<String> {
    let failed = trials.iter().filter(|trial| trial.state == State::Failed);
    let (full, others): (Vec<&Trial>, Vec<&Trial>) = failed.partition(|trial| trial.lacked_storage);
    match (full.len(), others.len()) {
        (0, 0) => None,
        (0, _) => Some(format!("the same command {retry} retries failed trials")),
        (n, _) => Some(format!(
            "{n} of the trials failed to write; free disk space, then the same command retries them"
        )),
    }
}

/// `ddprun sweep --status FOLDER`; a name is enough for a folder in `logs/`.
pub(crate) fn show_status(folder: &Path, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let Some(found) = find_sweep(folder) else {
        let test = find_range_test(folder).ok_or_else(|| no_sweep(folder))?;
        let object = || serde_json::to_value(sweep::read_range_test(&test)).unwrap_or_default();
        return answer("range_test", object, || sweep::range_test_page(&test));
    };
    let status = sweep::status(&found)?;
    let (subject, trials) = (&status.story.subject, &status.story.trials);
    let ranking = subject.ranking(&kinds.pruners);
    let summary = || sweep::summary(subject, &ranking, trials);
    answer("sweep", summary, || status.page(&kinds.pruners))
}

/// No sweep is called so: what may have been meant.
fn no_sweep(word: &Path) -> ErrorPage {
    let error = sweep::Error::NoSweep { folder: word.to_owned() };
    let name = word.to_string_lossy();
    let help = if runs::named_run(Some(&name)).is_ok() {
        Some(format!("see it with `ddprun report {name}`: `{name}` is a run, not a sweep"))
    } else {
        let near = runs::nearest_sweep(&name);
        near.map(|near| format!("did you mean `{near}`?"))
    };
    let page = ErrorPage::from_error(&error);
    match help {
        Some(help) => page.help(help),
        None => page,
    }
}

/// Trials as runs of this program: one process per rank.
struct Ddp<'a> {
    kinds: &'a Kinds,
    base: &'a Path,
    program: Program,
    /// For the events of trials, with `--json`.
    stream: Option<JsonStream>,
    /// Held while a trial's folders and data are made.
    opening: Mutex<()>,
    /// Data that has been counted: most trials have the same.
    surveyed: Mutex<Vec<(Surveyed, Facts)>>,
    /// What trials start from.
    weights: SweepWeights,
}

/// Problems of one trial, without pictures: its text is a command line that was never typed.
#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn in_words(problems: Problems) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// A refusal as the reason for which a trial failed.
fn without_mark(refusal: &ErrorPage) -> String {
    refusal.page().trim_start_matches("error: ").to_owned()
}

/// What a trial does about data other than those that it began with: one without a checkpoint was
/// trained on none.
fn on_other_data(folders: &RunFolders) -> OtherData {
    let has_none = checkpoint::all(&folders.checkpoints).is_ok_and(|all| all.is_empty());
    if has_none { OtherData::Begun } else { OtherData::Refused }
}

/// A failure, of which the exit code says what it means.
fn failed(error: String, code: ExitCode) -> Outcome {
    let cause = match code {
        ExitCode::Numeric => Cause::Diverged,
        ExitCode::Storage => Cause::Storage,
        _ => Cause::Other,
    };
    Outcome::Failed { error, cause }
}

/// What the facts about data depend on.
#[derive(PartialEq)]
struct Surveyed {
    data: Data,
    /// Name of the experiment.
    experiment: String,
    seed: u64,
    targets: Targets,
}

impl Ddp<'_> {
    /// All events have been said: what follows on stdout comes after them.
    fn end_stream(&mut self) {
        self.stream = None;
    }

    /// Refuses a metric that has no meaning for what the base learns, once for all trials.
    fn check_metric(&self, sweep: &Sweep, base: &Loaded, cores: usize) -> Result<(), Problem> {
        let decides = |key: &str| key.starts_with("loss.") || key.starts_with("data.");
        if sweep.search.parameters.iter().any(|parameter| decides(&parameter.key)) {
            return Ok(());
        }
        // Whatever else is wrong is that of a trial.
        let planned = self.facts(base, cores).map(|facts| planned(base, &facts, self.kinds));
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
        let mut loaded =
            config::load(self.base, changes, &vocabulary(self.kinds)).map_err(in_words)?;
        self.weights.hold(&mut loaded, |loaded| complete(loaded, self.kinds)).map_err(in_words)?;
        let mut facts = self.facts(&loaded, cores).map_err(|refusal| without_mark(&refusal))?;
        if let (Some(all), Some(own)) = (&mut facts.gpus, gpus) {
            *all = own.iter().filter_map(|gpu| all.get(*gpu).cloned()).collect();
        }
        let plan = planned(&loaded, &facts, self.kinds).map_err(in_words)?;
        let source = source_of(&plan, self.kinds).map_err(|refusal| without_mark(&refusal))?;
        Ok(Prepared { loaded, plan, facts, source })
    }

    /// What was found on this machine and in the data, of which a trial may use `cores`.
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
        let facts = measure(loaded, ALONE, None, self.kinds)?;
        surveyed.push((key, facts.clone()));
        Ok(Facts { cores, ..facts })
    }

    /// This program, whose ranks see these GPUs only, numbered from 0; all that we see where none
    /// are given.
    fn program_on(&self, gpus: &[usize]) -> Program {
        const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
        let mut program = self.program.clone();
        if !gpus.is_empty() {
            let ours = std::env::var_os(VISIBLE).map(|names| names.to_string_lossy().into_owned());
            let names = sweep::visible_gpus(gpus, ours.as_deref());
            program.env.push((VISIBLE.into(), names.into()));
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
        let start = Start {
            resume: job.resume,
            program: self.program_on(&job.gpus),
            console: Console::File,
            smaller: prepared.smaller(self.kinds).map_err(|refusal| without_mark(&refusal))?,
            waker: Some(job.waker.clone()),
        };
        let mut hear = |note: Note| match note {
            Note::Progress { rank: Rank(0), step, .. } => on_step(step),
            Note::Recorded(event) => {
                if let Some(stream) = &self.stream {
                    stream.event(event, Some(&run.folders.id));
                }
            }
            _ => {}
        };
        let ended = launch::run(&prepared.plan, &run.folders, &start, &mut hear);
        session::clear(&run.folders);
        Ok(match ended {
            Ok(launch::Ended::Completed | launch::Ended::Missed) => Outcome::Done,
            Ok(launch::Ended::Stopped | launch::Ended::Interrupted { .. }) => Outcome::Stopped,
            Err(failure) => failed(failure.to_string(), failure.exit_code()),
        })
    }
}

impl Trainer for Ddp<'_> {
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
            session::draw(&prepared.plan, &job.folders);
        }
    }
}
