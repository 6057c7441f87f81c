//! A path -> the data set that it holds.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::Refusal;
use crate::cli::init::entries::Entries;
use crate::cli::init::listing::{ending, files, name};
use crate::cli::init::recognised::{Recognised, SEQ_LEN, Task, VAL_FRACTION, path, unusable};
use crate::cli::init::{behaviour, images, language, speech, table, tokens};
use crate::data::has_more_than_8_bits;

/// Names of the part to validate on, beside `train`.
const VAL: [&str; 5] = ["val", "valid", "validation", "test", "eval"];
const KNOWN: &str = "give a folder of class folders with images or recordings, a folder with \
                     `train` and `val` (class folders, or csv, jsonl, bin or npy files), MNIST's \
                     idx files, a csv file, a manifest of NeMo, instructions or conversations in \
                     JSON, a text, an npz or parquet file, or the folder of a LeRobot data set";

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
        return behaviour::recorded(at);
    }
    if let Some(manifest) = speech::manifest_in(at) {
        return Ok(speech::manifest(&manifest));
    }
    if let Some(both) = file_parts(at, None) {
        return both;
    }
    let files = files(at);
    if files.iter().any(|file| name(file).starts_with("train-images-idx3-ubyte")) {
        return Ok(Recognised::new("mnist", &[("dir", path(at))], Task::Digits));
    }
    if images::has_classes(at) {
        images::refuse_others(at)?;
        let options = [("train_dir", path(at)), ("val_fraction", VAL_FRACTION.into())];
        return Ok(class_folders(at, &options));
    }
    if speech::is_there(at) {
        return Ok(speech::folder(at));
    }
    let usable: Vec<&PathBuf> = files.iter().filter(|file| is_known(file)).collect();
    match usable[..] {
        [only] => file(only),
        [] if !images::below(at).is_empty() => {
            let help = "put each class into a folder of its own, `<folder>/<class>/<image>`; or \
                        list the images with their classes in a csv file, and give that";
            Err(unusable(at, "holds images, but no class folders", help))
        }
        _ => Err(unusable(at, "holds no data in a known format", KNOWN)),
    }
}

/// The folders to train and to validate on.
fn parts(at: &Path) -> Option<(PathBuf, PathBuf)> {
    let train = at.join("train");
    let val = VAL.iter().map(|name| at.join(name)).find(|path| path.is_dir())?;
    train.is_dir().then_some((train, val))
}

/// Images in the class folders of `train`.
fn class_folders(train: &Path, options: &[(&str, Value)]) -> Recognised {
    let mut options = options.to_vec();
    if images::below(train).first().is_some_and(|first| has_more_than_8_bits(first)) {
        options.push(("pixel_dtype", "uint16".into()));
    }
    Recognised::new("image_folder", &options, Task::Images(train.to_owned()))
}

/// Two folders of the same kind of data.
fn split(train: &Path, val: &Path) -> Result<Recognised, Refusal> {
    let options = [("train_dir", path(train)), ("val_dir", path(val))];
    if images::has_classes(train) {
        return Ok(class_folders(train, &options));
    }
    if speech::is_there(train) {
        let by_name = speech::has_recordings(train);
        return Ok(Recognised::new("speech", &options, Task::Speech { by_name }));
    }
    Err(unusable(train, "holds neither class folders of images nor recordings", KNOWN))
}

/// Files called `train.*` and `val.*` in the folder `at`, of this ending if one is given.
fn file_parts(at: &Path, asked: Option<&str>) -> Option<Result<Recognised, Refusal>> {
    let endings = ["csv", "tsv", "jsonl", "bin", "npy"]
        .into_iter()
        .filter(|end| asked.is_none_or(|is| is == *end));
    for end in endings {
        let part =
            |name: &str| Some(at.join(format!("{name}.{end}"))).filter(|path| path.is_file());
        let val = VAL.iter().find_map(|name| part(name));
        if let Some((train, val)) = part("train").zip(val) {
            return Some(match end {
                "csv" | "tsv" => table::csv(&train, Some(&val)),
                "jsonl" => lines(&train, Some(&val)),
                _ => tokens::parts(&train, &val),
            });
        }
    }
    None
}

fn file(at: &Path) -> Result<Recognised, Refusal> {
    let end = ending(at);
    match end.as_str() {
        "csv" | "tsv" => match table::series(at)? {
            Some(series) => Ok(series),
            None => part_beside(at, &end).unwrap_or_else(|| table::csv(at, None)),
        },
        "jsonl" => part_beside(at, &end).unwrap_or_else(|| lines(at, None)),
        "bin" | "npy" => beside(at, &end),
        "npz" | "parquet" => behaviour::recorded(at),
        "json" => json(at),
        "tsf" | "arff" | "xlsx" | "xls" => {
            let what = format!("is a `.{end}` file, which is not read");
            Err(unusable(at, &what, "save it as a csv file with a header line"))
        }
        _ if is_text(at) => {
            let options =
                [("file", path(at)), ("seq_len", SEQ_LEN.into()), ("sample_tokens", 300.into())];
            Ok(Recognised::new("tokens", &options, Task::Text))
        }
        _ => Err(unusable(at, "is in no known format", KNOWN)),
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

/// A file of JSON lines, and one to validate on if there is any.
fn lines(at: &Path, val: Option<&Path>) -> Result<Recognised, Refusal> {
    match Entries::of(at) {
        Entries::Rows | Entries::Nothing => table::jsonl(at, val),
        _ => json(at),
    }
}

fn json(at: &Path) -> Result<Recognised, Refusal> {
    match Entries::of(at) {
        Entries::Manifest => Ok(speech::manifest(at)),
        Entries::Chats => language::chats(at),
        Entries::Instructions | Entries::Nothing => language::instructions(at),
        Entries::Rows => {
            let what = "holds JSON objects of no known kind";
            let help =
                "write a table as lines of JSON into a file that ends in `.jsonl`, or as csv";
            Err(unusable(at, what, help))
        }
    }
}

/// Whether a file of a folder may be its data. What stands beside a model has no entries.
fn is_known(file: &Path) -> bool {
    match &*ending(file) {
        "json" => !matches!(Entries::of(file), Entries::Rows | Entries::Nothing),
        end => ["csv", "tsv", "npz", "parquet", "txt", "jsonl"].contains(&end),
    }
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
