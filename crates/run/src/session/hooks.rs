//! `[hooks]`: commands that are run when something has happened to a run, beside its training.
//!
//! One thread runs them one after the other, in the process that watches the ranks. What they print
//! is appended to `hooks.log`; the first failure of each hook is reported.

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::child_process;
use crate::config::schema;
use crate::config::{HookEvent, fill_placeholders};
use crate::launch::{Program, open_output};
use crate::plan::{Plan, RunFolders};
use crate::record::to_stderr;
use crate::user_error::ExitCode;

/// File in the run's logs with what the commands print.
const LOG: &str = "hooks.log";
/// Time after which the user is told what the end of the run waits for.
const PATIENCE: Duration = Duration::from_secs(2);

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

    /// `program`, whose ranks pass on what they record if a hook depends on that.
    pub(crate) fn listen_to(hooks: Option<&Self>, program: Program) -> Program {
        let wants_events = |hooks: &Self| hooks.calls.commands.checkpoint_saved.is_some();
        if hooks.is_some_and(wants_events) { program.telling_events() } else { program }
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
        let since = Instant::now();
        let signals = [SIGINT, SIGTERM]
            .map(|signal| signal_hook::flag::register(signal, is_given_up.clone()));
        let mut is_told = false;
        while !runner.is_finished() {
            if !is_told && since.elapsed() > PATIENCE {
                is_told = true;
                to_stderr("waiting for the commands of `[hooks]` (Ctrl-C ends them)");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(runner.join());
        for id in signals.into_iter().flatten() {
            signal_hook::low_level::unregister(id);
        }
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

    /// Runs one command to its end. The error says what it did, as a verb.
    fn call(&self, call: &Call) -> Result<(), String> {
        if self.is_given_up.load(Ordering::Relaxed) {
            return Err("was not run".to_owned());
        }
        let log = open_output(&self.log).and_then(|log| Ok((log.try_clone()?, log)));
        let log = log.map_err(|error| format!("was not run: {error}"))?;
        let mut shell = child_process::shell(&with_variables(&call.command));
        for (name, value) in &call.fields {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            shell.env(variable(name), text);
        }
        shell.stdin(Stdio::piped()).stdout(log.0).stderr(log.1);
        let mut child = shell.spawn().map_err(|error| format!("cannot be run: {error}"))?;
        // A command need not read its input; a short text does not wait for that.
        if let Some(mut stdin) = child.stdin.take() {
            let line = Value::from(call.fields.clone()).to_string();
            let _ = writeln!(stdin, "{line}");
        }
        let deadline = Instant::now() + self.timeout;
        let is_over = || Instant::now() >= deadline || self.is_given_up.load(Ordering::Relaxed);
        match child_process::wait_until(&mut child, is_over) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("ended with {status}")),
            None => {
                child_process::end(&mut child);
                Err(if self.is_given_up.load(Ordering::Relaxed) {
                    "was ended by Ctrl-C".to_owned()
                } else {
                    format!("was ended after {} s (`hooks.timeout`)", self.timeout.as_secs_f64())
                })
            }
        }
    }
}

/// Placeholders as variables of the shell: it never reads their values as a part of the command.
fn with_variables(command: &str) -> String {
    fill_placeholders(command, |word| Some(format!("\"${}\"", variable(word))))
}

/// The variable with the field `name` of an event.
fn variable(name: &str) -> String {
    format!("HOOK_{}", name.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_no_part_of_the_command() {
        let command = with_variables("echo {message} > \"{name}\"; echo ${HOME}");
        assert_eq!(command, "echo \"$HOOK_MESSAGE\" > \"\"$HOOK_NAME\"\"; echo ${HOME}");
    }
}
