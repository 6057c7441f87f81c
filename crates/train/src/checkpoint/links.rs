//! `latest` and `best`: links for people. What counts are the manifests, from which links are made
//! anew.
//!
//! A copy of a run may have something else in their place: folders (`cp -rL`, object stores), small
//! files (network shares), or nothing. A folder is the checkpoint that it was copied from.

use std::path::{Path, PathBuf};

use crate::checkpoint::save::name;
use crate::checkpoint::{Error, load, manifest};
use crate::failpoint;
use crate::files;

/// Longest file that a copy makes of a link: a path and some words.
const MAX_LINK_BYTES: u64 = 4 << 10;
/// The names of links; the last two are those of the seeds.
pub(super) const NAMES: [&str; 4] = ["latest", "best", "checkpoint_latest", "checkpoint_best"];

/// Makes the links of a kind, `latest` or `best`, lead to the checkpoint of `step`. They are left
/// out where the file system has no links, or where something else has their names.
pub(crate) fn link(folder: &Path, kind: &str, step: u64) -> Result<(), Error> {
    let target = folder.join(name(step));
    for link in [kind.to_owned(), format!("checkpoint_{kind}")] {
        match files::swap_link(&folder.join(link), &target) {
            Err(error) if error.is_without_links() => {}
            swapped => swapped?,
        }
        failpoint::reach("checkpoint.link");
    }
    Ok(())
}

/// Folders in the place of links: copies of checkpoints.
pub(crate) fn copies(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let paths = NAMES.map(|name| folder.join(name)).into_iter();
    paths.filter(|path| path.symlink_metadata().is_ok_and(|found| found.is_dir()))
}

/// Renames copies of checkpoints to their own names, and removes those that are there twice, so
/// that links can be made.
pub(crate) fn heal(folder: &Path) -> Result<(), Error> {
    for copy in copies(folder) {
        // A folder that is not a checkpoint belongs to the user.
        let Ok(manifest) = manifest::read(&copy) else { continue };
        let own = folder.join(name(manifest.step));
        if own.is_dir() && load::verify(&own).is_ok() {
            files::remove_folder(&copy)?;
        } else if load::verify(&copy).is_ok() {
            if own.is_dir() {
                files::remove_folder(&own)?;
            }
            files::rename_folder(&copy, &own)?;
        }
    }
    let paths = NAMES.map(|name| folder.join(name));
    paths.iter().filter(|path| was_a_link(path)).try_for_each(|path| Ok(files::remove_file(path)?))
}

/// True if a file is what a copy has made of a link: it is empty, or names the link's target.
pub(super) fn was_a_link(path: &Path) -> bool {
    let found = path.symlink_metadata();
    if !found.is_ok_and(|found| found.is_file() && found.len() <= MAX_LINK_BYTES) {
        return false;
    }
    // Some shares write UTF-16, with or without a word before it.
    let bytes = files::read(path).unwrap_or_default();
    let text: Vec<u8> = bytes.iter().copied().filter(|&byte| byte != 0).collect();
    bytes.is_empty() || text.windows(5).any(|word| word == b"step-")
}
