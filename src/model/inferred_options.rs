//! What files beside weights tell of a model.

use serde::Serialize;

use crate::config::kind::Options;

/// Options that were read from files; those that the experiment gives come before them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// The options.
    pub options: Options,
    /// Number of outputs.
    pub outputs: Option<u32>,
}

impl Completion {
    /// No options yet.
    pub(super) fn of_outputs(outputs: u32) -> Self {
        Self { outputs: Some(outputs), options: Options::new() }
    }

    /// Adds an option.
    pub(super) fn give(&mut self, key: &str, value: impl Serialize) {
        if let Ok(value) = serde_json::to_value(value) {
            self.options.insert(key.to_owned(), value);
        }
    }
}
