//! Placeholders in the commands of `[hooks]`.

use crate::config::check::Finding;
use crate::config::hooks::{HookEvent, placeholders_in};
use crate::config::loaded::Loaded;
use crate::config::suggest::closest;

/// Words in braces that an event has no value for: the shell would get them as they are.
pub(crate) fn placeholders(loaded: &Loaded) -> Vec<Finding> {
    let mut found = Vec::new();
    for event in HookEvent::ALL {
        let Some(command) = loaded.experiment.hooks.command(event) else { continue };
        let known = event.placeholders();
        for word in placeholders_in(command) {
            if known.contains(&&*word) {
                continue;
            }
            let what = format!("there is no `{{{word}}}` here");
            let all: Vec<String> = known.iter().map(|word| format!("`{{{word}}}`")).collect();
            let help = closest(&word, known.iter().copied()).map_or_else(
                || format!("use {}", all.join(", ")),
                |meant| format!("did you mean `{{{meant}}}`?"),
            );
            found.push(Finding::new(format!("hooks.{}", event.name()), what).help(help));
        }
    }
    found
}
