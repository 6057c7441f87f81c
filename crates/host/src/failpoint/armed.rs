//! The points as they are with the feature: what `DDPRUN_FP` asks for happens.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, getpid, getppid, kill_process};

use crate::failpoint::rule::{Action, Rule, Visit};

/// Read once; the environment of a process does not change.
static RULES: OnceLock<Result<Vec<Rule>, String>> = OnceLock::new();
/// The step that this process is in.
static STEP: AtomicU64 = AtomicU64::new(0);
/// Visits of each point.
static HITS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn rules() -> &'static Result<Vec<Rule>, String> {
    RULES.get_or_init(|| Rule::all(&variable("DDPRUN_FP").unwrap_or_default()))
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Checks that `DDPRUN_FP` can be read; the error says why not.
pub fn check() -> Result<(), String> {
    rules().as_ref().map(|_| ()).map_err(|wrong| format!("DDPRUN_FP: {wrong}"))
}

/// Sets the step that this process is in.
pub fn enter_step(step: u64) {
    STEP.store(step, Ordering::Relaxed);
}

/// A place with this name: the caller makes it fail here.
pub fn reach(point: &str) {
    if let Some(action) = asked(point) {
        act(action, point);
    }
}

/// True if a bit is to be flipped here.
pub fn flips(point: &str) -> bool {
    asked(point) == Some(Action::Flip)
}

/// True if a device is to have no memory left here.
pub fn runs_out(point: &str) -> bool {
    asked(point) == Some(Action::Oom)
}

/// True if the work that was begun here is to be waited for.
pub fn waits(point: &str) -> bool {
    asked(point) == Some(Action::Wait)
}

fn asked(point: &str) -> Option<Action> {
    let rules = rules().as_ref().ok()?;
    let mut rules = rules.iter().filter(|rule| rule.point == point).peekable();
    rules.peek()?;
    let visit = visit(point);
    rules.find(|rule| rule.fits(&visit)).map(|rule| rule.action)
}

fn visit(point: &str) -> Visit {
    let number = |name| variable(name).and_then(|value| value.parse().ok());
    let mut hits = HITS.lock().unwrap_or_else(PoisonError::into_inner);
    let hit = hits.entry(point.to_owned()).or_default();
    *hit += 1;
    Visit {
        rank: number("RANK"),
        step: STEP.load(Ordering::Relaxed),
        restart: number("TORCHELASTIC_RESTART_COUNT").unwrap_or(0),
        hit: *hit,
    }
}

#[expect(clippy::panic, clippy::exit, clippy::disallowed_methods, reason = "what was asked for")]
fn act(action: Action, point: &str) {
    match action {
        // A signal to the process may arrive a moment after this thread has gone on.
        Action::Kill => {
            let _ = kill_process(getpid(), Signal::KILL);
            hang()
        }
        Action::Stop => {
            let _ = kill_process(getpid(), Signal::STOP);
        }
        Action::Term => {
            let _ = kill_process(getpid(), Signal::TERM);
        }
        Action::Hup => {
            let _ = kill_process(getpid(), Signal::HUP);
        }
        Action::TermParent => to_parent(Signal::TERM),
        Action::KillParent => {
            to_parent(Signal::KILL);
            // We go with it.
            hang()
        }
        Action::Panic => panic!("the fail point `{point}` was asked to panic"),
        Action::Hang => hang(),
        Action::Sleep(time) => std::thread::sleep(Duration::from_millis(time)),
        // Only the place itself can do it.
        Action::Flip | Action::Wait | Action::Oom => {}
        Action::Exit(code) => std::process::exit(code),
    }
}

fn to_parent(signal: Signal) {
    // A parent that is gone already takes us with it.
    if let Some(parent) = getppid() {
        let _ = kill_process(parent, signal);
    }
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// The file that `DDPRUN_FILE_CALLS` names, for a line of JSON for each change of the file system.
/// Opened once; the environment of a process does not change.
static FS_CALL_LOG: OnceLock<Option<File>> = OnceLock::new();

fn open_fs_call_log() -> Option<File> {
    let path = std::env::var_os("DDPRUN_FILE_CALLS")?;
    File::options().create(true).append(true).open(path).ok()
}

/// Notes `call`, which has been made: a lost line is a change that was not waited for.
pub fn note(call: &str, paths: &[&Path], bytes: &[u8]) {
    let Some(mut log) = FS_CALL_LOG.get_or_init(open_fs_call_log).as_ref() else { return };
    let paths: Vec<_> = paths.iter().filter_map(|path| std::path::absolute(path).ok()).collect();
    let line = serde_json::json!({ "call": call, "paths": paths, "bytes": bytes });
    // One write, so that the lines of all processes stay apart.
    let _ = log.write_all(format!("{line}\n").as_bytes());
}
