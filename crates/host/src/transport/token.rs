//! The token of a run over several machines: 32 random bytes as hex, in a file that only its user
//! can read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zeroize::{Zeroize, Zeroizing};

use crate::transport::auth::{KEY_BYTES, Key};

/// Why a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("the token file `{}` cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// Other users could have read or written it.
    #[error("the token file `{}` {what}", path.display())]
    Exposed { path: PathBuf, what: String },
    /// It does not hold a token.
    #[error("the token file `{}` does not hold 64 hexadecimal digits", path.display())]
    Malformed { path: PathBuf },
}

/// The token in the file at `path`.
pub fn read_token(path: &Path) -> Result<Key, TokenError> {
    let unreadable = |source| TokenError::Unreadable { path: path.to_owned(), source };
    let exposed = |what: String| TokenError::Exposed { path: path.to_owned(), what };
    let file = File::open(path).map_err(unreadable)?;
    // Of the open file, not of its name: the file of that name may be replaced meanwhile.
    let about = file.metadata().map_err(unreadable)?;
    let user = rustix::process::geteuid().as_raw();
    if let Some(what) = exposure(about.uid(), about.mode(), user) {
        return Err(exposed(what));
    }
    // Large enough to stay where it is, and to be wiped there.
    let mut text = Zeroizing::new(String::with_capacity(4 * KEY_BYTES));
    // An endless file, or one that is not text, holds no token.
    let read = file.take(2 * KEY_BYTES as u64 + 2).read_to_string(&mut text);
    let key = read.ok().and_then(|_| parse(text.trim_end()));
    key.ok_or_else(|| TokenError::Malformed { path: path.to_owned() })
}

/// Reason why a file of this owner and mode is not `user`'s secret, if so. A secret that Kubernetes
/// mounts belongs to root and is read by way of its group (`fsGroup`), mode 0440.
fn exposure(owner: u32, mode: u32, user: u32) -> Option<String> {
    let allowed = match owner {
        _ if owner == user => 0o600,
        0 => 0o640,
        _ => return Some("belongs to another user".to_owned()),
    };
    let mode = mode & 0o777;
    let is_exposed = mode & !allowed != 0;
    is_exposed.then(|| format!("has mode {mode:04o}: others may have read it"))
}

/// A new token, as its file holds it.
pub fn new_token() -> io::Result<Zeroizing<String>> {
    Ok(token_text(&Key::random()?))
}

/// The token that [`read_token`] reads as `key`, as its file holds it.
pub fn token_text(key: &Key) -> Zeroizing<String> {
    let mut hash = blake3::Hash::from_bytes(*key.bytes());
    let mut hex = hash.to_hex();
    let text = Zeroizing::new(format!("{hex}\n"));
    hash.zeroize();
    hex.zeroize();
    text
}

fn parse(text: &str) -> Option<Key> {
    let mut hash = blake3::Hash::from_hex(text).ok()?;
    let key = Key::new(*hash.as_bytes());
    hash.zeroize();
    Some(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.token");
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn a_new_token_is_read_back_and_no_two_are_equal() {
        let text = new_token().unwrap();
        assert_eq!(text.len(), 65);
        let read = |text: &str| {
            let (_folder, path) = file(text, 0o600);
            read_token(&path).unwrap()
        };
        assert!(read(&text) == read(text.trim()));
        assert!(read(&text) != read(&new_token().unwrap()));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_its_mode() {
        for mode in [0o644, 0o640, 0o604, 0o700, 0o620] {
            let (_folder, path) = file(&new_token().unwrap(), mode);
            let error = read_token(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("has mode {mode:04o}")), "{error}");
        }
    }

    #[test]
    fn a_secret_of_root_may_be_read_by_its_group_and_by_no_one_else() {
        assert_eq!([0o440, 0o400, 0o640].map(|mode| exposure(0, mode, 1000)), [None, None, None]);
        let others = "has mode 0444: others may have read it";
        assert_eq!(exposure(0, 0o444, 1000).as_deref(), Some(others));
        assert!(exposure(0, 0o460, 1000).is_some(), "its group may write");
        assert!(exposure(1000, 0o440, 1000).is_some(), "the group of a file of one's own");
        assert_eq!(exposure(1001, 0o400, 1000).as_deref(), Some("belongs to another user"));
    }

    #[test]
    fn a_link_to_a_secret_is_judged_by_the_file() {
        let (folder, path) = file(&new_token().unwrap(), 0o400);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read_token(&link).unwrap() == read_token(&path).unwrap());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        assert!(matches!(read_token(&link), Err(TokenError::Exposed { .. })));
    }

    #[test]
    fn anything_but_a_token_is_refused() {
        let token = new_token().unwrap();
        for text in ["", "abc\n", &token[1..], &format!("0{}", *token), &token.replace('\n', "\nx")]
        {
            let (_folder, path) = file(text, 0o600);
            assert!(matches!(read_token(&path), Err(TokenError::Malformed { .. })), "{text:?}");
        }
        assert!(matches!(
            read_token(Path::new("/nonexistent/t")),
            Err(TokenError::Unreadable { .. })
        ));
    }
}
