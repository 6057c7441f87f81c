//! `ddprun tag`: words by which a run is found again.

use serde_json::json;

use crate::cli::runs_args::TagArgs;
use crate::cli::{Refusal, answer, find_run};
use crate::config::TAG_FORM;
use crate::launch::exit_code as exit;
use crate::runs::{self, Error, Retagged};

/// `ddprun tag RUN [+TAG | -TAG ...]`
pub(crate) fn tag(args: &TagArgs) -> Result<u8, Refusal> {
    let mut changes = Retagged::default();
    for word in &args.changes {
        match (word.strip_prefix('+'), word.strip_prefix('-')) {
            (Some(tag), _) => changes.added.insert(tag.to_owned()),
            (_, Some(tag)) => changes.removed.insert(tag.to_owned()),
            (None, None) => return Err(no_change(word)),
        };
    }
    if let Some(tag) = changes.added.intersection(&changes.removed).next() {
        let page = format!("error: `{tag}` is both added and removed\n  do: name it once");
        return Err(Refusal::new(exit::REFUSED, page));
    }
    let folder = find_run::best_run(Some(&args.run))?;
    let tags = runs::retag(&folder, &changes).map_err(|error| refused(&error))?;
    let run = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    answer(
        "tags",
        || json!({ "run": run, "tags": tags }),
        || {
            let tags = if tags.is_empty() { "no tags".to_owned() } else { tags.join(", ") };
            format!("{run}: {tags}\n")
        },
    )
}

fn no_change(word: &str) -> Refusal {
    let page = format!(
        "error: `{word}` does not say what to do with the tag\n  \
         do: write `+{word}` to add it, or `-{word}` to remove it"
    );
    Refusal::new(exit::REFUSED, page)
}

fn refused(error: &Error) -> Refusal {
    let (code, help) = match error {
        Error::NotATag { .. } => (exit::REFUSED, Some(TAG_FORM.to_owned())),
        Error::Newer { .. } => (exit::REFUSED, Some("use that ddprun".to_owned())),
        Error::Files(error) => {
            let help = error.help_or("make the folder of this run readable and writable");
            (exit::STORAGE, Some(help))
        }
        _ => (exit::STORAGE, None),
    };
    Refusal::of(code, error, help)
}
