//! A path -> the data set that it holds.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::Refusal;
use crate::cli::init::entries::Entries;
use crate::cli::init::formatting::named;
use crate::cli::init::listing::{ending, files, name};
use crate::cli::init::parts::{Parts, part_of};
use crate::cli::init::recognised::{
    Asked, Recognised, SEQ_LEN, Task, VAL_FRACTION, path, refused, unusable,
};
use crate::cli::init::{behaviour, images, language, parts, speech, table, tokens};
use crate::data::has_more_than_8_bits;
use crate::plan::Part;

const KNOWN: &str = "give a folder of class folders with images or recordings, a folder with \
                     `train` and `val` (class folders, or csv, jsonl, bin or npy files), MNIST's \
                     idx files, a csv file, a manifest of NeMo, instructions or conversations in \
                     JSON, a text, an npz or parquet file, or the folder of a LeRobot data set";

/// What the file or folder at `at` holds.
///
/// # Errors
///
/// Nothing that an experiment could read; with what to do about it.
pub(super) fn recognise(at: &Path, asked: Asked<'_>) -> Result<Recognised, Refusal> {
    let found = match fs::metadata(at) {
        Err(error) => Err(unusable(at, &format!("cannot be read: {error}"), "check its path")),
        Ok(found) if found.is_dir() => folder(at, asked),
        Ok(found) if found.len() == 0 => Err(unusable(at, "is empty", KNOWN)),
        Ok(_) => file(at, asked),
    }?;
    let is_table = matches!(found.task, Task::Table { .. } | Task::ImageTable { .. });
    if !is_table && (asked.target.is_some() || asked.task.is_some()) {
        let flag = if asked.target.is_some() { "--target" } else { "--task" };
        let what = format!("`{flag}` is for tables, and `{}` is none", at.display());
        return Err(refused(&what, "leave it out"));
    }
    Ok(found)
}

fn folder(given: &Path, asked: Asked<'_>) -> Result<Recognised, Refusal> {
    let at = &parts::unwrapped(given);
    let folders = Parts::of_folders(at);
    if let Some(found) = split(at, &folders)? {
        return Ok(found);
    }
    if at.join("meta/info.json").is_file() {
        return behaviour::recorded(at);
    }
    if let Some(manifest) = speech::manifest_in(at) {
        return Ok(speech::manifest(&manifest));
    }
    if let Some(found) = file_parts(at, None, asked) {
        return found;
    }
    let files = files(at);
    if files.iter().any(|file| name(file).starts_with("train-images-idx3-ubyte")) {
        return Ok(Recognised::new("mnist", &[("dir", path(at))], Task::Digits));
    }
    if images::has_classes(at) {
        return unsplit_images(at);
    }
    if speech::is_there(at) {
        return Ok(speech::folder(at));
    }
    let usable: Vec<&PathBuf> = files.iter().filter(|file| is_known(file)).collect();
    match usable[..] {
        [only] => file(only, asked),
        [] if !images::below(at).is_empty() => {
            let help = "put each class into a folder of its own, `<folder>/<class>/<image>`; or \
                        list the images with their classes in a csv file, and give that";
            Err(unusable(at, "holds images, but no class folders", help))
        }
        [] => match images::unread_below(at) {
            Some(what) => {
                let what = format!("holds {what}, which are not read");
                Err(unusable(at, &what, images::CONVERT))
            }
            None => Err(unusable(at, "holds no data in a known format", KNOWN)),
        },
        _ => {
            let names: Vec<String> = usable.iter().map(|file| name(file)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let what = format!("holds several files: {}", named(&names));
            Err(unusable(at, &what, "give one of them, or call them `train`, `val` and `test`"))
        }
    }
}

/// Images in class folders of which no part is set apart.
fn unsplit_images(at: &Path) -> Result<Recognised, Refusal> {
    images::refuse_others(at)?;
    let options = [("train_dir", path(at)), ("val_fraction", VAL_FRACTION.into())];
    let notes = vec![("validate on", held_back("images"))];
    Ok(class_folders(at, &options)?.noting(notes))
}

/// "20 % of the images of each class, drawn at random"
fn held_back(what: &str) -> String {
    format!("{:.0} % of the {what} of each class, drawn at random", VAL_FRACTION * 100.0)
}

/// Images in the class folders of `train`.
fn class_folders(train: &Path, options: &[(&str, Value)]) -> Result<Recognised, Refusal> {
    if let [only] = &images::classes(train)[..] {
        let what = format!("has images of one class only, `{only}`");
        let help = "put each class into a folder of its own, `<folder>/<class>/<image>`";
        return Err(unusable(train, &what, help));
    }
    let mut options = options.to_vec();
    if images::below(train).first().is_some_and(|first| has_more_than_8_bits(first)) {
        options.push(("pixel_dtype", "uint16".into()));
    }
    let beside = images::directly_in(train);
    let note = format!("{beside} images beside the class folders, as they are in none");
    let notes = (beside > 0).then_some(("left out", note)).into_iter().collect();
    Ok(Recognised::new("image_folder", &options, Task::Images(train.to_owned())).noting(notes))
}

/// The parts of a folder of images or recordings, whose folders say what they are for. `None` where
/// none does, or where they hold neither.
fn split(at: &Path, folders: &Parts) -> Result<Option<Recognised>, Refusal> {
    let Some(train) = &folders.train else {
        return refuse_without_train(at, folders).map(|()| None);
    };
    let train = &parts::unwrapped(train);
    let has_images = images::has_classes(train);
    let has_speech = !has_images && speech::is_there(train);
    if !has_images && !has_speech {
        return Ok(None);
    }
    let mut notes = Vec::new();
    let mut options = vec![("train_dir", path(train))];
    let mut take = |key: &'static str, part: &Option<PathBuf>| {
        let part = part.as_ref().map(|part| parts::unwrapped(part))?;
        let fits = if has_images { images::fits(train, &part) } else { speech::fits(&part) };
        match fits {
            Ok(()) => {
                options.push((key, path(&part)));
                Some(format!("`{}`", part.display()))
            }
            Err(why) => {
                notes.push(("left out", format!("`{}`: {why}", part.display())));
                None
            }
        }
    };
    let (val, test) = (take("val_dir", &folders.val), take("test_dir", &folders.test));
    let what = if has_images { "images" } else { "recordings" };
    notes.insert(0, ("validate on", val.clone().unwrap_or_else(|| held_back(what))));
    notes.extend(test.map(|test| ("test on", format!("{test}, once, at the end"))));
    let others: Vec<String> = folders.others.iter().map(|folder| name(folder)).collect();
    if !others.is_empty() {
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let why = format!("{}: beside `{}`, which is trained on", named(&others), name(train));
        notes.push(("left out", why));
    }
    if val.is_none() {
        options.push(("val_fraction", VAL_FRACTION.into()));
    }
    if has_images {
        images::refuse_others(train)?;
        return Ok(Some(class_folders(train, &options)?.noting(notes)));
    }
    let by_name = speech::has_recordings(train);
    let found = Recognised::new("speech", &options, Task::Speech { by_name });
    Ok(Some(found.noting(notes)))
}

/// Refuses class folders beside a folder that is called like a part: it would be a class.
fn refuse_without_train(at: &Path, folders: &Parts) -> Result<(), Refusal> {
    let Some(part) = folders.test.as_ref().or(folders.val.as_ref()) else { return Ok(()) };
    let holds_data =
        |folder: &PathBuf| !images::below(folder).is_empty() || speech::is_there(folder);
    if !holds_data(part) {
        return Ok(());
    }
    let part = name(part);
    let (what, help) = if folders.others.iter().any(holds_data) {
        let what = format!("has a folder `{part}` beside folders of classes");
        (
            what,
            "move the class folders into a folder `train` beside it, or rename it if it is a class",
        )
    } else {
        let what = format!("has a folder `{part}`, but none to train on");
        (what, "put the classes to train on into a folder `train` beside it")
    };
    Err(unusable(at, &what, help))
}

/// Files called `train.*`, `val.*` and `test.*` in the folder `at`, of this ending if one is given.
fn file_parts(
    at: &Path,
    end: Option<&str>,
    asked: Asked<'_>,
) -> Option<Result<Recognised, Refusal>> {
    let endings = ["csv", "tsv", "jsonl", "bin", "npy"]
        .into_iter()
        .filter(|known| end.is_none_or(|is| is == *known));
    for end in endings {
        let files = files(at).into_iter().filter(|file| ending(file) == end).collect();
        let Parts { train, val, test, others } = Parts::among(files);
        let train = match (train, &others[..]) {
            (Some(train), _) => train,
            // `houses.csv` beside `test.csv`
            (None, [only]) if val.is_some() || test.is_some() => only.clone(),
            _ => continue,
        };
        let (val, test) = (val.as_deref(), test.as_deref());
        let files = table::Files { train: &train, val, test };
        match (end, val.or(test)) {
            ("csv" | "tsv", _) => return Some(table::csv(files, asked)),
            ("jsonl", _) => return Some(lines(files, asked)),
            (_, Some(val)) => return Some(tokens::parts(&train, val)),
            (_, None) => {}
        }
    }
    None
}

fn file(at: &Path, asked: Asked<'_>) -> Result<Recognised, Refusal> {
    let end = ending(at);
    match end.as_str() {
        "csv" | "tsv" => match table::series(at)?.filter(|_| asked.task.is_none()) {
            Some(series) => Ok(series),
            None => part_beside(at, &end, asked)
                .unwrap_or_else(|| table::csv(table::Files::one(at), asked)),
        },
        "jsonl" => {
            part_beside(at, &end, asked).unwrap_or_else(|| lines(table::Files::one(at), asked))
        }
        "bin" | "npy" => beside(at, &end, asked),
        "npz" | "parquet" => behaviour::recorded(at),
        "json" => json(at),
        "tsf" | "arff" | "xlsx" | "xls" => {
            let what = format!("is a `.{end}` file, which is not read");
            Err(unusable(at, &what, "save it as a csv file with a header line"))
        }
        _ if images::is_unread(at) => {
            let what = format!("is a `.{end}` file, which is not read");
            Err(unusable(at, &what, images::CONVERT))
        }
        _ if is_text(at) => {
            let options =
                [("file", path(at)), ("seq_len", SEQ_LEN.into()), ("sample_tokens", 300.into())];
            Ok(Recognised::new("tokens", &options, Task::Text))
        }
        _ => Err(unusable(at, "is in no known format", KNOWN)),
    }
}

/// A file `train.*` with the parts to validate and to test on beside it.
fn part_beside(at: &Path, end: &str, asked: Asked<'_>) -> Option<Result<Recognised, Refusal>> {
    let folder = at.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let stem = at.file_stem().unwrap_or_default().to_string_lossy();
    let is_train = part_of(&stem) == Some(Part::Train);
    is_train.then(|| file_parts(folder, Some(end), asked))?
}

fn beside(at: &Path, end: &str, asked: Asked<'_>) -> Result<Recognised, Refusal> {
    part_beside(at, end, asked).unwrap_or_else(|| {
        let help = format!("cut it into `train.{end}` and `val.{end}`, and give their folder");
        Err(unusable(at, "has no part to validate on beside it", &help))
    })
}

/// Files of JSON lines.
fn lines(files: table::Files<'_>, asked: Asked<'_>) -> Result<Recognised, Refusal> {
    match Entries::of(files.train) {
        Entries::Rows | Entries::Nothing => table::jsonl(files, asked),
        _ => json(files.train),
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
