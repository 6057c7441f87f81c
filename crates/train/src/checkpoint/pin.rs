//! The checkpoint of another run, kept as long as it is needed: that run may delete it at any
//! moment.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::checkpoint::load::Opened;
use crate::checkpoint::manifest::MANIFEST;
use crate::checkpoint::{Error, FILES};
use crate::files::{self, NewFile};

/// Name of the folder, beside the checkpoints of a run, with the one of another run that its first
/// weights are from.
pub const PIN: &str = "pretrained";

/// Those that this process keeps open.
static HELD: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// Keeps a checkpoint open to the end of this process, so that it can be opened again by its path
/// also when it is deleted.
pub fn hold(opened: &Opened) {
    if held(&opened.path).is_none() {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).push(opened.clone());
    }
}

/// The one of this path, if it is kept open.
pub fn held(path: &Path) -> Option<Opened> {
    let all = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|opened| opened.path == path).cloned()
}

/// Makes `folder` the same checkpoint, which takes no space where the file system has hard links.
pub fn pin(opened: &Opened, folder: &Path) -> Result<(), Error> {
    files::write_folder_atomic(folder, |temporary| {
        for name in FILES.into_iter().chain([MANIFEST]) {
            let damaged = |damage| Error::Damaged { path: opened.path.clone(), damage };
            let file = opened.files.get(name).map_err(damaged)?;
            NewFile::link_or_copy(file, &opened.path.join(name), &temporary.join(name))?;
        }
        Ok(())
    })
}
