//! A path -> the data set that it holds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::data::{HfDataset, ImageShards, TarShards, WebDataset, has_more_than_8_bits};
use crate::init::entries::Entries;
use crate::init::names::{self, ending, files, folders, name, named};
use crate::init::parts::{self, Parts, part_of};
use crate::init::recognised::{
    ImageAnswer, InitRequest, RecognisedData, SEQ_LEN, Task, VAL_FRACTION, path, unusable,
};
use crate::init::{images, sequences, speech, table};
use crate::plan::Part;
use crate::user_error::ErrorPage;

const KNOWN: &str = "give a folder of class folders with images or recordings, a folder with \
                     `train` and `val` (class folders, or csv, jsonl, bin or npy files), MNIST's \
                     idx files, a csv file, a manifest of NeMo, instructions or conversations in \
                     JSON, a text, an npz or parquet file, the folder of a LeRobot data set, or one \
                     with tar shards";

/// Recognises the data set in the file or folder at `at`.
///
/// # Errors
///
/// It holds nothing that an experiment could read; the page has a remedy.
pub(super) fn recognise(at: &Path, request: InitRequest<'_>) -> Result<RecognisedData, ErrorPage> {
    let found = match fs::metadata(at) {
        Err(error) => Err(unusable(at, &format!("cannot be read: {error}"), "check its path")),
        Ok(found) if found.is_dir() => folder(at, request),
        Ok(found) if found.len() == 0 => Err(unusable(at, "is empty", KNOWN)),
        Ok(_) => file(at, request),
    }?;
    let is_table = matches!(found.task, Task::Table { .. } | Task::ImageTable { .. });
    if !is_table && (request.target.is_some() || request.task.is_some()) {
        let flag = if request.target.is_some() { "--target" } else { "--task" };
        let what = format!("`{flag}` is for tables, and `{}` is none", at.display());
        return Err(ErrorPage::refused(what, "leave it out"));
    }
    Ok(found)
}

fn folder(given: &Path, request: InitRequest<'_>) -> Result<RecognisedData, ErrorPage> {
    let at = &parts::unwrapped(given);
    let folders = parts_of(at)?;
    if let Some(found) = split(at, &folders)? {
        return Ok(found);
    }
    if at.join("meta/info.json").is_file() {
        return sequences::behaviour(at);
    }
    if let Some(shards) = HfDataset::recognise(at)? {
        return Ok(image_shards(shards));
    }
    if let Some(manifest) = speech::manifest_in(at) {
        return Ok(speech::manifest(&manifest));
    }
    if let Some(found) = file_parts(at, None, request) {
        return found;
    }
    let files = files(at);
    if files.iter().any(|file| name(file).starts_with("train-images-idx3-ubyte")) {
        return Ok(RecognisedData::new("mnist", &[("dir", path(at))], Task::Digits));
    }
    let tables: Vec<&PathBuf> =
        files.iter().filter(|file| ["csv", "tsv"].contains(&&*ending(file))).collect();
    let has_images = images::are_below(at);
    let mut lists = tables.iter().filter(|file| has_images && table::lists_images(file));
    if let (Some(list), None) = (lists.next(), lists.next()) {
        return file(list, request);
    }
    if images::has_classes(at) {
        let are_parts = folders.train.is_some();
        return match (&tables[..], &images::classes(at)[..]) {
            // The images of a table whose rows do not find them.
            ([only], [_]) => file(only, request),
            ([only], _) if are_parts => file(only, request),
            _ if are_parts => Err(without_classes(at, &folders)),
            _ => unsplit_images(at),
        };
    }
    if speech::is_there(at) {
        return Ok(speech::folder(at));
    }
    let usable: Vec<&PathBuf> = files.iter().filter(|file| is_known(file)).collect();
    if usable.is_empty()
        && let Some(shards) = WebDataset::recognise(at)?
    {
        return Ok(tar_shards(shards));
    }
    match usable[..] {
        [only] => file(only, request),
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
            let what = format!("holds several files: {}", named(&names));
            Err(unusable(at, &what, "give one of them, or call them `train`, `val` and `test`"))
        }
    }
}

/// Parquet files of images and classes.
fn image_shards(shards: ImageShards) -> RecognisedData {
    let ImageShards { data, side, left_out } = shards;
    let mut options = vec![("path", path(&data.path))];
    let mut notes = vec![];
    if let Some(val) = data.val_split {
        notes.push(("validate on", format!("the split `{val}`")));
        options.push(("val_split", val.into()));
    } else {
        notes.push(("validate on", held_back("images")));
        options.push(("val_fraction", VAL_FRACTION.into()));
    }
    if let Some(test) = data.test_split {
        notes.push(("test on", format!("the split `{test}`, once, at the end")));
        options.push(("test_split", test.into()));
    }
    notes.extend(left_out.map(|(split, why)| ("left out", format!("`{split}`: {why}"))));
    let task = Task::ImageTable { answer: ImageAnswer::Class, side };
    RecognisedData::new("hf_dataset", &options, task).noting(notes)
}

/// Tar files of images and classes.
fn tar_shards(shards: TarShards) -> RecognisedData {
    let TarShards { data, side } = shards;
    let mut options = vec![("train_shards", path(&data.train_shards))];
    let mut notes = vec![];
    if let Some(val) = data.val_shards {
        notes.push(("validate on", format!("`{}`", val.display())));
        options.push(("val_shards", path(&val)));
    } else {
        notes.push(("validate on", held_back("images")));
        options.push(("val_fraction", VAL_FRACTION.into()));
    }
    if let Some(test) = data.test_shards {
        notes.push(("test on", format!("`{}`, once, at the end", test.display())));
        options.push(("test_shards", path(&test)));
    }
    let task = Task::ImageTable { answer: ImageAnswer::Class, side };
    RecognisedData::new("webdataset", &options, task).noting(notes)
}

/// The parts of a folder by the names of its folders. A word among others in a name, as in
/// `seg_train`, counts where the folder to train on holds folders of classes.
///
/// # Errors
///
/// All hold folders of the same names: these are the classes, or parts of other classes, and the
/// names do not tell which is to be trained on.
fn parts_of(at: &Path) -> Result<Parts, ErrorPage> {
    let exact = Parts::of_folders(at);
    let by_words = Parts::by_words(folders(at));
    if exact.train.is_some() {
        let fill = |own: &mut Option<PathBuf>, other: Option<PathBuf>| {
            *own = own.take().or(other);
        };
        let mut parts = exact.clone();
        fill(&mut parts.val, by_words.val);
        fill(&mut parts.test, by_words.test);
        let is_other = |path: &PathBuf| ![&parts.val, &parts.test].contains(&&Some(path.clone()));
        parts.others = exact.others.into_iter().filter(is_other).collect();
        return Ok(parts);
    }
    let classes = |folder: &PathBuf| {
        let folder = parts::unwrapped_part(folder);
        let mut classes = folders(&folder);
        classes.retain(|class| images::are_below(class) || speech::has_recordings(class));
        classes.iter().map(|class| name(class)).collect::<BTreeSet<String>>()
    };
    let has_classes = |train: &PathBuf| classes(train).len() > 1;
    if by_words.are_split() && by_words.train.as_ref().is_some_and(has_classes)
        || by_words.are_called_alike()
    {
        return Ok(by_words);
    }
    let mut all: Vec<(String, BTreeSet<String>)> =
        folders(at).iter().map(|folder| (name(folder), classes(folder))).collect();
    let n = all.len();
    // One may hold images to predict.
    all.retain(|(_, classes)| classes.len() > 1);
    let same = if all.len() * 2 > n { shared_classes(&all) } else { BTreeSet::new() };
    if same.is_empty() {
        return Ok(exact);
    }
    let outer: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let inner: Vec<&str> = same.iter().map(String::as_str).collect();
    let what = format!(
        "has folders that hold folders of the same names: {} hold {}",
        named(&outer),
        named(&inner)
    );
    let one = at.join(outer[0]);
    let help = if inner.iter().all(|name| part_of(name).is_some()) {
        format!(
            "give one of them, such as `ddprun init {}`; or, if {} are the classes, put the parts \
             outside: `{}/{}/<image>`",
            one.display(),
            named(&outer),
            inner[0],
            outer[0]
        )
    } else {
        format!(
            "call the folders `train`, `val` and `test` if {} are the classes, or give one of \
             them: `ddprun init {}`; put their images directly into them if {} are the classes",
            named(&inner),
            one.display(),
            named(&outer)
        )
    };
    Err(unusable(at, &what, &help))
}

/// The names that the folders in several folders have in common, if these are all and most of them.
fn shared_classes(all: &[(String, BTreeSet<String>)]) -> BTreeSet<String> {
    let most = all.iter().map(|(_, classes)| classes).max_by_key(|classes| classes.len());
    let Some(most) = most.filter(|_| all.len() > 1) else { return BTreeSet::new() };
    let is_alike = |(_, classes): &(String, BTreeSet<String>)| {
        let shared = classes.intersection(most).count();
        shared > 1 && shared * 2 >= classes.len()
    };
    if all.iter().all(is_alike) { most.clone() } else { BTreeSet::new() }
}

/// The refusal of folders that have the names of parts and hold images, but no classes.
fn without_classes(at: &Path, folders: &Parts) -> ErrorPage {
    let parts = [&folders.train, &folders.val, &folders.test];
    let names: Vec<String> = parts.into_iter().flatten().map(|part| name(part)).collect();
    let what = format!("holds images without classes in {}", named(&names));
    let help = "put each class into a folder of its own, `train/<class>/<image>`; or list the \
                images with their classes in a csv file beside these folders";
    unusable(at, &what, help)
}

/// Images in class folders that are not split into parts.
fn unsplit_images(at: &Path) -> Result<RecognisedData, ErrorPage> {
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
fn class_folders(train: &Path, options: &[(&str, Value)]) -> Result<RecognisedData, ErrorPage> {
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
    Ok(RecognisedData::new("image_folder", &options, Task::Images(train.to_owned())).noting(notes))
}

/// The parts of a folder of images or recordings, by the names of its folders. `None` if none of
/// them is a part to train on, or if it holds neither.
fn split(at: &Path, folders: &Parts) -> Result<Option<RecognisedData>, ErrorPage> {
    let Some(train) = &folders.train else {
        return refuse_without_train(at, folders).map(|()| None);
    };
    let train = &parts::unwrapped_part(train);
    let has_images = images::has_classes(train);
    let has_speech = !has_images && speech::is_there(train);
    if !has_images && !has_speech {
        return Ok(None);
    }
    let mut notes = Vec::new();
    let mut options = vec![("train_dir", path(train))];
    let mut take = |key: &'static str, part: &Option<PathBuf>| {
        let part = part.as_ref().map(|part| parts::unwrapped_part(part))?;
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
    let found = RecognisedData::new("speech", &options, Task::Speech { by_name });
    Ok(Some(found.noting(notes)))
}

/// Refuses class folders beside a folder with the name of a part, which would be a class.
fn refuse_without_train(at: &Path, folders: &Parts) -> Result<(), ErrorPage> {
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
    request: InitRequest<'_>,
) -> Option<Result<RecognisedData, ErrorPage>> {
    let endings = ["csv", "tsv", "jsonl", "bin", "npy"]
        .into_iter()
        .filter(|known| end.is_none_or(|is| is == *known));
    for end in endings {
        let files: Vec<PathBuf> =
            files(at).into_iter().filter(|file| ending(file) == end).collect();
        let by_words = Parts::by_words(files.clone());
        let by_names = Parts::among(files);
        let is_told = by_names.train.is_some() || !by_words.are_split();
        let Parts { train, val, test, others } = if is_told { by_names } else { by_words };
        let train = match (train, &others[..]) {
            (Some(train), _) => train,
            // `houses.csv` beside `test.csv`
            (None, [only]) if val.is_some() || test.is_some() => only.clone(),
            _ => continue,
        };
        let (val, test) = (val.as_deref(), test.as_deref());
        let files = table::Files { train: &train, val, test };
        match (end, val.or(test)) {
            ("csv" | "tsv", _) => return Some(table::csv(files, request)),
            ("jsonl", _) => return Some(lines(files, request)),
            (_, Some(val)) => return Some(sequences::tokens(&train, val)),
            (_, None) => {}
        }
    }
    None
}

fn file(at: &Path, request: InitRequest<'_>) -> Result<RecognisedData, ErrorPage> {
    let end = ending(at);
    match end.as_str() {
        "csv" | "tsv" => match table::series(at)?.filter(|_| request.task.is_none()) {
            Some(series) => Ok(series),
            None => part_beside(at, &end, request)
                .unwrap_or_else(|| table::csv(table::Files::one(at), request)),
        },
        "jsonl" => {
            part_beside(at, &end, request).unwrap_or_else(|| lines(table::Files::one(at), request))
        }
        "bin" | "npy" => beside(at, &end, request),
        "npz" | "parquet" => sequences::behaviour(at),
        "zip" | "tar" | "tgz" | "7z" | "rar" => {
            let what = format!("is a `.{end}` archive, which is not read");
            Err(unusable(at, &what, "unpack it, and give the folder or a file in it"))
        }
        "json" => json(at),
        "xlsx" | "xls" | "ods" | "feather" | "sqlite" | "db" => {
            table::refuse_other_form(at)?;
            let what = format!("is a `.{end}` file, which is not read");
            Err(unusable(at, &what, "save it as a csv file with a header line"))
        }
        "tsf" | "arff" => {
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
            Ok(RecognisedData::new("tokens", &options, Task::Text))
        }
        _ => {
            table::refuse_other_form(at)?;
            Err(unusable(at, "is in no known format", KNOWN))
        }
    }
}

/// A file `train.*` with the parts to validate and to test on beside it.
fn part_beside(
    at: &Path,
    end: &str,
    request: InitRequest<'_>,
) -> Option<Result<RecognisedData, ErrorPage>> {
    let folder = at.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let stem = names::stem(at);
    let is_train = part_of(&stem) == Some(Part::Train);
    is_train.then(|| file_parts(folder, Some(end), request))?
}

fn beside(at: &Path, end: &str, request: InitRequest<'_>) -> Result<RecognisedData, ErrorPage> {
    part_beside(at, end, request).unwrap_or_else(|| {
        let help = format!("cut it into `train.{end}` and `val.{end}`, and give their folder");
        Err(unusable(at, "has no part to validate on beside it", &help))
    })
}

/// Files of JSON lines.
fn lines(files: table::Files<'_>, request: InitRequest<'_>) -> Result<RecognisedData, ErrorPage> {
    match Entries::of(files.train) {
        Entries::Rows | Entries::Nothing => table::jsonl(files, request),
        _ => json(files.train),
    }
}

fn json(at: &Path) -> Result<RecognisedData, ErrorPage> {
    match Entries::of(at) {
        Entries::Manifest => Ok(speech::manifest(at)),
        Entries::Chats => sequences::chats(at),
        Entries::Instructions | Entries::Nothing => sequences::instructions(at),
        Entries::Rows => {
            let what = "holds JSON objects of no known kind";
            let help =
                "write a table as lines of JSON into a file that ends in `.jsonl`, or as csv";
            Err(unusable(at, what, help))
        }
    }
}

/// True if a file of a folder may be its data. JSON files beside a model have no entries.
fn is_known(file: &Path) -> bool {
    match &*ending(file) {
        "json" => !matches!(Entries::of(file), Entries::Rows | Entries::Nothing),
        end => ["csv", "tsv", "npz", "parquet", "txt", "jsonl"].contains(&end),
    }
}

/// True if the first kilobytes of a file are text.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    /// The parts that are seen of these files.
    fn seen(files: &[&str]) -> Result<[Option<String>; 3], String> {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            files::create_folder(path.parent().unwrap()).unwrap();
            files::write_atomic(&path, b"").unwrap();
        }
        let shown = |part: Option<PathBuf>| part.map(|part| name(&part));
        let parts = parts_of(root.path()).map_err(|refusal| refusal.to_string())?;
        Ok([parts.train, parts.val, parts.test].map(shown))
    }

    fn split<const N: usize>(parts: [&str; N]) -> Vec<String> {
        let file = |part: &str| ["cat", "dog"].map(|class| format!("{part}/{class}/1.jpg"));
        parts.iter().flat_map(|part| file(part)).collect()
    }

    #[track_caller]
    fn check(files: &[String], expected: [Option<&str>; 3]) {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        assert_eq!(seen(&files), Ok(expected.map(|name| name.map(str::to_owned))), "{files:?}");
    }

    #[test]
    fn folders_that_hold_the_same_classes_are_parts() {
        check(
            &split(["seg_train/seg_train", "seg_test/seg_test"]),
            [Some("seg_train"), None, Some("seg_test")],
        );
        check(&split(["train1", "test1"]), [Some("train1"), None, Some("test1")]);
        check(&split(["entrenamiento", "prueba"]), [Some("entrenamiento"), None, Some("prueba")]);
        check(&split(["train", "my_val"]), [Some("train"), Some("my_val"), None]);
        let flat = [split(["train1"]), vec!["test1/1.jpg".to_owned()]].concat();
        check(&flat, [Some("train1"), None, Some("test1")]);
        // Classes that hold folders of their own.
        let own = ["cat/a/1.jpg", "cat/b/1.jpg", "dog/c/1.jpg", "dog/d/1.jpg"].map(str::to_owned);
        check(&own, [None; 3]);
        check(&["cat/1.jpg", "dog/1.jpg"].map(str::to_owned), [None; 3]);
        let trains = ["bullet_train/1.jpg", "test_tube/1.jpg"].map(str::to_owned);
        check(&trains, [None; 3]);
    }

    #[test]
    fn folders_of_which_none_is_known_to_be_trained_on_are_refused() {
        let page = |files: Vec<String>| {
            seen(&files.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_err()
        };
        let folds = page(split(["fold1", "fold2", "fold3"]));
        assert!(folds.contains("`fold1`, `fold2`, `fold3` hold `cat`, `dog`"), "{folds}");
        assert!(folds.contains("call the folders `train`, `val` and `test`"), "{folds}");
        let inside = ["train", "test"].map(|part| split([part]));
        let inside = inside.iter().flatten().map(|file| {
            let parts: Vec<&str> = file.split('/').collect();
            format!("{}/{}/{}", parts[1], parts[0], parts[2])
        });
        let inside = page(inside.collect());
        assert!(inside.contains("put the parts outside: `test/cat/<image>`"), "{inside}");
        let others = ["a/cow/1.jpg", "more/1.jpg"].map(str::to_owned).to_vec();
        let uneven = [split(["a", "b"]), others].concat();
        assert!(page(uneven).contains("`a`, `b` hold `cat`, `cow`, `dog`"));
    }
}
