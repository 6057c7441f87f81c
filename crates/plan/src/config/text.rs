//! A file on disk -> its text, or why it cannot be an experiment. Nothing larger than 1 MiB is
//! read.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::config::problem::{NamedText, Problem};
use crate::config::suggest::closest;
use train_numbers::units::Bytes;

/// Largest experiment file.
const CAP: u64 = 1 << 20;

/// The text of the experiment file `path`, without its byte order mark.
pub(crate) fn read(path: &Path) -> Result<String, Problem> {
    let refuse = |why: String| Problem::new("", format!("`{}` {why}", path.display()));
    let found = std::fs::metadata(path).map_err(|error| {
        let problem = refuse(format!("cannot be read: {error}"));
        match neighbour(path) {
            Some(name) => problem.help(format!("did you mean `{name}`?")),
            None => problem.help("check its path, or write an experiment with `ddprun init DATA`"),
        }
    })?;
    if !found.is_file() {
        // A pipe would block, a folder has no text.
        return Err(refuse("is not a file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(CAP + 1).read_to_end(&mut bytes))
        .map_err(|error| refuse(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > CAP {
        let size = Bytes(found.len().max(CAP + 1));
        return Err(refuse(format!("has {size}; an experiment has at most {}", Bytes(CAP))));
    }
    decode(&bytes, &path.display().to_string())
}

/// `bytes` of the file `name` as text.
fn decode(bytes: &[u8], name: &str) -> Result<String, Problem> {
    const SAVE: &str = "save it as UTF-8";
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return Err(Problem::new("", format!("`{name}` is written in UTF-16")).help(SAVE));
    }
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(error) => {
            let at = error.valid_up_to();
            let line = bytes[..at].split(|&byte| byte == b'\n').count();
            let what = format!("`{name}` is not UTF-8: line {line}, byte {at}");
            return Err(Problem::new("", what).help(SAVE));
        }
    };
    match text.find('\0') {
        None => Ok(text),
        Some(at) => {
            let file = NamedText::named(name, text.replace('\0', " "));
            let what = "contains a NUL byte: not a text file";
            Err(Problem::new("", what).at(&file, at..at + 1, 0))
        }
    }
}

/// The file beside a missing `path` whose name is closest.
fn neighbour(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wanted = path.file_name()?.to_str()?;
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| Path::new(name).extension().is_some_and(|ending| ending == "toml"))
        .collect();
    names.sort();
    let name = closest(wanted, names.iter().map(String::as_str))?;
    Some(path.with_file_name(name).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(bytes: &[u8], expected: &str) {
        let problem = decode(bytes, "x.toml").unwrap_err();
        assert!(problem.what().contains(expected), "{problem}");
    }

    #[test]
    fn what_is_no_utf8_text_is_named() {
        refused(b"\xFF\xFEs\0c\0", "UTF-16");
        refused(b"\xFE\xFF\0s\0c", "UTF-16");
        refused(b"schema = 1\nname = \"\xE9\"\n", "not UTF-8: line 2, byte 19");
        refused(b"schema\0 = 1", "NUL");
    }

    #[test]
    fn a_byte_order_mark_and_windows_line_ends_are_fine() {
        assert_eq!(decode(b"\xEF\xBB\xBFschema = 1\r\n", "x").unwrap(), "schema = 1\r\n");
    }

    #[test]
    fn folders_missing_files_and_long_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap_err().what().ends_with("is not a file"));

        let long = dir.path().join("resnet.toml");
        std::fs::File::create(&long).unwrap().set_len(5 << 20).unwrap();
        let what = read(&long).unwrap_err().what().to_owned();
        assert!(what.ends_with("has 5.00 MiB; an experiment has at most 1.00 MiB"), "{what}");

        let missing = read(&dir.path().join("resnt.toml")).unwrap_err();
        assert!(missing.remedy().unwrap().ends_with("resnet.toml`?"), "{missing:?}");
    }
}
