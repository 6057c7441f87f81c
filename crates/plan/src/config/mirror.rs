//! `checkpoint.mirror`: the second place of a run, a folder or a command.

use std::path::PathBuf;

use crate::config::hooks::placeholders_in;
use crate::config::suggest::closest;
use crate::config::urls::url_scheme;

/// The placeholder of the folder that a command copies.
const FOLDER: &str = "folder";
/// The placeholders that the command of a mirror may have.
const PLACEHOLDERS: [&str; 3] = [FOLDER, "name", "run"];

/// The second place of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mirror {
    /// A folder.
    Folder(PathBuf),
    /// A command that copies `{folder}` somewhere, or from there into it.
    Command(String),
}

impl Mirror {
    /// The place that `text` names: with a placeholder it is a command.
    pub fn of(text: &str) -> Self {
        if placeholders_in(text).is_empty() {
            Self::Folder(text.into())
        } else {
            Self::Command(text.to_owned())
        }
    }

    /// What is wrong with `text`, and what to do: a URL, a command that copies nothing, or words
    /// in braces that have no value.
    pub fn fault(text: &str) -> Option<(String, String)> {
        let words = placeholders_in(text);
        if let Some(scheme) = url_scheme(text).filter(|_| words.is_empty()) {
            let help =
                format!("write a command that copies `{{folder}}`, such as {}", tool(scheme));
            return Some(("is a URL, but must be a folder or a command".to_owned(), help));
        }
        if let Some(word) = words.iter().find(|word| !PLACEHOLDERS.contains(&word.as_str())) {
            let help = closest(word, PLACEHOLDERS).map_or_else(
                || "use `{folder}`, `{name}`, `{run}`".to_owned(),
                |meant| format!("did you mean `{{{meant}}}`?"),
            );
            return Some((format!("there is no `{{{word}}}` here"), help));
        }
        let copies = words.is_empty() || words.iter().any(|word| word == FOLDER);
        (!copies).then(|| {
            let help = "write `{folder}` where the command takes the folder with the run";
            ("is a command without `{folder}`".to_owned(), help.to_owned())
        })
    }
}

/// A command that copies to or from URLs of this scheme.
fn tool(scheme: &str) -> &'static str {
    match scheme.to_ascii_lowercase().as_str() {
        "s3" | "s3a" | "s3n" => "`aws s3 sync --delete {folder} s3://BUCKET/{run}`",
        "gs" | "gcs" => "`gsutil rsync -r -d {folder} gs://BUCKET/{run}`",
        _ => "`rclone sync {folder} REMOTE:BUCKET/{run}`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_a_folder_or_a_command_with_a_placeholder() {
        assert_eq!(Mirror::of("/mnt/x y"), Mirror::Folder("/mnt/x y".into()));
        let command = "rclone sync {folder} r:b/{run}";
        assert_eq!(Mirror::of(command), Mirror::Command(command.to_owned()));
        for right in ["/mnt/x", command, "cp -a {folder}/. ${BACKUP}/{name}"] {
            assert_eq!(Mirror::fault(right), None, "{right}");
        }
    }

    #[test]
    fn a_url_and_a_command_that_copies_nothing_are_refused_with_what_to_write() {
        let fault = |text: &str| Mirror::fault(text).unwrap();
        let (what, help) = fault("s3://bucket/runs");
        assert!(what.starts_with("is a URL"), "{what}");
        assert!(help.contains("aws s3 sync --delete {folder} s3://BUCKET/{run}"), "{help}");
        assert!(fault("sftp://host/x").1.contains("rclone sync {folder}"));
        assert!(fault("rclone sync . r:b/{run}").0.contains("without `{folder}`"));
        assert!(fault("cp {foldr} /x").1.contains("did you mean `{folder}`?"));
        assert!(fault("cp {folder} {checkpoints}").0.contains("no `{checkpoints}` here"));
    }
}
