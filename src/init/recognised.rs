//! A recognised data set: its options, and the task.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::kind::Choice;
use crate::init::names::{count, named};
use crate::model::LlamaFamily;
use crate::plan::DataFacts;
use crate::user_error::{ErrorPage, ExitCode};

/// Type of the target of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TableTask {
    /// A class.
    Classification,
    /// A number.
    Regression,
}

/// A language model beside a tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BaseModel {
    pub(super) weights: PathBuf,
    pub(super) family: LlamaFamily,
}

/// Samples of each class that are held back to validate on where the data have no part for it.
pub(super) const VAL_FRACTION: f64 = 0.2;

/// Characters of a text or tokens of a file that a sample has.
pub(super) const SEQ_LEN: u64 = 64;

/// Options of the command line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InitRequest<'a> {
    /// `--target`
    pub(crate) target: Option<&'a str>,
    /// `--task`
    pub(crate) task: Option<TableTask>,
}

/// A data set, and the task to learn from it.
#[derive(Debug)]
pub(super) struct RecognisedData {
    /// The data set with its options.
    pub(super) data: Choice,
    pub(super) task: Task,
    /// Further conclusions, and columns or files that are left out, with the reason: `("left out",
    /// "...")`.
    pub(super) notes: Vec<(&'static str, String)>,
}

/// Task to learn.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    /// Classes of photos: the folder to train on.
    Images(PathBuf),
    /// Answers of a table for the images that it lists; `side` is the median of the shorter sides,
    /// in pixels.
    ImageTable { answer: ImageAnswer, side: u32 },
    /// Classes of small grey images.
    Digits,
    /// The target of a table, and whether it is a class.
    Table { classify: bool, is_usual: bool },
    /// The next rows of a table with so many, and the frequency of its dates if it is known.
    Series { rows: usize, frequency: Option<String> },
    /// The next character.
    Text,
    /// The next token, of which this is the largest.
    Tokens { largest: usize },
    /// Answers to instructions, by adapters of this model if there is one.
    Instructions { base: Option<BaseModel> },
    /// Answers in conversations.
    Chats { base: Option<BaseModel> },
    /// Actions.
    Behaviour,
    /// Classes of speech, or without classes its sounds; `by_name` if the names of files tell the
    /// classes.
    Speech { by_name: bool },
}

/// Answer that is learnt for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageAnswer {
    /// Any of several classes.
    Labels,
    /// One class.
    Class,
    /// Numbers.
    Numbers,
}

impl RecognisedData {
    pub(super) fn new(kind: &str, options: &[(&str, Value)], task: Task) -> Self {
        let mut data = Choice::named(kind);
        for (key, value) in options {
            data.set(key, value);
        }
        Self { data, task, notes: Vec::new() }
    }

    /// Adds conclusions from the counted data.
    pub(super) fn conclude(&mut self, facts: &DataFacts) {
        let has_classes = match &self.task {
            Task::Images(_) | Task::Digits | Task::Speech { .. } => true,
            Task::ImageTable { answer, .. } => *answer != ImageAnswer::Numbers,
            Task::Table { classify, .. } => *classify,
            _ => false,
        };
        if has_classes && !facts.classes.is_empty() {
            let classes = format!("{} ({})", count(facts.classes.len()), named(&facts.classes));
            self.notes.insert(0, ("classes", classes));
        }
        self.notes.extend(facts.notes.iter().map(|note| ("note", note.clone())));
    }

    /// Adds further conclusions.
    #[must_use]
    pub(super) fn noting(mut self, notes: Vec<(&'static str, String)>) -> Self {
        self.notes.extend(notes);
        self
    }
}

/// A path as an option.
pub(super) fn path(path: &Path) -> Value {
    path.display().to_string().into()
}

/// A refusal of data for which no experiment can be written, with a remedy.
pub(super) fn unusable(path: &Path, what: &str, help: &str) -> ErrorPage {
    ErrorPage::new(ExitCode::Data, format!("error: `{}` {what}", path.display())).help(help)
}
