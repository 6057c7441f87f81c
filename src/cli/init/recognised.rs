//! What a path holds.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::Refusal;
use crate::config::kind::Choice;
use crate::worker::exit;

/// Samples of each class that are held back to validate on where the data have no part for it.
pub(super) const VAL_FRACTION: f64 = 0.2;

/// Characters of a text or tokens of a file that a sample has.
pub(super) const SEQ_LEN: u64 = 64;

/// A data set, and what is to be learnt from it.
#[derive(Debug)]
pub(super) struct Recognised {
    /// The data set with its options.
    pub(super) data: Choice,
    pub(super) task: Task,
}

/// What is to be learnt.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    /// Classes of photos: the folder to train on.
    Images(PathBuf),
    /// Several classes of each image that a table lists, or numbers; and the median of the shorter
    /// sides, in pixels.
    ImageTable { multi_label: bool, side: u32 },
    /// Classes of small grey images.
    Digits,
    /// The target of a table, and whether it is a class.
    Table { classify: bool, why: String },
    /// What comes next in a table of that many rows.
    Series { rows: usize },
    /// The next character.
    Text,
    /// The next token, of which this is the largest.
    Tokens { largest: usize },
    /// Answers to instructions, by adapters of these weights if there are any.
    Instructions { base: Option<PathBuf> },
    /// Answers in conversations.
    Chats { base: Option<PathBuf> },
    /// Actions.
    Behaviour,
    /// Classes of speech, or what it sounds like where there are none; whether names of files say
    /// the classes.
    Speech { by_name: bool },
}

impl Recognised {
    pub(super) fn new(kind: &str, options: &[(&str, Value)], task: Task) -> Self {
        let mut data = Choice::named(kind);
        for (key, value) in options {
            data.set(key, value);
        }
        Self { data, task }
    }
}

/// A path as an option.
pub(super) fn path(path: &Path) -> Value {
    path.display().to_string().into()
}

/// Data that no experiment can be written for, and what to do about it.
pub(super) fn unusable(path: &Path, what: &str, help: &str) -> Refusal {
    Refusal::new(exit::DATA, format!("error: `{}` {what}\n  do: {help}", path.display()))
}
