//! `ddprun sweep`: a sweep whose trials are DDP runs of this program.

use std::path::Path;
use std::time::Instant;

use crate::cli::answer;
use crate::cli::args::SweepArgs;
use crate::cli::node_args::role;
use crate::config;
use crate::files;
use crate::kinds::Kinds;
use crate::launch::rank_env::ExternalRank;
use crate::launch::{self, Role};
use crate::record::{print_error, screen, to_stderr};
use crate::runs::{self, find_range_test, find_sweep};
use crate::session::{
    TrialRunner, VISIBLE_GPUS, earlier_results, gpus, load_sweep, number_sweep, one_run,
};
use crate::sweep::{self, JournalState, Machine, State, SweepEnd, SweepRequest, Trial};
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
    let (mut sweep, base) = load_sweep(&path, &args.words, kinds)?;
    if let Some(first) = number_sweep(&mut sweep, &args.words, &base, args.extend)? {
        to_stderr(&format!(
            "`{first}` is a sweep of other values or of another experiment: this one is `{}`",
            sweep.name
        ));
    }
    let earlier = earlier_results(&args.from, &sweep, &base, kinds)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let order = SweepRequest {
        sweep: &sweep,
        base: &base,
        methods: &kinds.methods,
        pruners: &kinds.pruners,
        machine: Machine { cores, gpus: gpus().map_or(0, |gpus| gpus.len()) },
        deadline: sweep.time.map(|time| Instant::now() + time),
        extend: args.extend,
        retry_failed: args.retry_failed,
        earlier: &earlier,
        screen: screen(),
    };
    let visible = std::env::var_os(VISIBLE_GPUS).map(|names| names.to_string_lossy().into_owned());
    let mut trainer = TrialRunner::new(&sweep.base, &order.folder(), visible, kinds)?;
    let method = order.method()?;
    let ended = if let Some(range) = method.range_test() {
        if args.share {
            return Err(one_run());
        }
        if !args.from.is_empty() {
            let what = "a learning-rate range test starts from no earlier results";
            return Err(ErrorPage::refused(what, "leave out `--from`"));
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
            let vocabulary = kinds.vocabulary();
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
        let JournalState { subject, trials, .. } = &status.story;
        let ranking = subject.ranking(&kinds.pruners);
        let summary = || sweep::summary(subject, &ranking, trials);
        answer("sweep", summary, || status.table(&ranking))?;
        print_end(ended, &order.folder(), &status.story, args.share);
        ended
    };
    Ok(match ended {
        SweepEnd::Done { failed: 0 }
        | SweepEnd::Extended
        | SweepEnd::Reached
        | SweepEnd::NoneBetter
        | SweepEnd::OutOfTime => ExitCode::Ok,
        SweepEnd::Done { .. } | SweepEnd::TooManyFailures => ExitCode::Expectation,
        SweepEnd::Stopped { interrupted: true } => ExitCode::Interrupted,
        SweepEnd::Stopped { interrupted: false } => ExitCode::Preempted,
    })
}

/// The refusal of another launcher, which starts several processes that do not know of each other.
fn launched(place: &ExternalRank) -> ErrorPage {
    let what = format!(
        "another launcher has started {} processes of this command, and a sweep starts its \
         ranks itself",
        place.world
    );
    ErrorPage::refused(
        what,
        "start `ddprun sweep` without a launcher, or with `--share`: each process then trains \
         trials of its own",
    )
}

/// `gpu-07-4242-5f0c93ab`: of this process alone, also where machines number processes alike.
fn worker_name() -> String {
    format!("{}-{}-{:08x}", launch::host(), std::process::id(), files::random() as u32)
}

/// Prints how the sweep ended, and where everything is.
fn print_end(ended: SweepEnd, folder: &Path, story: &JournalState, is_shared: bool) {
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
        SweepEnd::Stopped { .. } if is_shared => {
            to_stderr("stopped; other workers continue the sweep, and the same command rejoins it");
        }
        SweepEnd::Stopped { .. } => to_stderr("stopped; run the same command to continue"),
        SweepEnd::TooManyFailures => {
            let page = "error: more trials failed than `sweep.max_failures` allows";
            let help =
                "look at `console.log` and `failure.json` of a failed trial, or raise the limit";
            print_error(&ErrorPage::new(ExitCode::Expectation, page).help(help));
        }
        SweepEnd::OutOfTime => {
            to_stderr("`sweep.time` is over; run the same command to continue");
        }
        SweepEnd::Reached => to_stderr("the sweep ends, as a trial has reached `sweep.until`"),
        SweepEnd::NoneBetter => {
            to_stderr(
                "the sweep ends, as `sweep.patience` settings in a row brought nothing better",
            );
        }
        SweepEnd::Done { .. } | SweepEnd::Extended => {}
    }
    if let Some(advice) = advice(&story.trials, retry) {
        to_stderr(&advice);
    }
}

/// Advice on retrying failed trials: by the same command, changed by the words `retry`.
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

/// The refusal of an unknown sweep, with what may have been meant.
pub(crate) fn no_sweep(word: &Path) -> ErrorPage {
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
