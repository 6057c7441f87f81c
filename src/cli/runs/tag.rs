//! `ddprun tag`: words by which a run is found again.

use serde_json::json;

use crate::cli::answer;
use crate::cli::runs_args::TagArgs;
use crate::config::TAG_FORM;
use crate::runs::{self, Error, Retagged};
use crate::user_error::{ErrorPage, ExitCode};

/// `ddprun tag RUN [+TAG | -TAG ...]`
pub(crate) fn tag(args: &TagArgs) -> Result<ExitCode, ErrorPage> {
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
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let folder = runs::best_run(Some(&args.run))?;
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

fn no_change(word: &str) -> ErrorPage {
    let page = format!(
        "error: `{word}` does not say what to do with the tag\n  \
         do: write `+{word}` to add it, or `-{word}` to remove it"
    );
    ErrorPage::new(ExitCode::Refused, page)
}

fn refused(error: &Error) -> ErrorPage {
    match error {
        Error::NotATag { .. } => ErrorPage::of(ExitCode::Refused, error).help(TAG_FORM),
        Error::Newer(_) => ErrorPage::of(ExitCode::Refused, error).help("use that ddprun"),
        Error::Files(reason) => ErrorPage::of(ExitCode::Storage, error)
            .help(reason.help_or("make the folder of this run readable and writable")),
        _ => ErrorPage::of(ExitCode::Storage, error),
    }
}
