//! Folders of recordings.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::audio;
use crate::data::{Error, files_below};
use crate::utterances::{UNNAMED, Utterance};

/// Folders below a root that are looked into.
const MAX_DEPTH: usize = 8;
const EXPECTED: &str = "WAV, FLAC, OGG or MP3 files, or folders of them";

/// The utterances of the folder `root`; `group_part` of the name of each says who speaks.
pub(crate) fn utterances(root: &Path, group_part: Option<usize>) -> Result<Vec<Utterance>, Error> {
    let utterance = |path: PathBuf| {
        let speaker = group_part.map(|number| {
            if let Some(part) = name_part(&path, number) {
                Ok(part.to_owned())
            } else {
                let what = format!(
                    "its name has no part {number} between `_` or `-`, which `data.group_part` \
                 names"
                );
                Err(Error::Format { path: path.clone(), what })
            }
        });
        let speaker = speaker.transpose()?;
        Ok(Utterance { class: class(root, &path), path, span: None, speaker })
    };
    list(root)?.into_iter().map(utterance).collect()
}

/// A part of a file's name between `_` or `-`, counted from 1.
fn name_part(path: &Path, number: usize) -> Option<&str> {
    let stem = path.file_stem()?.to_str()?;
    stem.split(['_', '-']).nth(number.checked_sub(1)?).filter(|part| !part.is_empty())
}

/// The part of file names that probably names speakers, with an example and how many there are: it
/// says something else than the class, occurs again and again, and is no count of takes.
pub(crate) fn likely_speakers(utterances: &[Utterance]) -> Option<(usize, String, usize)> {
    const MAX_PARTS: usize = 8;
    (1..=MAX_PARTS).find_map(|number| {
        let parts: Option<Vec<&str>> =
            utterances.iter().map(|utterance| name_part(&utterance.path, number)).collect();
        let parts = parts?;
        let is_class = parts.iter().zip(utterances).all(|(part, of)| *part == of.class);
        let is_count = number > 1 && parts.iter().all(|part| part.parse::<u64>().is_ok());
        let distinct: BTreeSet<&str> = parts.iter().copied().collect();
        let repeats = distinct.len() > 1 && distinct.len() * 2 <= parts.len();
        let first = (*distinct.first()?).to_owned();
        (!is_class && !is_count && repeats).then_some((number, first, distinct.len()))
    })
}

/// All recordings below `root`, in order, without what begins with a dot.
pub(crate) fn list(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let missing =
        || Error::Missing { what: "the folder of speech", path: root.into(), expected: EXPECTED };
    if !root.exists() {
        return Err(missing());
    }
    let mut files = files_below(root, MAX_DEPTH).collect::<Result<Vec<_>, _>>()?;
    files.retain(|path| audio::is_named_so(path));
    if files.is_empty() {
        let what = "it contains no WAV, FLAC, OGG or MP3 files".to_owned();
        return Err(Error::Format { path: root.into(), what });
    }
    Ok(files)
}

/// True if the class is in the file names of `root` itself.
pub(crate) fn names_classes(root: &Path, utterances: &[Utterance]) -> bool {
    let is_named =
        |utterance: &Utterance| utterance.path.parent() == Some(root) && utterance.class != UNNAMED;
    utterances.iter().any(is_named)
}

/// Class of `file`.
pub(crate) fn class(root: &Path, file: &Path) -> String {
    let text =
        |name: Option<&std::ffi::OsStr>| name.unwrap_or_default().to_string_lossy().into_owned();
    match file.parent() {
        Some(folder) if folder != root => text(folder.file_name()),
        _ => {
            let name = text(file.file_stem());
            name.split_once('_').map_or(UNNAMED.to_owned(), |(class, _)| class.to_owned())
        }
    }
}
