//! What ends a verb early.

use std::error::Error;
use std::fmt;
use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Problem, Problems};
use crate::data;
use crate::launch::NotPrepared;
use crate::launch::exit_code as exit;
use crate::terminal::escape;

/// What ends a verb early: a page for the user, and the exit code.
#[derive(Debug)]
pub(crate) struct Refusal {
    page: String,
    code: u8,
    /// Of an experiment; a page of other words is one problem.
    problems: Vec<Problem>,
    /// The file that is wrong, and the line in it, where that is known.
    place: Option<(String, Option<u64>)>,
}

impl Refusal {
    pub(crate) fn new(code: u8, page: impl AsRef<str>) -> Self {
        let page = escape(page.as_ref()).into_owned();
        Self { page, code, problems: Vec::new(), place: None }
    }

    /// The page of an experiment's problems, which may have colours.
    pub(crate) fn of_problems(code: u8, page: String, problems: &Problems) -> Self {
        Self { page, code, problems: problems.iter().cloned().collect(), place: None }
    }

    /// One block: what happened, why, and what to do.
    pub(crate) fn of(code: u8, error: &(dyn Error + 'static), help: Option<String>) -> Self {
        let mut page = format!("error: {}", with_causes(error));
        if let Some(help) = help {
            page = format!("{page}\n  do: {help}");
        }
        let place = error.downcast_ref().and_then(data::Error::place);
        let shown = |path: &Path| escape(&path.to_string_lossy()).into_owned();
        let place = place.map(|(path, line)| (shown(path), line));
        Self { place, ..Self::new(code, page) }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The page.
    pub(crate) fn page(&self) -> &str {
        &self.page
    }

    /// For `--json`: an object for each thing that is wrong.
    pub(crate) fn objects(&self) -> Vec<Value> {
        if self.problems.is_empty() {
            return vec![self.object()];
        }
        self.problems.iter().map(|problem| of_problem(problem, self.code)).collect()
    }

    /// The block as an object.
    fn object(&self) -> Value {
        let Block { message, parts } = Block::read(&self.page);
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

/// Refuses to replace a file that the user may want to keep.
pub(crate) fn refuse_existing(file: &Path, overwrites: bool) -> Result<(), Refusal> {
    if overwrites || file.symlink_metadata().is_err() {
        return Ok(());
    }
    let page = format!(
        "error: `{}` exists already\n  do: choose another file, or replace it with `--overwrite`",
        file.display()
    );
    Err(Refusal::new(exit::REFUSED, page))
}

/// An error of which nothing is known but its words.
fn error_object(code: u8, message: &str) -> Value {
    json!({
        "code": code,
        "message": message,
        "help": null,
        "key": null,
        "file": null,
        "line": null,
        "column": null,
    })
}

fn of_problem(problem: &Problem, code: u8) -> Value {
    let mut object = error_object(code, problem.what());
    object["help"] = json!(problem.remedy());
    if !problem.key().is_empty() {
        object["key"] = problem.key().into();
    }
    if let Some((file, line, column)) = problem.place() {
        (object["file"], object["line"]) = (file.into(), line.into());
        object["column"] = column.into();
    }
    object
}

/// The parts of a block that people read.
struct Block {
    message: String,
    /// By their labels.
    parts: Vec<(&'static str, String)>,
}

/// What a line of a block may begin with.
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
pub(crate) fn with_causes(error: &dyn Error) -> String {
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

impl Error for Refusal {}

impl NotPrepared for Refusal {
    fn exit_code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_becomes_an_object_with_each_of_its_parts() {
        let page = "error: there are two runs:\n  a\n  b\n  why: x\n  why: y\n  do: name one";
        assert_eq!(
            Refusal::new(2, page).objects(),
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
        let object = Refusal::new(8, page).objects().remove(0);
        let of = |key: &str| object[key].as_str().unwrap().to_owned();
        assert_eq!(of("message"), "out of memory");
        assert_eq!(of("where"), "rank 1 on a, pid 7, forward, step 3");
        assert_eq!(of("then"), "rank 0 waited\nrank 2 waited");
        assert_eq!(of("log"), "x.log\n| last line");
        assert_eq!((of("saved"), of("help")), ("step 2".to_owned(), "use less".to_owned()));
    }

    #[test]
    fn each_problem_of_an_experiment_is_an_object_with_its_place() {
        let vocabulary = crate::kinds::Kinds::default().vocabulary();
        let text = "schema = 1\n[train]\nepochs = 3\n  batch_sise = 4\n[model]\nname = \"mlp\"\n\
                    [data]\nname = \"mnist\"\n";
        let problems = crate::config::load_text(Path::new("x.toml"), text, &[], &vocabulary);
        let problems = problems.unwrap_err();
        let found = Refusal::of_problems(2, String::new(), &problems).objects();
        assert_eq!(found.len(), problems.iter().count());
        let wrong = found.iter().find(|object| object["key"] == "train.batch_sise").unwrap();
        assert_eq!(
            (&wrong["file"], &wrong["line"], &wrong["column"]),
            (&json!("x.toml"), &json!(4), &json!(3))
        );
        assert!(wrong["help"].as_str().unwrap().contains("batch_size"), "{wrong}");
        assert_eq!(wrong["code"], 2);
    }

    #[test]
    fn data_that_cannot_be_used_say_their_line() {
        let what = "`x` is no number".to_owned();
        let error = data::Error::Line { path: "a.csv".into(), line: 7, what };
        let found = Refusal::of(3, &error, None).objects().remove(0);
        assert_eq!((&found["file"], &found["line"]), (&json!("a.csv"), &json!(7)));
    }
}
