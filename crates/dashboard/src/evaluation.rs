//! Results of `ddprun eval --out` in a run's folder or in a folder inside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files;
use crate::record;

/// Name of the file.
const NAME: &str = "eval.json";
/// Bytes of a picture that is shown.
const MAX_IMAGE: u64 = 4 << 20;

/// One evaluated part of the data.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Evaluation {
    time: i64,
    metrics: Value,
    #[serde(flatten)]
    part: Part,
}

/// As `eval.json` has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    split: String,
    #[serde(default)]
    classes: Vec<Value>,
    #[serde(default)]
    confusion: Vec<Vec<u64>>,
    #[serde(default)]
    worst: Vec<Sample>,
}

/// A sample that the model is wrong about.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sample {
    /// File of the sample, or its position in one.
    #[serde(rename = "sample")]
    name: String,
    /// Address of the picture.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// Evaluations of the run in `folder`. Files that cannot be parsed are skipped.
pub(crate) fn evaluations(folder: &Path, id: &str) -> Vec<Evaluation> {
    let mut found = parts(folder);
    let base = base(folder);
    for (at, evaluation) in found.iter_mut().enumerate() {
        for (index, sample) in evaluation.part.worst.iter_mut().enumerate() {
            if picture(&sample.name, base.as_deref()).is_some() {
                let id = encoded(id);
                sample.image = Some(format!("api/image?id={id}&evaluation={at}&sample={index}"));
            }
        }
    }
    found
}

fn parts(folder: &Path) -> Vec<Evaluation> {
    let inner = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> =
        inner.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.insert(0, folder.to_owned());
    folders.iter().filter_map(|folder| read(&folder.join(NAME))).flatten().collect()
}

fn read(path: &Path) -> Option<Vec<Evaluation>> {
    let written = path.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let mut value: Value = serde_json::from_slice(&files::read(path).ok()?).ok()?;
    let metrics = value.get("metrics").cloned().unwrap_or_default();
    let parts: Vec<Part> = serde_json::from_value(value.get_mut("details")?.take()).ok()?;
    let time = written.as_millis() as i64;
    let of = |part| Evaluation { time, metrics: metrics.clone(), part };
    Some(parts.into_iter().map(of).collect())
}

/// The picture of a sample: only if an evaluation names it, and only in formats that run nothing.
pub(crate) fn image(folder: &Path, at: usize, sample: usize) -> Option<(&'static str, Vec<u8>)> {
    let evaluation = parts(folder).into_iter().nth(at)?;
    let name = &evaluation.part.worst.get(sample)?.name;
    let (kind, path) = picture(name, base(folder).as_deref())?;
    Some((kind, files::read(&path).ok()?))
}

/// Sets the addresses of pictures to `data:` URLs that contain them.
pub(crate) fn inline(folder: &Path, found: &mut [Evaluation]) {
    for (at, evaluation) in found.iter_mut().enumerate() {
        for (index, sample) in evaluation.part.worst.iter_mut().enumerate() {
            let image = image(folder, at, index);
            sample.image =
                image.map(|(kind, bytes)| format!("data:{kind};base64,{}", base64(&bytes)));
        }
    }
}

/// The folder that relative paths of a run start from: the one that it was last started in.
fn base(folder: &Path) -> Option<PathBuf> {
    record::read_environment(folder).ok()?.pop().map(|start| start.folder)
}

/// The kind of picture that a sample is, and its file. A relative path is one from `base`, where the
/// run was started, or else from where the server was.
fn picture(sample: &str, base: Option<&Path>) -> Option<(&'static str, PathBuf)> {
    // Earlier versions wrote names with quotes.
    let path = PathBuf::from(sample.trim_matches('`'));
    let kind = match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "jpg" | "jpeg" => "image/jpeg",
        "png" => "image/png",
        "webp" => "image/webp",
        "bmp" => "image/bmp",
        _ => return None,
    };
    let at_run = base.map(|base| base.join(&path)).filter(|path| path.is_file());
    let path = at_run.unwrap_or(path);
    let found = path.metadata().ok()?;
    (found.is_file() && found.len() <= MAX_IMAGE).then_some((kind, path))
}

/// Percent-encodes text for an address.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let place = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= three.len() { char::from(DIGITS[place as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let pairs =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (text, expected) in pairs {
            assert_eq!(base64(text.as_bytes()), expected);
        }
        assert_eq!(encoded("a b/ü"), "a%20b%2F%C3%BC");
    }

    #[test]
    fn only_pictures_that_an_evaluation_names_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let picture = folder.path().join("cat.PNG");
        let secret = folder.path().join("secret.txt");
        for path in [&picture, &secret] {
            crate::files::write_atomic(path, b"bytes").unwrap();
        }
        let worst =
            [&picture, &secret].map(|path| serde_json::json!({"sample": path, "loss": 2.0}));
        let value = serde_json::json!({
            "step": 3, "metrics": {"val/loss": 0.5},
            "details": [{"split": "val", "classes": [], "confusion": [[1]], "worst": worst}],
        });
        std::fs::create_dir(folder.path().join("eval")).unwrap();
        let path = folder.path().join("eval").join(NAME);
        crate::files::write_atomic(&path, value.to_string().as_bytes()).unwrap();
        let mut found = evaluations(folder.path(), "a/b");
        let images = |found: &[Evaluation]| -> Vec<Option<String>> {
            found[0].part.worst.iter().map(|sample| sample.image.clone()).collect()
        };
        let address = "api/image?id=a%2Fb&evaluation=0&sample=0";
        assert_eq!(images(&found), [Some(address.to_owned()), None]);
        assert_eq!(image(folder.path(), 0, 0), Some(("image/png", b"bytes".to_vec())));
        assert_eq!((image(folder.path(), 0, 1), image(folder.path(), 1, 0)), (None, None));
        // A relative path is one from where the run was started.
        let start = serde_json::json!({
            "time": "2026-11-20T13:00:00Z", "ddprun": "0.1.0", "target": "x", "profile": "debug",
            "git_revision": null, "host": "a", "system": "Linux", "cpu": null, "cores": 2,
            "folder": folder.path(), "command_line": ["ddprun"],
        });
        let written = serde_json::json!({ "format": 1, "starts": [start] }).to_string();
        let environment = folder.path().join(record::ENVIRONMENT);
        crate::files::write_atomic(&environment, written.as_bytes()).unwrap();
        let base = base(folder.path()).unwrap();
        assert_eq!(super::picture("cat.PNG", Some(&base)).unwrap().1, picture);
        assert_eq!(super::picture("`cat.PNG`", Some(&base)).unwrap().1, picture);
        assert_eq!(super::picture("cat.PNG", None), None);
        inline(folder.path(), &mut found);
        assert_eq!(images(&found), [Some("data:image/png;base64,Ynl0ZXM=".to_owned()), None]);
    }
}
