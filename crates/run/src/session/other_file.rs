//! A file or folder that stands where an experiment file is wanted.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::data;
use crate::record;
use crate::user_error::{ErrorPage, ExitCode};

/// Endings of files that `ddprun init` looks at.
const DATA: [&str; 26] = [
    "csv", "tsv", "json", "jsonl", "ndjson", "parquet", "npz", "npy", "xlsx", "xls", "ods", "arff",
    "tsf", "feather", "arrow", "txt", "data", "wav", "flac", "mp3", "jpg", "jpeg", "png", "tif",
    "bmp", "webp",
];
const WEIGHTS: [&str; 10] =
    ["safetensors", "pt", "pth", "ckpt", "pkl", "onnx", "gguf", "h5", "hdf5", "keras"];
const ARCHIVES: [&str; 6] = ["zip", "tar", "tgz", "7z", "rar", "xz"];
const PROGRAMS: [&str; 4] = ["py", "ipynb", "sh", "rs"];

/// Refuses data, weights, a program or a folder in the place of an experiment file, with what is to
/// be done with it.
pub fn refuse_other_files(path: &Path) -> Result<(), ErrorPage> {
    let name = path.display();
    let (what, help) = if path.is_dir() {
        let help = if record::is_run(path) {
            format!(
                "continue this run with `ddprun resume {name}`, or see it with `ddprun report \
                 {name}`"
            )
        } else {
            format!("write an experiment for the data in it with `ddprun init {name}`")
        };
        ("a folder", help)
    } else if let Some(found) = kind_of(path) {
        found
    } else {
        return Ok(());
    };
    let page = format!("error: `{name}` is {what}, not an experiment file\n  do: {help}");
    Err(ErrorPage::new(ExitCode::Refused, page))
}

/// The kind of a file that is no experiment, and a remedy.
fn kind_of(path: &Path) -> Option<(&'static str, String)> {
    let ending = data::unpacked(path).extension().unwrap_or_default();
    let ending = ending.to_string_lossy().to_lowercase();
    let (ending, name) = (ending.as_str(), path.display());
    if ending == "toml" || !path.is_file() {
        return None;
    }
    let init = || format!("write an experiment for it with `ddprun init {name}`");
    let is_pickle = ending == "bin" && begins_with(path, &[b"PK\x03\x04", b"\x80\x02"]);
    if is_pickle || WEIGHTS.contains(&ending) {
        let help = format!(
            "start from it with `model.pretrained = \"{name}\"` in an experiment, or evaluate it \
             with `ddprun eval --weights {name} EXPERIMENT.toml`"
        );
        return Some(("a file of weights", help));
    }
    if ARCHIVES.contains(&ending) {
        let help = "unpack it, and write an experiment for what is in it with `ddprun init FOLDER`";
        return Some(("an archive", help.to_owned()));
    }
    if PROGRAMS.contains(&ending) {
        let help = "write an experiment for your data with `ddprun init DATA`: it is a TOML file";
        return Some(("a program", help.to_owned()));
    }
    if ["yaml", "yml"].contains(&ending) {
        let help = "write it in TOML, with the keys of `ddprun schema`, or begin with `ddprun init \
                    DATA`";
        return Some(("written in YAML", help.to_owned()));
    }
    (DATA.contains(&ending) || holds_no_keys(path)).then(|| ("a file of data", init()))
}

fn begins_with(path: &Path, all: &[&[u8]]) -> bool {
    let mut first = [0; 8];
    let read = File::open(path).and_then(|mut file| file.read(&mut first));
    read.is_ok() && all.iter().any(|magic| first.starts_with(magic))
}

/// True if the first lines of a file are no text, or have neither keys nor tables.
fn holds_no_keys(path: &Path) -> bool {
    const LOOKED_AT: u64 = 4096;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut bytes));
    if read.is_err() || bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return false;
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut lines = lines.filter(|line| !line.starts_with('#')).peekable();
    lines.peek().is_some() && lines.all(|line| !line.contains('=') && !line.starts_with('['))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_experiment_is_called_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let page = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            crate::files::write_atomic(&path, bytes).unwrap();
            refuse_other_files(&path).err().map_or(String::new(), |refusal| refusal.to_string())
        };
        for (name, bytes, what, help) in [
            ("iris.csv", &b"a,y\n1,2\n"[..], "is a file of data", "with `ddprun init "),
            ("iris.csv.gz", b"\x1f\x8b", "is a file of data", "with `ddprun init "),
            ("iris.data", b"5.1,3.5\n4.9,3.0\n", "is a file of data", "with `ddprun init "),
            ("iris", b"5.1,3.5\n4.9,3.0\n", "is a file of data", "with `ddprun init "),
            ("book.xlsx", b"PK\x03\x04", "is a file of data", "with `ddprun init "),
            ("w.npz", b"PK\x03\x04", "is a file of data", "with `ddprun init "),
            ("w.pt", b"PK\x03\x04", "is a file of weights", "`model.pretrained = \""),
            ("pytorch_model.bin", b"PK\x03\x04", "is a file of weights", "eval --weights"),
            ("tokens.bin", b"\x07\0\x09\0", "is a file of data", "with `ddprun init "),
            ("w.safetensors", b"\x08\0\0\0\0\0\0\0{}", "is a file of weights", "eval --weights"),
            ("x.yaml", b"train:\n  epochs: 3\n", "is written in YAML", "TOML"),
            ("train.py", b"x = 1\n", "is a program", "TOML"),
            ("data.zip", b"PK\x03\x04", "is an archive", "unpack it"),
        ] {
            let page = page(name, bytes);
            assert!(page.contains(what) && page.contains(help), "{name}: {page}");
        }
        for (name, text) in [
            ("x.toml", "1,2\n"),
            ("x.conf", "# an experiment\nschema = 1\n"),
            ("x", "[train]\n"),
            ("empty", ""),
        ] {
            assert_eq!(page(name, text.as_bytes()), "", "{name}");
        }
        assert!(refuse_other_files(folder.path()).is_err(), "a folder");
        assert!(refuse_other_files(&folder.path().join("absent.csv")).is_ok());
    }
}
