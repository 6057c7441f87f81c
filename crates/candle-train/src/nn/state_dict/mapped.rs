//! Safetensors files as mapped pages, which processes of one machine share.
#![expect(unsafe_code, reason = "a file that is mapped into memory")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use super::Error;
use super::file::{check_start, files_of};
use crate::ops::SharedBytes;

/// The bytes of the file, or of those that the index names, which are read as they are used.
///
/// A file may be replaced meanwhile, but not changed: a process that reads behind the end of one
/// that was cut off is ended by the system.
pub(super) fn map_all(path: &Path) -> Result<Vec<(PathBuf, SharedBytes)>, Error> {
    files_of(path)?.into_iter().map(|path| map(&path).map(|bytes| (path, bytes))).collect()
}

fn map(path: &Path) -> Result<SharedBytes, Error> {
    check_start(path)?;
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // SAFETY: the pages are only read, and any bytes are valid numbers; `map_all` says what happens
    // if another program changes the file.
    let mapped = unsafe { Mmap::map(&file) }.map_err(failed)?;
    Ok(Arc::new(mapped))
}
