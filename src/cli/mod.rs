//! One function per verb. `main` only maps a result to an exit code; so does a user's own program that
//! registers its models and calls [`run`].
//!
//! ```no_run
//! use ddprun::kinds::Kinds;
//!
//! // The whole of a program with kinds of its own: `my-program train.toml`, `my-program resume` ...
//! let kinds = Kinds::default();
//! let code = ddprun::cli::run(std::env::args_os(), &kinds);
//! ```

mod abandoned;
mod args;
mod checkpoint;
mod doctor;
mod evaluate;
mod going_on;
mod inspect;
mod kept;
mod machines;
mod named;
mod prepare;
mod relaunch;
mod resume;
mod sample;
mod sweep;
mod train;
mod usage;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, Parser};

use crate::event::{escape, fitted};
use crate::failpoint;
use crate::kinds::Kinds;
use crate::launch::{self, Role, rank_env};
use crate::record;
use crate::worker::exit;
use args::{Args, Verb};

/// What ends a verb early: a page for the user, and the exit code.
#[derive(Debug)]
pub(crate) struct Refusal {
    page: String,
    code: u8,
}

impl Refusal {
    fn new(code: u8, page: impl AsRef<str>) -> Self {
        Self { page: escape(page.as_ref()).into_owned(), code }
    }

    /// The page of an experiment's problems, which may have colours.
    fn of_problems(code: u8, page: String) -> Self {
        Self { page, code }
    }

    /// The exit code.
    fn code(&self) -> u8 {
        self.code
    }

    /// One block: what happened, why, and what to do.
    fn of(code: u8, error: &dyn std::error::Error, help: Option<String>) -> Self {
        let mut page = format!("error: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            // Messages that show their cause themselves are not repeated.
            if !page.contains(&cause.to_string()) {
                page = format!("{page}\n  why: {cause}");
            }
            source = cause.source();
        }
        if let Some(help) = help {
            page = format!("{page}\n  do: {help}");
        }
        Self::new(code, page)
    }
}

/// Runs the command line `arguments` (the first is the program's name) with the models of `kinds`.
pub fn run(arguments: impl IntoIterator<Item = OsString>, kinds: &Kinds) -> ExitCode {
    launch::limit_threads();
    launch::hide_backtraces_of_errors();
    outlive_file_limits();
    let line: Vec<OsString> = arguments.into_iter().collect();
    let args = match Args::try_parse_from(&line) {
        Ok(args) => args,
        Err(error) => return no_command(&error, &line, kinds),
    };
    if let Err(wrong) = failpoint::check() {
        to_stderr(&format!("error: {wrong}"));
        return ExitCode::from(exit::REFUSED);
    }
    match dispatch(args, kinds) {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => {
            if !is_said_by_another(refusal.code) {
                let page = &refusal.page;
                last_words(&if io::stderr().is_terminal() {
                    fitted(page, 80)
                } else {
                    page.clone()
                });
            }
            ExitCode::from(refusal.code)
        }
    }
}

/// Whether another rank of this machine refuses the same in the same words: the ranks of a launcher have one command line, and
/// read the same files.
fn is_said_by_another(code: u8) -> bool {
    let is_common = matches!(code, exit::REFUSED | exit::DATA | exit::CHECKPOINT);
    let role = rank_env::from_environment();
    is_common && matches!(role, Ok(Role::Foreign(place)) if !place.local_rank.is_first())
}

/// Where a file may not grow (`ulimit -f`), the write that fails says so; the signal beside it would say nothing.
fn outlive_file_limits() {
    let ignored = Arc::new(AtomicBool::new(false));
    // Where this is refused, the signal ends the process, as it would have done.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored);
}

fn dispatch(args: Args, kinds: &Kinds) -> Result<u8, Refusal> {
    match args.verb {
        Some(Verb::Worker) => train::worker(kinds),
        Some(Verb::Plan(plan)) => inspect::plan(&plan, kinds),
        Some(Verb::Resume(resume)) => resume::resume(&resume, kinds),
        Some(Verb::Eval(eval)) => evaluate::evaluate(&eval, kinds),
        Some(Verb::Sample(asked)) => sample::sample(&asked, kinds),
        Some(Verb::Sweep(sweep)) => sweep::sweep(&sweep, kinds),
        Some(Verb::Doctor(doctor)) => doctor::doctor(&doctor, kinds),
        Some(Verb::Report { run }) => inspect::report(run.as_deref(), kinds),
        Some(Verb::Checkpoint(verb)) => checkpoint::dispatch(&verb),
        Some(Verb::Token { file }) => machines::token(file.as_deref()),
        Some(Verb::Schema { sweep, json_schema }) => inspect::schema(sweep, json_schema, kinds),
        Some(Verb::Completions { shell }) => Ok(completions(shell)),
        None => {
            usage::refuse_unknown_verb(&args.run)?;
            train::train(&args.run, kinds)
        }
    }
}

fn no_command(error: &clap::Error, line: &[OsString], kinds: &Kinds) -> ExitCode {
    if !(error.use_stderr() && is_said_by_another(exit::REFUSED)) {
        match usage::refuse_unknown_flag(error, line, kinds) {
            Some(refusal) => last_words(&refusal.page),
            // A closed terminal is no reason to fail.
            None => drop(error.print()),
        }
    }
    ExitCode::from(if error.use_stderr() { exit::REFUSED } else { 0 })
}

fn completions(shell: clap_complete::Shell) -> u8 {
    clap_complete::generate(shell, &mut Args::command(), "ddprun", &mut io::stdout());
    0
}

/// Data goes to stdout; a reader that has seen enough (`| head`) is no failure.
fn to_stdout(text: &str) -> Result<u8, Refusal> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Refusal::of(exit::STORAGE, &error, None))
        }
        _ => Ok(0),
    }
}

/// Everything that is not data goes to stderr, unless that would hold us up.
fn to_stderr(text: &str) {
    record::say(&escape(text));
}

/// Says why this process ends, to a reader who may take all the time there is.
fn last_words(text: &str) {
    // There is no way to tell the user if stderr is closed.
    drop(writeln!(io::stderr(), "{text}"));
}
