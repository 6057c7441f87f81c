//! What goes to stdout, and what to stderr.
//!
//! Data goes to stdout. Each verb that prints says it twice: for people, and as an object for
//! `--json`; nothing else in `cli` can write there. With `--json` every line of stdout is one
//! object, which begins with `format` and `type`; errors are such objects, too. Words for people
//! stay on stderr.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};

use crate::cli::refusal::Refusal;
use crate::event;
use crate::launch::{Signals, exit_code as exit, rank_env};
use crate::record::{Screen, canvas};
use crate::terminal::{escape, escape_lines};

/// Version of what `--json` prints; events are in the form of `events.jsonl`.
pub(crate) const FORMAT: u32 = event::FORMAT;
/// The flag, which every verb has.
const FLAG: &str = "--json";
/// Time between two looks at whether a slow reader has read all, or a signal asks to leave.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Whether this process answers in JSON: its command line says so, once.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Takes `--json` from a command line. It may stand anywhere before `--`, also before the verb or
/// behind words that a verb does not read.
pub(crate) fn take_json_flag(line: &mut Vec<OsString>) {
    IS_JSON.store(without_json_flag(line), Ordering::Relaxed);
}

fn without_json_flag(line: &mut Vec<OsString>) -> bool {
    let end = line.iter().position(|word| word == "--").unwrap_or(line.len());
    let before = line.len();
    let mut index = 0;
    line.retain(|word| {
        index += 1;
        index > end || word != FLAG
    });
    line.len() < before
}

/// Whether stdout is for a program.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Data for stdout: an object of this type with `--json`, else `text` for people. What that holds of
/// files from elsewhere cannot act on a terminal.
pub(crate) fn answer(
    kind: &'static str,
    object: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<u8, Refusal> {
    answers(|| vec![(kind, object())], text)
}

/// As [`answer`], with text that a program or a shell may read: it is changed only where a terminal
/// shows it.
pub(crate) fn verbatim(
    kind: &'static str,
    object: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<u8, Refusal> {
    if is_json() || io::stdout().is_terminal() {
        return answer(kind, object, text);
    }
    to_reader(&text()).map(|_| 0)
}

/// As [`answer`], with several objects, each with its type.
pub(crate) fn answers(
    objects: impl FnOnce() -> Vec<(&'static str, Value)>,
    text: impl FnOnce() -> String,
) -> Result<u8, Refusal> {
    answer_to_reader(objects, text).map(|_| 0)
}

/// As [`answers`]; whether there is still a reader.
pub(crate) fn answer_to_reader(
    objects: impl FnOnce() -> Vec<(&'static str, Value)>,
    text: impl FnOnce() -> String,
) -> Result<bool, Refusal> {
    if is_json() {
        let lines = objects().into_iter().map(|(kind, object)| line(kind, object));
        return to_reader(&lines.collect::<String>());
    }
    to_reader(&escape_lines(&text()))
}

/// An object of this type as a line.
pub(crate) fn line(kind: &str, object: Value) -> String {
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

/// Says an error without ending.
pub(crate) fn complain(refusal: &Refusal) {
    to_stderr(refusal.page());
    say_error(refusal);
}

/// The objects of an error, with `--json`.
pub(crate) fn say_error(refusal: &Refusal) {
    if is_json() {
        let lines = refusal.objects().into_iter().map(|object| line("error", object));
        // There is no way to tell a reader who is gone.
        drop(to_stdout(&lines.collect::<String>()));
    }
}

/// Whether there is still a reader: one that has seen enough (`| head`) is no failure.
fn to_reader(text: &str) -> Result<bool, Refusal> {
    match to_stdout(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Refusal::of(exit::STORAGE, &error, None)),
        Ok(()) => Ok(true),
    }
}

fn to_stdout(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush())
}

/// Everything that is not data goes to stderr, unless that would hold us up.
pub(crate) fn to_stderr(text: &str) {
    screen().say(&escape(text));
}

/// How this process writes to stderr.
pub(crate) fn screen() -> Screen {
    Screen::detect(rank_env::no_color().as_deref())
}

/// A bar on stderr, written as `line`, where a person watches.
pub(crate) fn progress_bar(line: &str) -> ProgressBar {
    if screen() != Screen::Bar {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, canvas());
    if let Ok(style) = ProgressStyle::with_template(line) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

/// Says why this process ends, to a reader who may take all the time there is.
pub(crate) fn last_words(text: &str) {
    // There is no way to tell the user if stderr is closed.
    drop(writeln!(io::stderr(), "{text}"));
}

/// Lines of JSON from a run that goes on: a slow reader does not hold up the training, and gets
/// every line.
pub(crate) struct Stream {
    /// Until it is dropped: then it waits until all is read, or a signal asks to leave.
    lines: Option<Sender<String>>,
    writer: JoinHandle<()>,
}

impl Stream {
    /// A stream for `--json`; none otherwise.
    pub(crate) fn open() -> Option<Self> {
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

    /// Says an event, of a trial if there is one.
    pub(crate) fn event(&self, event: Map<String, Value>, trial: Option<&str>) {
        self.say("event", of_trial(event, trial).into());
    }

    /// Says anything else.
    pub(crate) fn say(&self, kind: &str, object: Value) {
        let line = line(kind, object);
        // The thread reads until this is dropped.
        self.lines.iter().for_each(|lines| drop(lines.send(line.clone())));
    }

    /// Says events, from another thread.
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

impl Drop for Stream {
    fn drop(&mut self) {
        drop(self.lines.take());
        let signals = [Signals::of_interruption(), Signals::of_preemption()];
        let mut signals: Vec<Signals> = signals.into_iter().flatten().collect();
        while !self.writer.is_finished() && signals.iter_mut().all(|signal| signal.take() == 0) {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The trial that an event is of stands before what it says.
fn of_trial(event: Map<String, Value>, trial: Option<&str>) -> Map<String, Value> {
    let trial = trial.map(|trial| ("trial".to_owned(), trial.into()));
    trial.into_iter().chain(event).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(words: &[&str]) -> (Vec<OsString>, bool) {
        let mut line = words.iter().map(OsString::from).collect();
        let is_json = without_json_flag(&mut line);
        (line, is_json)
    }

    #[test]
    fn the_flag_may_stand_anywhere_before_the_end_of_flags() {
        let line = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let plain = ["ddprun", "tag", "a", "+b"];
        for words in [
            &["ddprun", "--json", "tag", "a", "+b"][..],
            &["ddprun", "tag", "--json", "a", "+b"],
            &["ddprun", "tag", "a", "+b", "--json"],
        ] {
            assert_eq!(taken(words), (line(&plain), true), "{words:?}");
        }
        assert_eq!(taken(&plain), (line(&plain), false));
        let data = ["ddprun", "predict", "--", "--json"];
        assert_eq!(taken(&data), (line(&data), false));
    }

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
