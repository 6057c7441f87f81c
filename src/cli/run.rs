//! The command line: one function per verb, and the exit code.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, FromArgMatches};
use serde_json::json;

use crate::cli::args::{Args, InitArgs, SweepArgs, Verb};
#[cfg(feature = "dashboard")]
use crate::cli::dashboard;
#[cfg(feature = "clusters")]
use crate::cli::jobs;
use crate::cli::{
    answer, ask_tell, check, checkpoint, doctor, evaluate, explain, in_color, inspect, last_words,
    node_args, output, predict, print_page, runs, sample, serve_model, sweep, train, try_run,
    usage, verbatim,
};
use crate::collective::mpi;
use crate::failpoint;
use crate::files;
use crate::init::{self, InitRequest, WrittenExperiment};
use crate::kinds::Kinds;
use crate::launch::{self, Role, rank_env};
use crate::record::{print_error, say_error, to_stderr};
use crate::user_error::{ErrorPage, ExitCode};

/// Runs the command line `arguments` (the first is the program's name) with the models of `kinds`.
pub fn run(arguments: impl IntoIterator<Item = OsString>, kinds: &Kinds) -> process::ExitCode {
    launch::limit_threads();
    launch::hide_backtraces_of_errors();
    launch::learn_ends_of_children();
    outlive_file_limits();
    let mut line: Vec<OsString> = arguments.into_iter().collect();
    output::take_json_flag(&mut line);
    if begins_runs(&line) {
        launch::end_before_start(to_stderr);
    }
    let matches = Args::command().try_get_matches_from(&line);
    let parsed = matches.and_then(|matches| Ok((Args::from_arg_matches(&matches)?, matches)));
    let (args, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return no_command(&error, &line, kinds),
    };
    if let Some(twice) = kinds.taken().first() {
        let help = "give yours another name: an experiment means the one that was there before";
        let what = format!("this program has a second {twice}");
        print_error(&ErrorPage::refused(what, help));
        return ended(ExitCode::Refused);
    }
    if let Err(wrong) = failpoint::check() {
        print_error(&ErrorPage::new(ExitCode::Refused, format!("error: {wrong}")));
        return ended(ExitCode::Refused);
    }
    let checked = usage::refuse_urls(&Args::command(), &matches, &line);
    let code = match checked.and_then(|()| dispatch_caught(args, kinds)) {
        Ok(code) => code,
        Err(refusal) => {
            if !is_printed_by_another(refusal.code()) {
                print_page(&refusal.drawn(in_color()));
                say_error(&refusal);
            }
            refusal.code()
        }
    };
    match code {
        ExitCode::Ok | ExitCode::Expectation | ExitCode::Preempted | ExitCode::Interrupted => {
            mpi::leave();
        }
        failed => mpi::abort(failed.into()),
    }
    ended(code)
}

fn ended(code: ExitCode) -> process::ExitCode {
    u8::from(code).into()
}

/// True if another rank of this machine prints the same refusal: the ranks of a launcher have one
/// command line, and read the same files.
fn is_printed_by_another(code: ExitCode) -> bool {
    let is_common =
        matches!(code, ExitCode::Ok | ExitCode::Refused | ExitCode::Data | ExitCode::Checkpoint);
    let role = rank_env::from_environment();
    is_common && matches!(role, Ok(Role::Foreign(place)) if !place.local_rank.is_first())
}

/// True if a command line starts a run or a sweep, as far as can be seen before it is parsed.
fn begins_runs(line: &[OsString]) -> bool {
    let first = line.get(1).map(|word| word.to_string_lossy());
    let first = first.unwrap_or_default();
    let is_experiment = Path::new(&*first).extension().is_some_and(|end| end == "toml");
    is_experiment || first.starts_with('-') || ["resume", "sweep", "try"].contains(&&*first)
}

/// Ignores SIGXFSZ: if a file may not grow (`ulimit -f`), the write that fails is reported instead.
fn outlive_file_limits() {
    let ignored = Arc::new(AtomicBool::new(false));
    // Where this is refused, the signal ends the process, as it would have done.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored);
}

/// Like [`dispatch`]; a panic, which reports by itself where it was, ends with a page as well.
/// Ranks end with this process.
fn dispatch_caught(args: Args, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    catch_unwind(AssertUnwindSafe(|| dispatch(args, kinds))).unwrap_or_else(|_| {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = words.collect();
        let page = format!("error: ddprun {} panicked (see above)", env!("CARGO_PKG_VERSION"));
        Err(ErrorPage::new(ExitCode::Bug, page).help(format!(
            "report this bug in ddprun where you got ddprun from, with these lines and the command \
             `{}`",
            words.join(" ")
        )))
    })
}

fn dispatch(args: Args, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    match args.verb {
        Some(Verb::Worker) => train::worker(kinds),
        Some(Verb::Init(args)) => init(&args, kinds),
        Some(Verb::Plan(plan)) => inspect::plan(&plan, kinds),
        Some(Verb::Check(args)) => check::check(&args, kinds),
        Some(Verb::Try(run)) => try_run::try_run(&run, kinds),
        Some(Verb::Resume(resume)) => train::resume(&resume, kinds),
        Some(Verb::Eval(eval)) => evaluate::evaluate(&eval, kinds),
        Some(Verb::Predict(args)) => predict::predict(&args, kinds),
        Some(Verb::ServeModel(args)) => serve_model::serve_model(&args, kinds),
        Some(Verb::Sample(args)) => sample::sample(&args, kinds),
        Some(Verb::Sweep(SweepArgs { step: Some(step), .. })) => ask_tell::step(&step, kinds),
        Some(Verb::Sweep(sweep)) => sweep::sweep(&sweep, kinds),
        Some(Verb::Doctor(doctor)) => doctor::doctor(&doctor, kinds),
        Some(Verb::Ls(args)) => runs::ls(&args, kinds),
        Some(Verb::Compare(args)) => runs::compare(&args, kinds),
        #[cfg(feature = "clusters")]
        Some(Verb::Logs(args)) => jobs::logs(&args, kinds),
        #[cfg(not(feature = "clusters"))]
        Some(Verb::Logs(args)) => runs::logs(&args),
        Some(Verb::Tag(args)) => runs::tag(&args),
        Some(Verb::Rm(args)) => runs::rm(&args),
        Some(Verb::Report(report)) => inspect::report(&report, kinds),
        #[cfg(feature = "dashboard")]
        Some(Verb::Serve(serve)) => dashboard::serve(&serve),
        #[cfg(not(feature = "dashboard"))]
        Some(Verb::Serve(_)) => Err(usage::left_out("dashboard")),
        #[cfg(feature = "clusters")]
        Some(Verb::Submit(args)) => jobs::submit(&args, kinds),
        #[cfg(feature = "clusters")]
        Some(Verb::Jobs(args)) => jobs::jobs(&args, kinds),
        #[cfg(feature = "clusters")]
        Some(Verb::Cancel(args)) => jobs::cancel(&args, kinds),
        #[cfg(not(feature = "clusters"))]
        Some(Verb::Submit(_) | Verb::Jobs(_) | Verb::Cancel(_)) => Err(usage::left_out("clusters")),
        Some(Verb::Checkpoint(verb)) => checkpoint::dispatch(&verb, kinds),
        Some(Verb::Token { file }) => node_args::token(file.as_deref()),
        Some(Verb::Explain(args)) => explain::explain(&args),
        Some(Verb::Schema(args)) => inspect::schema(&args, kinds),
        Some(Verb::Completions { shell }) => completions(shell),
        Some(Verb::ManPages { folder }) => man_pages(&folder),
        None => {
            usage::refuse_unknown_verb(&args.run)?;
            train::train(&args.run, kinds)
        }
    }
}

fn no_command(error: &clap::Error, line: &[OsString], kinds: &Kinds) -> process::ExitCode {
    if !(error.use_stderr() && is_printed_by_another(ExitCode::Refused)) {
        if let Some(refusal) = usage::refuse_unknown_flag(error, line, kinds) {
            last_words(&refusal.page());
            say_error(&refusal);
        } else {
            // A closed terminal is no reason to fail.
            drop(error.print());
            if error.use_stderr() {
                say_error(&usage::refused(error));
            }
        }
    }
    ended(if error.use_stderr() { ExitCode::Refused } else { ExitCode::Ok })
}

/// Writes an experiment. Prints its choices, and the commands that come next.
fn init(args: &InitArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let request = InitRequest { target: args.target.as_deref(), task: args.task };
    let WrittenExperiment { file, about } =
        init::init(args.path.as_deref(), args.file.clone(), request, kinds)?;
    answer(
        "experiment",
        || json!({ "file": file, "about": about }),
        || {
            let file = file.display();
            format!(
                "{file} {about}\nlook at it, then: ddprun plan {file}\n                 ddprun {file}\n"
            )
        },
    )
}

fn completions(shell: clap_complete::Shell) -> Result<ExitCode, ErrorPage> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "ddprun", &mut script);
    let script = String::from_utf8_lossy(&script);
    let object = || json!({ "shell": shell.to_string(), "script": script });
    verbatim("completions", object, || script.to_string())
}

fn man_pages(folder: &Path) -> Result<ExitCode, ErrorPage> {
    files::create_folder(folder)
        .map_err(std::io::Error::other)
        .and_then(|()| clap_mangen::generate_to(Args::command(), folder))
        .map_err(|error| {
            let folder = folder.display();
            let page = format!("error: no man pages could be written to `{folder}`: {error}");
            ErrorPage::new(ExitCode::Storage, page)
        })?;
    answer("man_pages", || json!({ "folder": folder }), String::new)
}
