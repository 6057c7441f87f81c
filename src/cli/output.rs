//! Data on stdout, and words for people on stderr.
//!
//! Each verb that prints data prints it in one of two forms: for people, or as an object for
//! `--json`; nothing else in `cli` can write to stdout. With `--json` every line of stdout is one
//! object, which begins with `format` and `type`; errors are such objects, too. Words for people
//! stay on stderr.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde_json::Value;

use crate::launch::rank_env;
use crate::record::{answer_in_json, is_json, json_line, to_stdout};
use crate::terminal::{escape_lines, fitted};
use crate::user_error::{ErrorPage, ExitCode};

/// The flag, which every verb has.
const FLAG: &str = "--json";

/// Takes `--json` from a command line. It may stand anywhere before `--`, also before the verb or
/// behind words that a verb does not read.
pub(crate) fn take_json_flag(line: &mut Vec<OsString>) {
    if without_json_flag(line) {
        answer_in_json();
    }
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

/// Prints data: an object of this type with `--json`, else `text` for people, in which nothing that
/// comes from files can act on a terminal.
pub(crate) fn answer(
    kind: &'static str,
    object: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<ExitCode, ErrorPage> {
    answers(|| vec![(kind, object())], text)
}

/// Like [`answer`], for text that a program or a shell may read: it is escaped only for a terminal.
pub(crate) fn verbatim(
    kind: &'static str,
    object: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<ExitCode, ErrorPage> {
    if is_json() || io::stdout().is_terminal() {
        return answer(kind, object, text);
    }
    to_reader(&text()).map(|_| ExitCode::Ok)
}

/// Like [`answer`], for several objects, each with its type.
pub(crate) fn answers(
    objects: impl FnOnce() -> Vec<(&'static str, Value)>,
    text: impl FnOnce() -> String,
) -> Result<ExitCode, ErrorPage> {
    answer_to_reader(objects, text).map(|_| ExitCode::Ok)
}

/// Like [`answers`]. Returns false if nobody reads stdout any more.
pub(crate) fn answer_to_reader(
    objects: impl FnOnce() -> Vec<(&'static str, Value)>,
    text: impl FnOnce() -> String,
) -> Result<bool, ErrorPage> {
    if is_json() {
        let lines = objects().into_iter().map(|(kind, object)| json_line(kind, object));
        return to_reader(&lines.collect::<String>());
    }
    to_reader(&escape_lines(&text()))
}

/// Refuses to replace a file that the user may want to keep.
pub(crate) fn refuse_existing(file: &Path, overwrites: bool) -> Result<(), ErrorPage> {
    if overwrites || file.symlink_metadata().is_err() {
        return Ok(());
    }
    let what = format!("`{}` exists already", file.display());
    Err(ErrorPage::refused(what, "choose another file, or replace it with `--overwrite`"))
}

/// Writes to stdout. Returns false if nobody reads it any more: a reader that has seen enough
/// (`| head`) is no failure.
fn to_reader(text: &str) -> Result<bool, ErrorPage> {
    match to_stdout(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(ErrorPage::of(ExitCode::Storage, &error)),
        Ok(()) => Ok(true),
    }
}

/// True if stderr may be coloured.
pub(crate) fn in_color() -> bool {
    io::stderr().is_terminal() && rank_env::no_color().is_none()
}

/// Prints the page of an error, or a part of it, as wide as a terminal may have it.
pub(crate) fn print_page(page: &str) {
    const WIDTH: usize = 80;
    if io::stderr().is_terminal() {
        last_words(&fitted(page, WIDTH));
    } else {
        last_words(page);
    }
}

/// Prints why this process ends.
pub(crate) fn last_words(text: &str) {
    // There is no way to tell the user if stderr is closed.
    drop(writeln!(io::stderr(), "{text}"));
}

#[cfg(test)]
mod tests {
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
}
