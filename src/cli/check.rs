//! `ddprun check`: files alone, for pre-commit and CI.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cli::args::CheckArgs;
use crate::cli::{answers, in_color, print_page};
use crate::config::FileKind;
use crate::kinds::Kinds;
use crate::record::say_error;
use crate::session::{CheckedFile, check_file};
use crate::terminal::counted;
use crate::user_error::{ErrorPage, ExitCode};

/// `ddprun check FILE ...`
pub(crate) fn check(args: &CheckArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let vocabulary = kinds.vocabulary();
    let mut found = Vec::new();
    // A problem of a file that several extend is shown once.
    let mut shown = BTreeSet::new();
    for path in &args.files {
        let file = check_file(path, &vocabulary, kinds);
        if let Some(refusal) = &file.refusal {
            for part in refusal.parts(in_color()) {
                if shown.insert(part.clone()) {
                    print_page(&(part + "\n"));
                }
            }
            say_error(refusal);
        }
        found.push((path.display().to_string(), file));
    }
    let n_shown = shown.len() as u64;
    let rows = || found.iter().map(|(path, file)| ("checked", object(path, file))).collect();
    answers(rows, || summary(&found, n_shown))?;
    let is_right = found.iter().all(|(_, file)| file.refusal.is_none());
    Ok(if is_right { ExitCode::Ok } else { ExitCode::Refused })
}

fn object(path: &str, file: &CheckedFile) -> Value {
    let kind = file.kind.map(|kind| match kind {
        FileKind::Experiment => "experiment",
        FileKind::Sweep => "sweep",
        FileKind::Clusters => "clusters",
    });
    let problems = file.refusal.as_ref().map_or(0, |refusal| refusal.objects().len());
    json!({ "file": path, "kind": kind, "problems": problems })
}

/// The last line: what was checked, or which files are wrong.
fn summary(found: &[(String, CheckedFile)], n_problems: u64) -> String {
    let wrong: Vec<&str> = found
        .iter()
        .filter(|(_, file)| file.refusal.is_some())
        .map(|(path, _)| path.as_str())
        .collect();
    let files = counted(found.len() as u64, "file");
    if wrong.is_empty() {
        return format!("{files} checked, no problems\n");
    }
    let problems = counted(n_problems, "problem");
    format!("{problems} in {} of {files}: {}\n", wrong.len(), wrong.join(", "))
}
