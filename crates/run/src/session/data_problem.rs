//! Data that cannot be used, drawn on the key of the experiment that asks for them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::kind::Options;
use crate::config::{Loaded, Problems, closest};
use crate::data;
use crate::user_error::{ExitCode, UserError};

/// The problem of the key that asks for what cannot be used, and the exit code; `None` where no
/// key does.
pub(crate) fn of_key(loaded: &Loaded, error: &data::Error) -> Option<(ExitCode, Problems)> {
    let options = &loaded.experiment.data.options;
    let (code, key) = match error.key() {
        Some(key) => (ExitCode::Refused, key.to_owned()),
        None => (error.exit_code(), key_of(options, path_of(error)?)?),
    };
    let problem = loaded.problem(&key, error.to_string());
    let problem = match meant(error).or_else(|| error.help()) {
        Some(help) => problem.help(help),
        None => problem,
    };
    Some((code, problem.into()))
}

/// The path that is not what it should be.
fn path_of(error: &data::Error) -> Option<&Path> {
    match error {
        data::Error::Missing { path, .. } | data::Error::NotAFolder { path, .. } => Some(path),
        _ => None,
    }
}

/// The key of the data set's option that is this path.
fn key_of(options: &Options, path: &Path) -> Option<String> {
    let is_it = |value: &Value| value.as_str().is_some_and(|text| Path::new(text) == path);
    options.iter().find(|(_, value)| is_it(value)).map(|(key, _)| format!("data.{key}"))
}

/// What was probably meant by a path that does not exist.
fn meant(error: &data::Error) -> Option<String> {
    let data::Error::Missing { what, path, .. } = error else { return None };
    let near = neighbour(path, what.contains("folder"))?;
    Some(format!("did you mean `{}`?", near.display()))
}

/// The folder or file beside an absent `path` whose name is closest.
fn neighbour(path: &Path, is_folder: bool) -> Option<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let wanted = path.file_name()?.to_str()?;
    let mut names: Vec<String> = std::fs::read_dir(parent.unwrap_or(Path::new(".")))
        .ok()?
        .flatten()
        .filter(|entry| entry.path().exists() && entry.path().is_dir() == is_folder)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    let name = closest(wanted, names.iter().map(String::as_str))?;
    Some(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_blamed_on_the_key_that_names_it() {
        let given = [("classes".to_owned(), 3.into()), ("train_dir".to_owned(), "a/b".into())];
        let options = Options::from(given);
        assert_eq!(key_of(&options, Path::new("a/b")).as_deref(), Some("data.train_dir"));
        assert_eq!(key_of(&options, Path::new("a")), None);
    }

    #[test]
    fn a_neighbour_of_the_same_kind_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let [folder, table] = ["train", "train.csv"].map(|name| dir.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        crate::files::write_atomic(&table, b"a\n1\n").unwrap();
        assert_eq!(neighbour(&dir.path().join("trian"), true), Some(folder));
        assert_eq!(neighbour(&dir.path().join("trian.csv"), false), Some(table));
        assert_eq!(neighbour(&dir.path().join("photos"), true), None);
    }
}
