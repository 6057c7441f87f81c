//! What goes on beside a run: commands of the user for `sh`, and the wait for them at its end.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::child_process;
use crate::config::fill_placeholders;
use crate::launch::open_output;
use crate::record::to_stderr;

/// Time after which the user is told what the end of the run waits for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks whether it has ended.
const POLL: Duration = Duration::from_millis(20);

/// How a command is run.
pub(crate) struct CommandLimits<'a> {
    /// File to which what it prints is appended.
    pub(crate) log: &'a Path,
    /// Time after which it is ended.
    pub(crate) timeout: Duration,
    /// The key with that time.
    pub(crate) key: &'static str,
    /// Set once the user does not want to wait any longer.
    pub(crate) is_given_up: &'a AtomicBool,
}

/// Runs `command` to its end. Its placeholders are `fields`, which it also gets as a JSON object on
/// standard input. The error says what it did, as a verb.
pub(crate) fn run_command(
    command: &str,
    fields: &Map<String, Value>,
    limits: &CommandLimits<'_>,
) -> Result<(), String> {
    let is_given_up = || limits.is_given_up.load(Ordering::Relaxed);
    if is_given_up() {
        return Err("was not run".to_owned());
    }
    let log = open_output(limits.log).and_then(|log| Ok((log.try_clone()?, log)));
    let log = log.map_err(|error| format!("was not run: {error}"))?;
    let mut shell = child_process::shell(&with_variables(command));
    for (name, value) in fields {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        shell.env(variable(name), text);
    }
    shell.stdin(Stdio::piped()).stdout(log.0).stderr(log.1);
    let mut child = shell.spawn().map_err(|error| format!("cannot be run: {error}"))?;
    // A command need not read its input; a short text does not wait for that.
    if let Some(mut stdin) = child.stdin.take() {
        let line = Value::from(fields.clone()).to_string();
        let _ = writeln!(stdin, "{line}");
    }
    let deadline = Instant::now() + limits.timeout;
    let is_over = || Instant::now() >= deadline || is_given_up();
    match child_process::wait_until(&mut child, is_over) {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("ended with {status}")),
        None => {
            child_process::end(&mut child);
            Err(if Instant::now() < deadline {
                "was ended by Ctrl-C".to_owned()
            } else {
                format!("was ended after {} s (`{}`)", limits.timeout.as_secs_f64(), limits.key)
            })
        }
    }
}

/// Placeholders as variables of the shell: it never reads their values as a part of the command.
pub(crate) fn with_variables(command: &str) -> String {
    fill_placeholders(command, |word| Some(format!("\"${}\"", variable(word))))
}

/// The variable with the value of the placeholder `name`.
pub(crate) fn variable(name: &str) -> String {
    format!("HOOK_{}", name.to_uppercase())
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// It was done.
    Done,
    /// The user did not want to wait any longer.
    GivenUp,
    /// The time was over.
    OutOfTime,
}

/// Waits for the end of `thread`, which is to end soon once `is_given_up` is set: by Ctrl-C or, if
/// there is a limit, when that time is over. The user is told in these `words` if it takes long.
pub(crate) fn wait_for_end(
    thread: &JoinHandle<()>,
    is_given_up: &Arc<AtomicBool>,
    limit: Option<Duration>,
    words: &str,
) -> WaitEnd {
    let mut end = WaitEnd::Done;
    let began = Instant::now();
    let signals =
        [SIGINT, SIGTERM].map(|signal| signal_hook::flag::register(signal, is_given_up.clone()));
    let mut is_told = false;
    let mut since_given_up = None;
    while !thread.is_finished() {
        if !is_told && began.elapsed() > PATIENCE {
            is_told = true;
            to_stderr(words);
        }
        if end == WaitEnd::Done {
            if is_given_up.load(Ordering::Relaxed) {
                end = WaitEnd::GivenUp;
            } else if limit.is_some_and(|limit| began.elapsed() >= limit) {
                end = WaitEnd::OutOfTime;
                is_given_up.store(true, Ordering::Relaxed);
            }
        } else {
            // A thread that waits for a disk that hangs does not see it.
            let since: &mut Instant = since_given_up.get_or_insert_with(Instant::now);
            if limit.is_some() && since.elapsed() > PATIENCE {
                break;
            }
        }
        std::thread::sleep(POLL);
    }
    for id in signals.into_iter().flatten() {
        signal_hook::low_level::unregister(id);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_no_part_of_the_command() {
        let command = with_variables("echo {message} > \"{name}\"; echo ${HOME}");
        assert_eq!(command, "echo \"$HOOK_MESSAGE\" > \"\"$HOOK_NAME\"\"; echo ${HOME}");
    }

    #[test]
    fn a_thread_that_hangs_is_left_when_its_time_is_over() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = held.recv();
        });
        let is_given_up = Arc::new(AtomicBool::new(false));
        let limit = Some(Duration::from_millis(10));
        let end = wait_for_end(&thread, &is_given_up, limit, "waiting");
        assert_eq!(end, WaitEnd::OutOfTime);
        assert!(is_given_up.load(Ordering::Relaxed) && !thread.is_finished());
        drop(hold);
        drop(thread.join());
    }
}
