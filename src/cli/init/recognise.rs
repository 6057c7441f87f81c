//! A path -> the data set that it holds.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::Refusal;
use crate::cli::init::recognised::{Recognised, Task, VAL_FRACTION, path, unusable};
use crate::cli::init::{images, table};

/// Names of the part to validate on, beside `train`.
const VAL: [&str; 5] = ["val", "valid", "validation", "test", "eval"];
const KNOWN: &str = "give a folder of class folders with images, a folder with `train` and `val` (of class \
                     folders with images or recordings, or of csv, jsonl or bin files), MNIST's idx files, a csv \
                     file, a text, an npz or parquet file, or the folder of a LeRobot data set";
/// Characters of a text or tokens of a file that a sample has.
const SEQ_LEN: u64 = 64;

/// What the file or folder at `at` holds.
///
/// # Errors
///
/// Nothing that an experiment could read; with what to do about it.
pub(super) fn recognise(at: &Path) -> Result<Recognised, Refusal> {
    match fs::metadata(at) {
        Err(error) => Err(unusable(at, &format!("cannot be read: {error}"), "check its path")),
        Ok(found) if found.is_dir() => folder(at),
        Ok(found) if found.len() == 0 => Err(unusable(at, "is empty", KNOWN)),
        Ok(_) => file(at),
    }
}

fn folder(at: &Path) -> Result<Recognised, Refusal> {
    if let Some((train, val)) = parts(at) {
        return split(&train, &val);
    }
    if at.join("meta/info.json").is_file() {
        return Ok(Recognised::new("trajectories", &[("file", path(at))], Task::Behaviour));
    }
    if let Some(both) = file_parts(at, None) {
        return both;
    }
    let files = files(at);
    if files.iter().any(|file| name(file).starts_with("train-images-idx3-ubyte")) {
        return Ok(Recognised::new("mnist", &[("dir", path(at))], Task::Digits));
    }
    if images::has_classes(at) {
        let options = [("train_dir", path(at)), ("val_fraction", VAL_FRACTION.into())];
        return Ok(Recognised::new("image_folder", &options, Task::Images(at.to_owned())));
    }
    if has_speech(at) {
        let what = "has recordings, but none to validate on";
        return Err(unusable(at, what, "move some of them: PATH/train/* and PATH/val/*"));
    }
    let usable: Vec<&PathBuf> = files.iter().filter(|file| is_known(file)).collect();
    match usable[..] {
        [only] => file(only),
        _ => Err(unusable(at, "holds nothing that is recognised", KNOWN)),
    }
}

/// The folders to train and to validate on.
fn parts(at: &Path) -> Option<(PathBuf, PathBuf)> {
    let train = at.join("train");
    let val = VAL.iter().map(|name| at.join(name)).find(|path| path.is_dir())?;
    train.is_dir().then_some((train, val))
}

/// Two folders of the same kind of data.
fn split(train: &Path, val: &Path) -> Result<Recognised, Refusal> {
    let options = [("train_dir", path(train)), ("val_dir", path(val))];
    if images::has_classes(train) {
        return Ok(Recognised::new("image_folder", &options, Task::Images(train.to_owned())));
    }
    if has_speech(train) {
        return Ok(Recognised::new("speech", &options, Task::Speech));
    }
    Err(unusable(train, "holds neither class folders of images nor recordings", KNOWN))
}

/// Whether a folder, or one in it, holds recordings.
fn has_speech(folder: &Path) -> bool {
    let deeper = images::folders(folder).into_iter().flat_map(|folder| files(&folder));
    files(folder).into_iter().chain(deeper).any(|file| is_recording(&file))
}

fn is_recording(file: &Path) -> bool {
    ["wav", "flac", "ogg", "oga", "mp3"].contains(&&*ending(file))
}

/// Files called `train.*` and `val.*` in the folder `at`, of this ending if one is given.
fn file_parts(at: &Path, asked: Option<&str>) -> Option<Result<Recognised, Refusal>> {
    let endings =
        ["csv", "jsonl", "bin"].into_iter().filter(|end| asked.is_none_or(|is| is == *end));
    for end in endings {
        let part =
            |name: &str| Some(at.join(format!("{name}.{end}"))).filter(|path| path.is_file());
        let val = VAL.iter().find_map(|name| part(name));
        if let Some((train, val)) = part("train").zip(val) {
            return Some(match end {
                "csv" => table::csv(&train, Some(&val)),
                "jsonl" => table::jsonl(&train, &val),
                _ => Ok(tokens(&train, &val)),
            });
        }
    }
    None
}

fn tokens(train: &Path, val: &Path) -> Recognised {
    let options =
        [("train_file", path(train)), ("val_file", path(val)), ("seq_len", SEQ_LEN.into())];
    Recognised::new("tokens", &options, Task::Tokens)
}

fn file(at: &Path) -> Result<Recognised, Refusal> {
    let end = ending(at);
    let text = |kind: &str, task: Task| Ok(Recognised::new(kind, &[("file", path(at))], task));
    match end.as_str() {
        "csv" => match table::series(at)? {
            Some(series) => Ok(series),
            None => part_beside(at, &end).unwrap_or_else(|| table::csv(at, None)),
        },
        "jsonl" | "bin" => beside(at, &end),
        "npz" | "parquet" => text("trajectories", Task::Behaviour),
        "json" => instructions(at),
        _ if is_text(at) => {
            let options =
                [("file", path(at)), ("seq_len", SEQ_LEN.into()), ("sample_tokens", 300.into())];
            Ok(Recognised::new("tokens", &options, Task::Text))
        }
        _ => Err(unusable(at, "is nothing that is recognised", KNOWN)),
    }
}

/// A file `train.*` with the part to validate on beside it.
fn part_beside(at: &Path, end: &str) -> Option<Result<Recognised, Refusal>> {
    let folder = at.parent().unwrap_or(Path::new(""));
    let is_part = name(at) == format!("train.{end}");
    file_parts(folder, Some(end)).filter(|_| is_part)
}

fn beside(at: &Path, end: &str) -> Result<Recognised, Refusal> {
    part_beside(at, end).unwrap_or_else(|| {
        let help = format!("cut it into `train.{end}` and `val.{end}`, and give their folder");
        Err(unusable(at, "has no part to validate on beside it", &help))
    })
}

fn instructions(at: &Path) -> Result<Recognised, Refusal> {
    let tokenizer = at.with_file_name("tokenizer.json");
    if !tokenizer.is_file() {
        let what = "needs a tokenizer: there is no `tokenizer.json` beside it";
        let help = "put that of a model of the HuggingFace hub there";
        return Err(unusable(at, what, help));
    }
    let options = [("file", path(at)), ("tokenizer", path(&tokenizer)), ("seq_len", 256.into())];
    Ok(Recognised::new("instructions", &options, Task::Instructions))
}

fn is_known(file: &Path) -> bool {
    ["csv", "npz", "parquet", "txt", "json"].contains(&ending(file).as_str())
}

/// Whether the first kilobytes of a file are text.
fn is_text(at: &Path) -> bool {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = fs::File::open(at).and_then(|file| file.take(4096).read_to_end(&mut bytes));
    let whole = match std::str::from_utf8(&bytes) {
        Ok(_) => true,
        // A character that is cut at the end.
        Err(error) => error.error_len().is_none(),
    };
    read.is_ok() && whole && !bytes.contains(&0)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    found.sort_unstable();
    found
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}
