//! Errors as a user meets them: what happened, why, what to do about it, and an exit code.
//!
//! An error that can reach the user says its exit code and its remedy where it is defined
//! ([`UserError`]); `?` turns it into an [`ErrorPage`], which a command ends with.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::{Problem, Problems};
use crate::terminal::escape;

/// Exit codes of ranks and of the program (docs/runs.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum ExitCode {
    /// Done, or nothing was left to do.
    Ok = 0,
    /// The experiment or the command line is refused.
    Refused = 2,
    /// The data cannot be used.
    Data = 3,
    /// Numbers are not finite.
    Numeric = 4,
    /// A rendezvous, a peer or a collective failed.
    Peer = 5,
    /// A file cannot be written or read.
    Storage = 6,
    /// A checkpoint cannot be used.
    Checkpoint = 7,
    /// Memory, threads or descriptors ran out.
    Resource = 8,
    /// A metric missed what `[expect]` asks for.
    Expectation = 9,
    /// ddprun has a bug.
    Bug = 70,
    /// Stopped by a signal, with the state saved.
    Preempted = 75,
    /// A rank left so that its group can come back with more ranks; the program never exits so.
    Resized = 76,
    /// Stopped by Ctrl-C.
    Interrupted = 130,
}

impl ExitCode {
    const ALL: [Self; 13] = [
        Self::Ok,
        Self::Refused,
        Self::Data,
        Self::Numeric,
        Self::Peer,
        Self::Storage,
        Self::Checkpoint,
        Self::Resource,
        Self::Expectation,
        Self::Bug,
        Self::Preempted,
        Self::Resized,
        Self::Interrupted,
    ];

    /// The code that a process which exited with `number` meant; `None` if it is no code of ours.
    pub fn of_process(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|code| i32::from(u8::from(*code)) == number)
    }
}

impl From<ExitCode> for u8 {
    fn from(code: ExitCode) -> Self {
        code as Self
    }
}

impl TryFrom<u8> for ExitCode {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        Self::of_process(number.into()).ok_or_else(|| format!("{number} is no exit code of ddprun"))
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        u8::from(*self).fmt(f)
    }
}

/// Columns of a page.
const WIDTH: usize = 80;

/// An error that can end a command or a rank.
pub trait UserError: Error {
    /// Exit code of a process that ends with this error.
    fn exit_code(&self) -> ExitCode;

    /// The remedy, for the user.
    fn help(&self) -> Option<String> {
        None
    }

    /// The file that is wrong, and the line in it, where that is known.
    fn place(&self) -> Option<(&Path, Option<u64>)> {
        None
    }
}

/// A failed command's error page for the user, and the exit code.
#[derive(Debug)]
pub struct ErrorPage {
    code: ExitCode,
    what: PageContents,
    /// The file that is wrong, and the line in it, where that is known.
    place: Option<(String, Option<u64>)>,
}

#[derive(Debug)]
enum PageContents {
    /// One problem: `error: ...`, below it what is known, and what to do.
    Block { text: String, help: Option<String> },
    /// The problems of an experiment, each drawn on its file.
    Problems(Problems),
}

impl ErrorPage {
    /// A page of this text: `error: ...`, with lines `  why: ...` and `  do: ...` below.
    pub fn new(code: ExitCode, page: impl AsRef<str>) -> Self {
        let text = escape(page.as_ref()).into_owned();
        Self { code, what: PageContents::Block { text, help: None }, place: None }
    }

    /// The page of something that is refused: `error: ...`, with a remedy.
    pub fn refused(what: impl AsRef<str>, remedy: impl AsRef<str>) -> Self {
        Self::new(ExitCode::Refused, format!("error: {}", what.as_ref())).help(remedy)
    }

    /// The problems of an experiment; each shows its line.
    pub fn of_problems(code: ExitCode, problems: Problems) -> Self {
        Self { code, what: PageContents::Problems(problems), place: None }
    }

    /// The page of an error without an exit code of its own, with its causes.
    pub fn of(code: ExitCode, error: &dyn Error) -> Self {
        Self::new(code, format!("error: {}", with_causes(error)))
    }

    /// Sets the remedy of the page.
    #[must_use]
    pub fn help(mut self, remedy: impl AsRef<str>) -> Self {
        if let PageContents::Block { help, .. } = &mut self.what {
            *help = Some(escape(remedy.as_ref()).into_owned());
        }
        self
    }

    /// The exit code.
    pub fn code(&self) -> ExitCode {
        self.code
    }

    /// The page as plain text.
    pub fn page(&self) -> Cow<'_, str> {
        self.drawn(false)
    }

    /// The page, with the problems of an experiment in colours if they may be.
    pub fn drawn(&self, in_color: bool) -> Cow<'_, str> {
        match &self.what {
            PageContents::Block { text, help: None } => text.into(),
            PageContents::Block { text, help: Some(help) } => {
                format!("{text}\n  do: {help}").into()
            }
            PageContents::Problems(problems) => problems.page(in_color, WIDTH).into(),
        }
    }

    /// The page cut into its problems, which can be shown among those of other files.
    pub fn parts(&self, in_color: bool) -> Vec<String> {
        match &self.what {
            PageContents::Block { .. } => vec![self.drawn(in_color).into_owned()],
            PageContents::Problems(problems) => problems.drawn(in_color, WIDTH).collect(),
        }
    }

    /// Objects for `--json`, one for each problem.
    pub fn objects(&self) -> Vec<Value> {
        match &self.what {
            PageContents::Block { .. } => vec![self.object(&self.page())],
            PageContents::Problems(problems) => {
                problems.iter().map(|problem| of_problem(problem, self.code)).collect()
            }
        }
    }

    /// The block as an object.
    fn object(&self, page: &str) -> Value {
        let Block { message, parts } = Block::read(page);
        let (file, line) = self.place.clone().unzip();
        let mut object = error_object(self.code, &message);
        (object["file"], object["line"]) = (json!(file), json!(line.flatten()));
        for (label, text) in parts {
            let key = if label == "do" { "help" } else { label };
            // Causes have a line each.
            object[key] = match object[key].as_str() {
                Some(before) => format!("{before}\n{text}").into(),
                None => text.into(),
            };
        }
        object
    }
}

impl<E: UserError> From<E> for ErrorPage {
    fn from(error: E) -> Self {
        Self::from_error(&error)
    }
}

impl ErrorPage {
    /// The page of an error that says everything about itself.
    pub fn from_error(error: &impl UserError) -> Self {
        let shown = |path: &Path| escape(&path.to_string_lossy()).into_owned();
        let place = error.place().map(|(path, line)| (shown(path), line));
        let page = Self { place, ..Self::of(error.exit_code(), error) };
        match error.help() {
            Some(help) => page.help(help),
            None => page,
        }
    }
}

impl From<Problems> for ErrorPage {
    fn from(problems: Problems) -> Self {
        Self::of_problems(ExitCode::Refused, problems)
    }
}

impl From<Problem> for ErrorPage {
    fn from(problem: Problem) -> Self {
        Problems::from(problem).into()
    }
}

/// An error of which nothing is known but its words.
fn error_object(code: ExitCode, message: &str) -> Value {
    json!({
        "code": u8::from(code),
        "message": message,
        "help": null,
        "key": null,
        "file": null,
        "line": null,
        "column": null,
    })
}

fn of_problem(problem: &Problem, code: ExitCode) -> Value {
    let mut object = error_object(code, problem.what());
    object["help"] = json!(problem.remedy());
    if !problem.key().is_empty() {
        object["key"] = problem.key().into();
    }
    object["file"] = json!(problem.file());
    if let Some((_, line, column)) = problem.place() {
        (object["line"], object["column"]) = (line.into(), column.into());
    }
    object
}

/// The parts of a block that people read.
struct Block {
    message: String,
    /// The parts, by their labels.
    parts: Vec<(&'static str, String)>,
}

/// Labels with which a line of a block may begin.
const LABELS: [&str; 6] = ["why", "where", "then", "log", "saved", "do"];

impl Block {
    fn read(page: &str) -> Self {
        let page = page.strip_prefix("error: ").unwrap_or(page);
        let mut block = Self { message: String::new(), parts: Vec::new() };
        for line in page.lines() {
            let words = line.strip_prefix("  ").unwrap_or(line);
            let labelled = LABELS.into_iter().find_map(|label| {
                Some((label, words.strip_prefix(label)?.strip_prefix(':')?.trim_start()))
            });
            match (labelled, block.parts.last_mut()) {
                (Some((label, text)), _) => block.parts.push((label, text.to_owned())),
                (None, Some((_, text))) => *text = format!("{text}\n{}", line.trim_start()),
                (None, None) if block.message.is_empty() => line.clone_into(&mut block.message),
                (None, None) => block.message += &format!("\n{line}"),
            }
        }
        block
    }
}

/// An error, and its causes below it, a line each.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Messages that show their cause themselves are not repeated.
        if !text.contains(&cause.to_string()) {
            text = format!("{text}\n  why: {cause}");
        }
        source = cause.source();
    }
    text
}

impl Error for ErrorPage {}

impl fmt::Display for ErrorPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.page())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_becomes_an_object_with_each_of_its_parts() {
        let page = "error: there are two runs:\n  a\n  b\n  why: x\n  why: y\n  do: name one";
        assert_eq!(
            ErrorPage::new(ExitCode::Refused, page).objects(),
            [json!({
                "code": 2, "message": "there are two runs:\n  a\n  b",
                "help": "name one", "key": null, "file": null, "line": null, "column": null,
                "why": "x\ny",
            })]
        );
    }

    #[test]
    fn the_last_words_of_a_run_become_an_object() {
        let page = "error: out of memory\nwhere: rank 1 on a, pid 7, forward, step 3\nwhy:   big\n\
                    then:  rank 0 waited\n       rank 2 waited\nlog:   x.log\n       | last line\n\
                    saved: step 2\ndo:    use less";
        let object = ErrorPage::new(ExitCode::Resource, page).objects().remove(0);
        let of = |key: &str| object[key].as_str().unwrap().to_owned();
        assert_eq!(of("message"), "out of memory");
        assert_eq!(of("where"), "rank 1 on a, pid 7, forward, step 3");
        assert_eq!(of("then"), "rank 0 waited\nrank 2 waited");
        assert_eq!(of("log"), "x.log\n| last line");
        assert_eq!((of("saved"), of("help")), ("step 2".to_owned(), "use less".to_owned()));
    }
}
