//! What a checkpoint must consist of.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checkpoint::FORMAT;

/// Name of the manifest's file; it is written last.
pub(crate) const MANIFEST: &str = "MANIFEST.json";

/// Contents of `MANIFEST.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the folder's form.
    pub format: u32,
    /// Version of ddprun that wrote it.
    pub version: String,
    /// State after this step.
    pub step: u64,
    /// Value of the metric that ranks checkpoints, if it was known.
    pub metric: Option<f64>,
    /// Size and hash of each file, by name.
    pub files: BTreeMap<String, FileEntry>,
    /// BLAKE3 of the manifest itself, written with an empty seal.
    pub seal: String,
}

impl Manifest {
    /// The manifest with its own hash in it.
    #[must_use]
    pub fn sealed(self) -> Self {
        let open = Self { seal: String::new(), ..self };
        let text = serde_json::to_vec(&open).unwrap_or_default();
        Self { seal: blake3::hash(&text).to_hex().to_string(), ..open }
    }

    fn is_intact(&self) -> bool {
        self.clone().sealed().seal == self.seal
    }
}

/// Size and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3, hexadecimal.
    pub blake3: String,
}

impl FileEntry {
    /// The entry of a file with these contents.
    pub fn of(contents: &[u8]) -> Self {
        Self { bytes: contents.len() as u64, blake3: blake3::hash(contents).to_hex().to_string() }
    }
}

/// What is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// There is no manifest, or it cannot be read.
    NoManifest(String),
    /// A newer ddprun wrote it.
    Newer {
        /// Its format.
        found: u32,
    },
    /// A file is missing or unreadable.
    Missing(String),
    /// A file has another size.
    Size {
        /// Its name.
        file: String,
        /// Bytes there.
        found: u64,
        /// Bytes written.
        expected: u64,
    },
    /// A file has other contents.
    Contents(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoManifest(why) => write!(f, "`{MANIFEST}` cannot be read ({why})"),
            Self::Newer { found } => write!(
                f,
                "it has format {found}, this ddprun reads up to {FORMAT}: use a newer ddprun"
            ),
            Self::Missing(file) => write!(f, "`{file}` is missing"),
            Self::Size { file, found, expected } => {
                write!(f, "`{file}` has {found} bytes instead of {expected}")
            }
            Self::Contents(file) => write!(f, "`{file}` has other contents than were written"),
        }
    }
}

/// Reads and checks the manifest of `folder`.
pub(crate) fn read(folder: &Path) -> Result<Manifest, Damage> {
    let bytes = std::fs::read(folder.join(MANIFEST))
        .map_err(|error| Damage::NoManifest(error.to_string()))?;
    // The version is read first, so that a newer form is named rather than misread.
    let version: Format =
        serde_json::from_slice(&bytes).map_err(|error| Damage::NoManifest(error.to_string()))?;
    if version.format > FORMAT {
        return Err(Damage::Newer { found: version.format });
    }
    let manifest: Manifest =
        serde_json::from_slice(&bytes).map_err(|error| Damage::NoManifest(error.to_string()))?;
    if manifest.is_intact() { Ok(manifest) } else { Err(Damage::Contents(MANIFEST.to_owned())) }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// The contents of every file that the manifest names, checked against it: the bytes that are used
/// are the bytes that were checked.
pub(crate) fn read_files(
    folder: &Path,
    manifest: &Manifest,
) -> Result<BTreeMap<String, Vec<u8>>, Damage> {
    let mut contents = BTreeMap::new();
    for (name, expected) in &manifest.files {
        let bytes = std::fs::read(folder.join(name)).map_err(|_| Damage::Missing(name.clone()))?;
        let found = bytes.len() as u64;
        if found != expected.bytes {
            let (file, expected) = (name.clone(), expected.bytes);
            return Err(Damage::Size { file, found, expected });
        }
        if FileEntry::of(&bytes) != *expected {
            return Err(Damage::Contents(name.clone()));
        }
        contents.insert(name.clone(), bytes);
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_that_was_changed_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = Manifest {
            format: FORMAT,
            version: "0.1.0".into(),
            step: 25,
            metric: Some(0.1 + 0.2),
            files: BTreeMap::from([("a".to_owned(), FileEntry::of(b"contents"))]),
            seal: String::new(),
        };
        let text = serde_json::to_string_pretty(&manifest.sealed()).unwrap();
        let read_as = |text: &str| {
            crate::files::write_atomic(&folder.path().join(MANIFEST), text.as_bytes()).unwrap();
            read(folder.path())
        };
        assert_eq!(read_as(&text).unwrap().step, 25);
        let changed = [("25", "26"), ("0.3", "0.9"), ("0.1.0", "0.1.1"), ("\"a\"", "\"b\"")];
        for (from, to) in changed {
            let damage = read_as(&text.replacen(from, to, 1)).unwrap_err();
            assert_eq!(damage, Damage::Contents(MANIFEST.to_owned()), "{from} -> {to}");
        }
        assert!(matches!(read_as(&text[..40]), Err(Damage::NoManifest(_))));
        let newer = text.replace("\"format\": 1", "\"format\": 2");
        assert_eq!(read_as(&newer), Err(Damage::Newer { found: 2 }));
    }
}
