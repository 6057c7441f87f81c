//! The manifest of a checkpoint: its files, with sizes and hashes.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{BaseFile, Error, FILES, FORMAT};

/// Name of the manifest's file; it is written last.
pub(crate) const MANIFEST: &str = "MANIFEST.json";
/// Longest manifest read: a ResNet-50 has 80 kB.
const MAX_MANIFEST_BYTES: u64 = 8 << 20;
/// Name of the only part of a file that is no safetensors file.
pub(crate) const CONTENTS: &str = "contents";
/// Name of a safetensors file's first part.
pub(crate) const HEADER: &str = "header";

/// Contents of `MANIFEST.json`, which also holds a seal: the BLAKE3 of itself in compact form with
/// an empty seal. The seal is made in the same way in every format.
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
    /// Name of that metric.
    pub monitor: Option<String>,
    /// `val/loss`, by which equal values of it are told apart, if it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The weights below adapters, whose tensors the checkpoint does not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseFile>,
    /// Each file, by name.
    pub files: BTreeMap<String, FileEntry>,
}

/// A file as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Size in bytes.
    pub bytes: u64,
    /// Parts, in order and without gaps: a header and tensors, or the contents as a whole.
    pub parts: Vec<Part>,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The tensor's name, `header` or `contents`.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3, hexadecimal.
    pub blake3: String,
}

/// Damage of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// There is no manifest, or it cannot be read.
    NoManifest(String),
    /// A newer ddprun wrote it.
    Newer {
        /// Format of the checkpoint.
        found: u32,
    },
    /// A file is missing.
    Missing(String),
    /// A file cannot be read.
    Unreadable { file: String, why: String },
    /// A file has another size.
    Size {
        file: String,
        /// Bytes there.
        found: u64,
        /// Bytes written.
        expected: u64,
    },
    /// A file holds NaN or infinity.
    NotFinite {
        file: String,
        /// The tensor.
        part: String,
    },
    /// A file has other contents.
    Contents {
        file: String,
        /// The first part that differs, in a file that has several.
        part: Option<String>,
    },
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
            Self::Unreadable { file, why } => write!(f, "`{file}` cannot be read ({why})"),
            Self::Size { file, found, expected } => {
                write!(f, "`{file}` has {found} bytes instead of {expected}")
            }
            Self::NotFinite { file, part } => {
                write!(f, "`{file}` holds NaN or infinity, first in `{part}`")
            }
            Self::Contents { file, part: None } => {
                write!(f, "`{file}` differs from what was written")
            }
            Self::Contents { file, part: Some(part) } => {
                write!(f, "`{file}` differs from what was written, first in `{part}`")
            }
        }
    }
}

impl Damage {
    /// The damage of `file` that this failure to read it shows.
    pub(crate) fn reading(file: &str, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::Missing(file.to_owned()),
            _ => Self::Unreadable { file: file.to_owned(), why: error.to_string() },
        }
    }
}

impl Part {
    /// The part `name` with these bytes.
    pub(crate) fn of(name: &str, bytes: &[u8]) -> Self {
        let blake3 = blake3::hash(bytes).to_hex().to_string();
        Self { name: name.to_owned(), bytes: bytes.len() as u64, blake3 }
    }
}

impl FileEntry {
    /// The entry of a file with these parts.
    pub(crate) fn of(parts: Vec<Part>) -> Self {
        Self { bytes: parts.iter().map(|part| part.bytes).sum(), parts }
    }
}

impl Manifest {
    /// The text of the manifest's file, with its seal.
    pub fn sealed(&self) -> Result<Vec<u8>, Error> {
        let failed = |error: serde_json::Error| Error::Encode {
            step: self.step,
            why: format!("`{MANIFEST}`: {error}"),
        };
        let mut value = serde_json::to_value(self).map_err(failed)?;
        value["seal"] = seal(&mut value).into();
        serde_json::to_vec_pretty(&value).map_err(failed)
    }

    /// Returns what makes no sense in the manifest, if anything.
    fn nonsense(&self) -> Option<String> {
        let missing = FILES.iter().find(|name| !self.files.contains_key(**name));
        let missing = missing.map(|name| format!("it does not name `{name}`"));
        let sum = |entry: &FileEntry| {
            entry.parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.bytes))
        };
        let gaps = self.files.iter().find(|(_, entry)| sum(entry) != Some(entry.bytes));
        missing.or_else(|| gaps.map(|(name, _)| format!("the parts of `{name}` do not add up")))
    }
}

/// BLAKE3 of the manifest with an empty seal.
fn seal(manifest: &mut Value) -> String {
    manifest["seal"] = "".into();
    // A value that was read or made of plain data has a written form.
    let text = serde_json::to_vec(manifest).unwrap_or_default();
    blake3::hash(&text).to_hex().to_string()
}

/// Reads and checks the manifest of `folder`.
pub(crate) fn read(folder: &Path) -> Result<Manifest, Damage> {
    let text = read_limited(&folder.join(MANIFEST))
        .map_err(|error| Damage::NoManifest(error.to_string()))?;
    parse(&text)
}

/// Checks the text of a manifest.
pub fn parse(text: &[u8]) -> Result<Manifest, Damage> {
    let unreadable = |error: serde_json::Error| Damage::NoManifest(error.to_string());
    let mut value: Value = serde_json::from_slice(text).map_err(unreadable)?;
    // Before the version, which may be what was damaged.
    if !value.is_object() || value["seal"].take() != seal(&mut value) {
        return Err(Damage::Contents { file: MANIFEST.to_owned(), part: None });
    }
    let Format { format } = Format::deserialize(&value).map_err(unreadable)?;
    if format > FORMAT {
        return Err(Damage::Newer { found: format });
    }
    let manifest: Manifest = serde_json::from_value(value).map_err(unreadable)?;
    manifest.nonsense().map_or(Ok(manifest), |why| Err(Damage::NoManifest(why)))
}

/// The JSON object in `text` with a seal of its own, which no fuzzer finds by itself.
#[cfg(any(test, feature = "fuzzing"))]
pub fn sealed_anew(text: &[u8]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    value.as_object()?;
    value["seal"] = seal(&mut value).into();
    serde_json::to_vec(&value).ok()
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn read_limited(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = super::verify::open_file(path)?;
    let mut text = Vec::new();
    file.take(MAX_MANIFEST_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    fn manifest() -> Manifest {
        let entry = |name: &&str| (name.to_string(), FileEntry::of(vec![Part::of(CONTENTS, b"x")]));
        Manifest {
            format: FORMAT,
            version: "0.1.0".into(),
            step: 25,
            metric: Some(0.1 + 0.2),
            monitor: Some("val/loss".into()),
            loss: None,
            base: None,
            files: FILES.iter().map(entry).collect(),
        }
    }

    fn read_as(text: &[u8]) -> Result<Manifest, Damage> {
        let folder = tempfile::tempdir().unwrap();
        crate::files::write_atomic(&folder.path().join(MANIFEST), text).unwrap();
        read(folder.path())
    }

    #[test]
    fn a_manifest_that_was_changed_is_not_believed() {
        let text = String::from_utf8(manifest().sealed().unwrap()).unwrap();
        assert_eq!(read_as(text.as_bytes()).unwrap(), manifest());
        let changed = [("25", "26"), ("0.3", "0.9"), ("0.1.0", "0.1.1"), ("\"model", "\"nodel")];
        for (from, to) in changed.into_iter().chain([("\"format\": 3", "\"format\": 4")]) {
            let damage = read_as(text.replacen(from, to, 1).as_bytes()).unwrap_err();
            let expected = Damage::Contents { file: MANIFEST.to_owned(), part: None };
            assert_eq!(damage, expected, "{from} -> {to}");
        }
        assert!(matches!(read_as(&text.as_bytes()[..40]), Err(Damage::NoManifest(_))));
        for no_object in ["3", "[]", "null"] {
            assert_refused(
                read_as(no_object.as_bytes()),
                "`MANIFEST.json` differs from what was written",
            );
        }
    }

    #[test]
    fn a_newer_format_is_refused_with_both_numbers() {
        let newer = Manifest { format: FORMAT + 1, ..manifest() }.sealed().unwrap();
        let damage = read_as(&newer).unwrap_err();
        assert_eq!(damage, Damage::Newer { found: FORMAT + 1 });
        assert!(damage.to_string().starts_with("it has format 4, this ddprun reads up to 3"));
    }

    #[test]
    fn a_manifest_that_makes_no_sense_is_refused() {
        let mut short = manifest();
        short.files.remove("state.json");
        let mut gaps = manifest();
        gaps.files.values_mut().next().unwrap().bytes += 1;
        for (manifest, why) in [(short, "does not name `state.json`"), (gaps, "do not add up")] {
            let damage = read_as(&manifest.sealed().unwrap()).unwrap_err();
            assert!(damage.to_string().contains(why), "{damage}");
        }
    }
}
