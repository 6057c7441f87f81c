//! The user's cache folder, for results that can be computed again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{create_folder, write_secret};

/// `$DDPRUN_CACHE`, else `$XDG_CACHE_HOME/ddprun`, else `~/.cache/ddprun`; `None` where that is
/// `off` or there is no place for it.
pub fn user_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match variable("DDPRUN_CACHE") {
        Some(off) if off == "off" => None,
        Some(folder) => Some(PathBuf::from(folder)),
        None => match variable("XDG_CACHE_HOME") {
            Some(folder) => Some(PathBuf::from(folder).join("ddprun")),
            None => Some(PathBuf::from(variable("HOME")?).join(".cache/ddprun")),
        },
    }
}

/// Bytes that only this user's processes on this machine can know, from a file of the cache; `None`
/// where there is no cache.
pub fn user_secret() -> Option<Vec<u8>> {
    let path = user_cache()?.join("secret");
    if !path.exists() {
        create_folder(path.parent()?).ok()?;
        make_secret(&path)?;
    }
    read_secret(&path)
}

/// Makes the file under another name first: processes that start together all read the one that has
/// its name first.
fn make_secret(path: &Path) -> Option<()> {
    let mut bytes = [0; 32];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).ok()?;
    let temporary = super::temporary_beside(path).ok()?;
    write_secret(&temporary, &bytes).ok()?;
    // Fails where another process was faster.
    let _ = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary).ok()
}

fn read_secret(path: &Path) -> Option<Vec<u8>> {
    let found = fs::symlink_metadata(path).ok()?;
    let is_own = found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
    let others = 0o077;
    if !is_own || found.mode() & others != 0 {
        return None;
    }
    super::read(path).ok().filter(|bytes| bytes.len() == 32)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn processes_that_start_together_read_one_secret_which_no_other_user_can() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let secrets: Vec<_> = std::thread::scope(|scope| {
            let one = || {
                make_secret(&path);
                read_secret(&path).unwrap()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0] && *secret != [0; 32]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_secret(&path), None, "others may have read it");
    }
}
