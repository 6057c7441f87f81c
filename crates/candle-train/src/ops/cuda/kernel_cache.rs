//! Translated kernels on disk: NVRTC takes seconds for them, in every process.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use super::kernel_text::OPTION;

/// The folder that they are kept in; unset, they are not kept.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();
/// Time after which an unused file is removed: kernels of another version, or a temporary file of a
/// process that was killed while writing it.
const UNUSED: Duration = Duration::from_hours(30 * 24);

/// From now on, translated kernels are kept in `folder`, which is made if it is not there, and
/// looked for there first. The first folder of a process stays.
pub fn keep_kernels_in(folder: PathBuf) {
    FOLDER.get_or_init(|| folder);
}

/// Everything that a translation depends on.
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    /// Architecture of the GPU, such as `sm_90`.
    pub(super) architecture: &'a str,
    /// Version of NVRTC: other versions make other code.
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
        let mut file = std::fs::File::open(folder.join(self.name())).ok()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        let (sum, code) = bytes.strip_prefix(&*self.key())?.split_first_chunk::<8>()?;
        if *sum != checksum(code) {
            return None;
        }
        // It was used; who may not say so lets it grow old.
        let _ = file.set_modified(SystemTime::now());
        Some(code.to_vec())
    }

    fn keep_in(&self, folder: &Path, code: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        remove_unused(folder);
        // Ranks may write at once; who reads finds a whole file.
        let mine = folder.join(format!(".{}-{}", self.name(), std::process::id()));
        let mut file = std::fs::File::create(&mine)?;
        let written = file.write_all(&[&self.key()[..], &checksum(code), code].concat());
        written.and_then(|()| std::fs::rename(&mine, folder.join(self.name()))).inspect_err(|_| {
            let _ = std::fs::remove_file(&mine);
        })
    }

    fn name(&self) -> String {
        format!("{}-{:016x}", self.architecture, hash(&self.key()))
    }

    /// Begins a file, since two sources may have one hash.
    fn key(&self) -> Vec<u8> {
        let Self { text, architecture, version: (major, minor) } = self;
        format!("{architecture} {OPTION} nvrtc {major}.{minor}\n{text}\0").into_bytes()
    }
}

/// Stands before the code, which the driver reads without knowing where it ends: half of a file would
/// end the process.
fn checksum(code: &[u8]) -> [u8; 8] {
    hash(code).to_le_bytes()
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Removes this module's files that are unused for longer than [`UNUSED`]. Another process may be
/// doing the same, so failures are ignored.
fn remove_unused(folder: &Path) {
    let Ok(files) = std::fs::read_dir(folder) else { return };
    for file in files.flatten() {
        let name = file.file_name();
        let is_ours = name.to_string_lossy().trim_start_matches('.').starts_with("sm_");
        let used = file.metadata().and_then(|about| about.modified()).ok();
        let age = used.and_then(|used| used.elapsed().ok());
        if is_ours && age.is_some_and(|age| age > UNUSED) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are damaged on purpose")]
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

    #[test]
    fn half_of_a_file_and_a_changed_one_are_no_code() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source { text: "a kernel", architecture: "sm_90", version: (13, 0) };
        source.keep_in(folder.path(), &[7; 1000]).unwrap();
        let file = folder.path().join(source.name());
        let whole = std::fs::read(&file).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() - 500] = 8;
        for damaged in [&changed[..], &whole[..whole.len() - 1], &whole[..whole.len() - 1004], &[]]
        {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(source.load_from(folder.path()), None, "{} bytes", damaged.len());
        }
        std::fs::write(&file, &whole).unwrap();
        assert_eq!(source.load_from(folder.path()), Some(vec![7; 1000]));
    }

    #[test]
    fn files_unused_for_long_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let of = |text| Source { text, architecture: "sm_90", version: (13, 0) };
        let grow_old = |name: &str| {
            let file = std::fs::File::open(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - 2 * UNUSED).unwrap();
        };
        for text in ["used", "not used"] {
            of(text).keep_in(folder.path(), b"code").unwrap();
        }
        for name in [".sm_90-0123-77", "notes"] {
            std::fs::write(folder.path().join(name), "").unwrap();
            grow_old(name);
        }
        grow_old(&of("used").name());
        grow_old(&of("not used").name());
        assert!(of("used").load_from(folder.path()).is_some());
        of("new").keep_in(folder.path(), b"code").unwrap();
        let left = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
        let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
        let mut expected = [of("used").name(), of("new").name(), "notes".to_owned()];
        left.sort();
        expected.sort();
        assert_eq!(left, expected);
    }
}
