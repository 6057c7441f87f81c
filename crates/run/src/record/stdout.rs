//! Lines of JSON on stdout, where `--json` asks for them: one object a line, which begins with
//! `format` and `type`.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Map, Value};

use super::terminal::to_stderr;
use crate::event;
use crate::launch::Signals;
use crate::user_error::ErrorPage;

/// Version of what `--json` prints; events are in the form of `events.jsonl`.
pub(crate) const FORMAT: u32 = event::FORMAT;
/// Interval for checking whether a slow reader has read everything, or a signal asks to leave.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// True if `--json` is on the command line.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Makes this process answer in JSON.
pub fn answer_in_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

/// True if stdout is read by a program.
pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Returns `object` as a line of JSON of type `kind`.
pub fn line(kind: &str, object: Value) -> String {
    let mut whole = Map::new();
    whole.insert("format".to_owned(), FORMAT.into());
    whole.insert("type".to_owned(), kind.into());
    let fields = match object {
        Value::Object(fields) => fields,
        other => Map::from_iter([("value".to_owned(), other)]),
    };
    let own = ["format", "type"];
    whole.extend(fields.into_iter().filter(|(key, _)| !own.contains(&key.as_str())));
    Value::Object(whole).to_string() + "\n"
}

/// Prints an error; the process goes on.
pub fn print_error(error: &ErrorPage) {
    to_stderr(&error.page());
    say_error(error);
}

/// Prints the JSON objects of an error, with `--json`.
pub fn say_error(error: &ErrorPage) {
    if is_json() {
        let lines = error.objects().into_iter().map(|object| line("error", object));
        // There is no way to tell a reader who is gone.
        drop(to_stdout(&lines.collect::<String>()));
    }
}

pub fn to_stdout(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush())
}

/// Lines of JSON from a running process: a slow reader does not block the training, and gets every
/// line.
pub struct JsonStream {
    /// `None` while this is dropped, which waits until everything is read or a signal asks to
    /// leave.
    lines: Option<Sender<String>>,
    writer: JoinHandle<()>,
}

impl JsonStream {
    /// Starts a stream if `--json` is given.
    pub fn open() -> Option<Self> {
        if !is_json() {
            return None;
        }
        let (lines, waiting) = channel::<String>();
        let write = move || {
            let Some(error) = waiting.iter().find_map(|line| to_stdout(&line).err()) else {
                return;
            };
            // A reader that has seen enough is no failure.
            if error.kind() != io::ErrorKind::BrokenPipe {
                to_stderr(&format!(
                    "warning: standard output cannot be written: {error}; what follows is only in \
                     `events.jsonl`"
                ));
            }
            waiting.into_iter().for_each(drop);
        };
        let writer = thread::Builder::new().name("stdout".to_owned()).spawn(write).ok()?;
        Some(Self { lines: Some(lines), writer })
    }

    /// Writes an event, with its trial if there is one.
    pub fn event(&self, event: Map<String, Value>, trial: Option<&str>) {
        self.say("event", of_trial(event, trial).into());
    }

    /// Writes an object of another type.
    pub(crate) fn say(&self, kind: &str, object: Value) {
        let line = line(kind, object);
        // The thread reads until this is dropped.
        self.lines.iter().for_each(|lines| drop(lines.send(line.clone())));
    }

    /// Returns a function that writes events, for other threads.
    pub(crate) fn listener(&self) -> impl Fn(Map<String, Value>) + Send + Sync + 'static {
        let lines = self.lines.clone();
        move |event| {
            let line = line("event", event.into());
            if let Some(lines) = &lines {
                drop(lines.send(line));
            }
        }
    }
}

impl Drop for JsonStream {
    fn drop(&mut self) {
        drop(self.lines.take());
        let signals = [Signals::of_interruption(), Signals::of_preemption()];
        let mut signals: Vec<Signals> = signals.into_iter().flatten().collect();
        while !self.writer.is_finished() && signals.iter_mut().all(|signal| signal.take() == 0) {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Puts the trial in front of the fields of an event.
fn of_trial(event: Map<String, Value>, trial: Option<&str>) -> Map<String, Value> {
    let trial = trial.map(|trial| ("trial".to_owned(), trial.into()));
    trial.into_iter().chain(event).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_begins_with_its_format_and_type_once_each() {
        let said = line("run", json!({ "type": "x", "format": 9, "step": 3, "name": "a\nb" }));
        assert_eq!(said, "{\"format\":1,\"type\":\"run\",\"step\":3,\"name\":\"a\\nb\"}\n");
        assert_eq!(line("x", json!([1])), "{\"format\":1,\"type\":\"x\",\"value\":[1]}\n");
    }

    #[test]
    fn an_event_of_a_sweep_says_its_trial() {
        let event = Map::from_iter([("event".to_owned(), json!("saved"))]);
        let keys = |trial| of_trial(event.clone(), trial).keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(Some("trial-0001")), ["trial", "event"]);
        assert_eq!(keys(None), ["event"]);
    }
}
