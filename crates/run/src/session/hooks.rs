//! `[hooks]`: commands that are run when something has happened to a run, beside its training.
//!
//! One thread runs them one after the other, in the process that watches the ranks. What they print
//! is appended to `hooks.log`; the first failure of each hook is reported.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::HookEvent;
use crate::config::schema;
use crate::plan::{Plan, RunFolders};
use crate::record::to_stderr;
use crate::session::beside::{CommandLimits, run_command, wait_for_end};
use crate::user_error::ExitCode;

/// File in the run's logs with what the commands print.
const LOG: &str = "hooks.log";

/// The hooks of a run that is under way.
pub(crate) struct Hooks {
    calls: HookCalls,
    runner: JoinHandle<()>,
    /// Set once the user does not want to wait any longer.
    is_given_up: Arc<AtomicBool>,
}

/// The queue of commands that are to be run, for all that hear of events.
#[derive(Clone)]
pub(crate) struct HookCalls {
    commands: schema::Hooks,
    /// The fields that all events of the run have.
    run: Map<String, Value>,
    /// `None` ends the thread that runs the commands.
    queue: Sender<Option<Call>>,
}

/// An event whose command is to be run.
struct Call {
    event: HookEvent,
    command: String,
    fields: Map<String, Value>,
}

impl Hooks {
    /// The hooks of a run; `None` if it has none.
    pub(crate) fn start(plan: &Plan, run: &RunFolders) -> Option<Self> {
        let commands = plan.hooks.clone();
        HookEvent::ALL.iter().find_map(|event| commands.command(*event))?;
        let is_given_up = Arc::new(AtomicBool::new(false));
        let (queue, waiting) = channel();
        let mut runner = Runner {
            log: run.logs.join(LOG),
            timeout: commands.timeout.0,
            is_given_up: is_given_up.clone(),
            reported: Vec::new(),
        };
        let named = std::thread::Builder::new().name("hooks".into());
        let runner = named.spawn(move || runner.run(&waiting)).ok()?;
        let Value::Object(run) = json!({
            "run": run.id,
            "name": plan.name,
            "logs": run.logs,
            "checkpoints": run.checkpoints,
        }) else {
            return None;
        };
        Some(Self { calls: HookCalls { commands, run, queue }, runner, is_given_up })
    }

    pub(crate) fn calls(&self) -> &HookCalls {
        &self.calls
    }

    /// True if a hook depends on what the ranks record.
    pub(crate) fn wants_events(&self) -> bool {
        self.calls.commands.checkpoint_saved.is_some()
    }

    /// Runs the command for the end of a run, and waits until all are done, or the user presses
    /// Ctrl-C. `failure` is the error with which it failed.
    pub(crate) fn end_run(self, code: ExitCode, failure: Option<&str>) {
        let event = if failure.is_some() { HookEvent::RunFailed } else { HookEvent::RunEnded };
        self.end(event, code, failure);
    }

    /// As [`Self::end_run`], for a trial.
    pub(crate) fn end_trial(self, code: ExitCode, failure: Option<&str>) {
        self.end(HookEvent::TrialEnded, code, failure);
    }

    fn end(self, event: HookEvent, code: ExitCode, failure: Option<&str>) {
        let Self { calls, runner, is_given_up } = self;
        calls.push(event, &json!({ "code": code as i32, "message": failure }));
        let _ = calls.queue.send(None);
        let words = "waiting for the commands of `[hooks]` (Ctrl-C ends them)";
        wait_for_end(&runner, &is_given_up, None, words);
        drop(runner.join());
    }
}

impl HookCalls {
    /// Takes note of an event that the first rank has recorded.
    pub(crate) fn on_event(&self, event: &Map<String, Value>) {
        if event.get("event").and_then(Value::as_str) == Some("saved") {
            let of = |key: &str| event.get(key).cloned().unwrap_or_default();
            let fields =
                json!({ "checkpoint": of("path"), "step": of("step"), "best": of("best") });
            self.push(HookEvent::CheckpointSaved, &fields);
        }
    }

    fn push(&self, event: HookEvent, fields: &Value) {
        let Some(command) = self.commands.command(event) else { return };
        let mut all = Map::from_iter([("event".to_owned(), Value::from(event.name()))]);
        all.extend(self.run.clone());
        all.extend(fields.as_object().cloned().unwrap_or_default());
        // This fails only after a panic of the thread; the run goes on without hooks.
        let _ = self.queue.send(Some(Call { event, command: command.to_owned(), fields: all }));
    }
}

/// The thread that runs the commands.
struct Runner {
    log: PathBuf,
    timeout: Duration,
    is_given_up: Arc<AtomicBool>,
    /// Hooks whose failure was reported.
    reported: Vec<HookEvent>,
}

impl Runner {
    fn run(&mut self, queue: &Receiver<Option<Call>>) {
        let mut is_over = false;
        while !is_over && let Ok(first) = queue.recv() {
            let mut waiting = Vec::new();
            for call in [first].into_iter().chain(queue.try_iter()) {
                match call {
                    Some(call) => waiting.push(call),
                    None => is_over = true,
                }
            }
            // Of checkpoints that wait together only the newest is worth a command.
            let newest = waiting.iter().rposition(|call| call.event == HookEvent::CheckpointSaved);
            for (at, call) in waiting.iter().enumerate() {
                if call.event != HookEvent::CheckpointSaved || Some(at) == newest {
                    self.run_and_report(call);
                }
            }
        }
    }

    /// Runs one command; the first failure of each hook is a warning.
    fn run_and_report(&mut self, call: &Call) {
        let Err(why) = self.call(call) else { return };
        if self.reported.contains(&call.event) {
            return;
        }
        self.reported.push(call.event);
        let (hook, log) = (call.event.name(), self.log.display());
        to_stderr(&format!(
            "warning: `hooks.{hook}` {why}; `{log}` has what it printed. Further failures of it are \
             not reported"
        ));
    }

    fn call(&self, call: &Call) -> Result<(), String> {
        let limits = CommandLimits {
            log: &self.log,
            timeout: self.timeout,
            key: "hooks.timeout",
            is_given_up: &self.is_given_up,
        };
        run_command(&call.command, &call.fields, &limits)
    }
}
