//! Translated kernels on disk: NVRTC takes seconds for them, in every process.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::kernel_text::OPTION;

/// Where they are kept; unset, they are not.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// From now on, translated kernels are kept in `folder`, which is made if it is not there, and
/// looked for there first. The first folder of a process stays.
pub fn keep_kernels_in(folder: PathBuf) {
    FOLDER.get_or_init(|| folder);
}

/// What a translation depends on.
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    /// As `sm_90`.
    pub(super) architecture: &'a str,
    /// NVRTC's, of which other versions make other code.
    pub(super) version: (i32, i32),
}

impl Source<'_> {
    /// The kept translation, if there is one.
    pub(super) fn load(&self) -> Option<Vec<u8>> {
        self.load_from(FOLDER.get()?)
    }

    /// Keeps a translation. One that cannot be kept is made anew by the next process.
    pub(super) fn keep(&self, code: &[u8]) {
        if let Some(folder) = FOLDER.get() {
            let _ = self.keep_in(folder, code);
        }
    }

    fn load_from(&self, folder: &Path) -> Option<Vec<u8>> {
        let file = std::fs::read(folder.join(self.name())).ok()?;
        Some(file.strip_prefix(&*self.key())?.to_vec())
    }

    fn keep_in(&self, folder: &Path, code: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        // Ranks may write at once; who reads finds a whole file.
        let mine = folder.join(format!(".{}-{}", self.name(), std::process::id()));
        let mut file = std::fs::File::create(&mine)?;
        let written = file.write_all(&self.key()).and_then(|()| file.write_all(code));
        written.and_then(|()| std::fs::rename(&mine, folder.join(self.name()))).inspect_err(|_| {
            let _ = std::fs::remove_file(&mine);
        })
    }

    fn name(&self) -> String {
        let mut hash = DefaultHasher::new();
        hash.write(&self.key());
        format!("{}-{:016x}", self.architecture, hash.finish())
    }

    /// What a file begins with: two sources may have one hash.
    fn key(&self) -> Vec<u8> {
        let Self { text, architecture, version: (major, minor) } = self;
        format!("{architecture} {OPTION} nvrtc {major}.{minor}\n{text}\0").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_its_text_architecture_and_version_alone() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("kernels");
        let source = Source { text: "a kernel", architecture: "sm_90", version: (13, 0) };
        assert_eq!(source.load_from(&inside), None);
        source.keep_in(&inside, b"its code").unwrap();
        assert_eq!(source.load_from(&inside).as_deref(), Some(&b"its code"[..]));
        for other in [
            Source { text: "another", ..source },
            Source { architecture: "sm_80", ..source },
            Source { version: (13, 1), ..source },
        ] {
            assert_eq!(other.load_from(&inside), None);
        }
        // A file of the same name that holds something else.
        std::fs::copy(inside.join(source.name()), inside.join("copy")).unwrap();
        let other = Source { text: "another", ..source };
        std::fs::rename(inside.join("copy"), inside.join(other.name())).unwrap();
        assert_eq!(other.load_from(&inside), None);
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 2);
    }
}
