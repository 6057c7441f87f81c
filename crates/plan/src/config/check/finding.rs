//! What a rule finds, before it is drawn on the file.

use std::collections::BTreeSet;

use crate::config::loaded::Loaded;
use crate::config::problem::Problem;

/// Something that a rule found.
pub(crate) struct Finding {
    /// The key that is wrong.
    pub(crate) key: String,
    /// The key under whose value the caret goes, if it is another one.
    place: Option<String>,
    /// Other keys that the finding depends on.
    about: Vec<String>,
    pub(crate) what: String,
    pub(crate) help: Option<String>,
}

impl Finding {
    pub(super) fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        let (key, what) = (key.into(), what.into());
        Self { key, place: None, about: Vec::new(), what, help: None }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(super) fn maybe_help(self, help: Option<String>) -> Self {
        Self { help, ..self }
    }

    pub(super) fn about(mut self, key: impl Into<String>) -> Self {
        self.about.push(key.into());
        self
    }

    /// The key is missing; `place` is the one that asks for it.
    pub(super) fn asked_by(mut self, place: impl Into<String>) -> Self {
        let place = place.into();
        self.about.push(place.clone());
        self.place = Some(place);
        self
    }

    /// True if the key, or one that the finding depends on, is part of a broken one.
    pub(super) fn is_consequence(&self, broken: &BTreeSet<String>) -> bool {
        let part_of =
            |a: &str, b: &str| a == b || (a.starts_with(b) && a[b.len()..].starts_with(['.', '[']));
        let mut keys = self.about.iter().chain([&self.key]);
        keys.any(|key| broken.iter().any(|b| part_of(key, b) || part_of(b, key)))
    }

    /// The finding drawn on the experiment.
    pub(crate) fn into_problem(self, loaded: &Loaded) -> Problem {
        let place = self.place.as_deref().unwrap_or(&self.key);
        loaded.problem_at(&self.key, place, self.what).maybe_help(self.help)
    }
}
