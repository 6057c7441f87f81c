//! `[hooks]`: their commands by name, and the placeholders in them.

use crate::config::schema::Hooks;

/// An event that has a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEvent {
    /// A checkpoint is on disk.
    CheckpointSaved,
    /// A run has ended, or was stopped.
    RunEnded,
    /// A run has failed.
    RunFailed,
    /// A trial of a sweep has ended.
    TrialEnded,
}

impl HookEvent {
    /// All events, in the order of their keys.
    pub const ALL: [Self; 4] =
        [Self::CheckpointSaved, Self::RunEnded, Self::RunFailed, Self::TrialEnded];

    /// The key in `[hooks]`.
    pub fn name(self) -> &'static str {
        match self {
            Self::CheckpointSaved => "checkpoint_saved",
            Self::RunEnded => "run_ended",
            Self::RunFailed => "run_failed",
            Self::TrialEnded => "trial_ended",
        }
    }

    /// The placeholders that its command may have.
    pub fn placeholders(self) -> &'static [&'static str] {
        match self {
            Self::CheckpointSaved => &["run", "name", "logs", "checkpoints", "checkpoint", "step"],
            Self::RunEnded => &["run", "name", "logs", "checkpoints", "code"],
            Self::RunFailed | Self::TrialEnded => {
                &["run", "name", "logs", "checkpoints", "code", "message"]
            }
        }
    }
}

impl Hooks {
    /// The command of an event.
    pub fn command(&self, event: HookEvent) -> Option<&str> {
        match event {
            HookEvent::CheckpointSaved => &self.checkpoint_saved,
            HookEvent::RunEnded => &self.run_ended,
            HookEvent::RunFailed => &self.run_failed,
            HookEvent::TrialEnded => &self.trial_ended,
        }
        .as_deref()
    }
}

/// `command` with each placeholder replaced by what `value` gives for its name; one that has none stays.
///
/// A placeholder is a lower-case word in braces. `${HOME}`, `{"a": 1}` and `{print $1}` are none.
pub fn fill_placeholders(command: &str, mut value: impl FnMut(&str) -> Option<String>) -> String {
    let mut filled = String::new();
    let mut rest = command;
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        filled.push_str(before);
        let word = after[1..].split(|c: char| !c.is_ascii_lowercase() && c != '_').next();
        let word = word.unwrap_or_default();
        let is_one = !word.is_empty() && after[1 + word.len()..].starts_with('}');
        let value = if is_one && !before.ends_with('$') { value(word) } else { None };
        filled.push_str(value.as_deref().unwrap_or("{"));
        rest = &after[if value.is_some() { word.len() + 2 } else { 1 }..];
    }
    filled + rest
}

/// Names of the placeholders in `command`.
pub fn placeholders_in(command: &str) -> Vec<String> {
    let mut found = Vec::new();
    fill_placeholders(command, |word| {
        found.push(word.to_owned());
        None
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_case_words_in_braces_are_placeholders() {
        let value = |word: &str| (word == "run").then(|| "'r 1'".to_owned());
        let filled = |command| fill_placeholders(command, value);
        assert_eq!(filled("cp {run} {run}x {other}"), "cp 'r 1' 'r 1'x {other}");
        for same in ["awk '{print $1}'", "${run}", "{\"run\": 1}", "{", "{run", "{}", "{RUN}"] {
            assert_eq!(filled(same), same);
        }
        assert_eq!(placeholders_in("a {run} ${HOME} {\"x\": {step}} {nope"), ["run", "step"]);
    }
}
