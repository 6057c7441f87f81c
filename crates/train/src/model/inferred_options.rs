//! What files beside weights, and the run that made them, tell of a model.

use serde::Serialize;

use crate::config::kind::Options;

/// Options that say how a model is trained, and not what it is.
const OF_TRAINING: [&str; 3] = ["lora", "freeze_backbone", "backbone_mode"];

/// The options of a trained model that one that starts from its weights has, too.
pub fn inherited(mut options: Options) -> Options {
    options.retain(|key, _| !OF_TRAINING.contains(&key.as_str()));
    options
}

/// Options that were read from files; those that the experiment gives come before them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
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
