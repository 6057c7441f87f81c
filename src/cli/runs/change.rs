//! `ddprun rm` and `ddprun tag`: the verbs that change runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::answer;
use crate::cli::runs_args::{RmArgs, TagArgs};
use crate::config::TAG_FORM;
use crate::runs::{self, Error, Removal, Retagged, leftovers};
use crate::units::Bytes;
use crate::user_error::{ErrorPage, ExitCode};

/// `ddprun rm RUN...`: all of them, or none.
pub(crate) fn rm(args: &RmArgs) -> Result<ExitCode, ErrorPage> {
    let dry_run = args.dry_run;
    let mut report = |folder: &Path, size: u64| {
        let what = if dry_run { "would remove" } else { "removed" };
        let object = || json!({ "folder": folder, "bytes": size, "dry_run": dry_run });
        let line = || format!("{what} {} ({})\n", folder.display(), Bytes(size));
        answer("removed", object, line).map(drop)
    };
    let mut removal = Removal { dry_run, report: &mut report };
    let freed = if args.leftovers {
        let usual = [runs::LOGS.to_owned()];
        let folders = if args.runs.is_empty() { &usual[..] } else { &args.runs };
        let found: BTreeSet<PathBuf> =
            folders.iter().flat_map(|folder| leftovers(Path::new(folder))).collect();
        removal.remove_leftovers(found)?
    } else {
        removal.remove_runs(&args.runs)?
    };
    let what = if dry_run { "would free" } else { "freed" };
    answer(
        "freed",
        || json!({ "bytes": freed, "dry_run": dry_run }),
        || format!("{what} {}\n", Bytes(freed)),
    )
}

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
        let what = format!("`{tag}` is both added and removed");
        return Err(ErrorPage::refused(what, "name it once"));
    }
    let folder = runs::best_run(Some(&args.run))?;
    let tags = runs::retag(&folder, &changes).map_err(|error| not_tagged(&error))?;
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
    let what = format!("`{word}` does not say what to do with the tag");
    ErrorPage::refused(what, format!("write `+{word}` to add it, or `-{word}` to remove it"))
}

fn not_tagged(error: &Error) -> ErrorPage {
    match error {
        Error::NotATag { .. } => ErrorPage::of(ExitCode::Refused, error).help(TAG_FORM),
        Error::Newer { .. } => ErrorPage::of(ExitCode::Refused, error).help("use that ddprun"),
        Error::Files(reason) => ErrorPage::of(ExitCode::Storage, error)
            .help(reason.help_or("make the folder of this run readable and writable")),
        _ => ErrorPage::of(ExitCode::Storage, error),
    }
}
