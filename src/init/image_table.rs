//! Tables that list images, with classes or numbers of each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::data::{self, TargetCells, has_more_than_8_bits};
use crate::init::columns::{Table, given};
use crate::init::names::{count, named};
use crate::init::recognised::{
    ImageAnswer, InitRequest, RecognisedData, TableTask, Task, path, unusable,
};
use crate::init::{images, names};
use crate::user_error::ErrorPage;

/// Usual names of a column by which rows belong together.
const GROUPS: [&str; 6] = ["patient", "patient_id", "subject", "subject_id", "group", "case"];

/// Cells of a column whose files are searched under other names.
const TRIED: usize = 16;
/// Most columns of a table that is about its column of names of images.
const FEW_COLUMNS: usize = 3;

/// Turns backslashes into slashes in pandas.
const SLASHES: &str = ".str.replace(\"\\\\\", \"/\")";

/// A column that names image files.
struct Images {
    /// Index of the column.
    at: usize,
    /// The folder of the images, if it is not that of the table.
    dir: Option<PathBuf>,
    files: Vec<PathBuf>,
    /// Missing files, by the line that names each.
    absent: Vec<(u64, String)>,
}

impl Images {
    /// The column of image files of the table at `file`, most of which are there: beside it, or in
    /// a folder beside it.
    fn of(table: &Table, file: &Path) -> Option<Self> {
        let places = places(file);
        (0..table.names.len()).find_map(|at| {
            let cells = given(table, at);
            if !are_image_names(&cells) {
                return None;
            }
            places.iter().find_map(|(dir, place)| {
                let (files, absent): (Vec<_>, Vec<_>) = cells
                    .iter()
                    .map(|(line, cell)| (line, *cell, place.join(cell)))
                    .partition(|(_, _, file)| file.is_file());
                let absent: Vec<(u64, String)> =
                    absent.into_iter().map(|(line, cell, _)| (*line, cell.to_owned())).collect();
                let files: Vec<PathBuf> = files.into_iter().map(|(.., file)| file).collect();
                (files.len() > absent.len()).then(|| Self { at, dir: dir.clone(), files, absent })
            })
        })
    }
}

/// Folders in which the images of the table at `file` are searched: beside it, and the folders
/// there.
fn places(file: &Path) -> Vec<(Option<PathBuf>, PathBuf)> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let here = if folder == Path::new("") { Path::new(".") } else { folder };
    let folders = names::folders(here).into_iter().map(|dir| (Some(dir.clone()), dir));
    std::iter::once((None, folder.to_owned())).chain(folders).collect()
}

fn are_image_names(cells: &[(u64, &str)]) -> bool {
    let is_name = |cell: &str| images::is_image(Path::new(cell)) && !cell.contains("://");
    !cells.is_empty() && cells.iter().all(|(_, cell)| is_name(cell))
}

/// True if the table at `file` lists existing images.
pub(super) fn lists_images(file: &Path, table: &Table) -> bool {
    Images::of(table, file).is_some()
}

/// The folder that holds the images of a table, if those of the `train` table are elsewhere.
pub(super) fn own_folder(
    file: &Path,
    table: &Table,
    (train_file, train): (&Path, &Table),
) -> Option<PathBuf> {
    let folder = |file: &Path| file.parent().map(Path::to_owned);
    let found = Images::of(table, file)?;
    let own = folder(found.files.first()?)?;
    let others = Images::of(train, train_file)?;
    let is_own = |file: &PathBuf| folder(file).as_ref() == Some(&own);
    (found.files.iter().all(is_own) && !others.files.iter().any(is_own)).then_some(own)
}

/// Refuses a table that lists images none of which is found under its name, with the change to
/// changed: with backslashes, without endings, below another folder.
pub(super) fn refuse_unfound(file: &Path, table: &Table) -> Result<(), ErrorPage> {
    let places = places(file);
    let is_there = |name: &str| {
        let found = places.iter().find(|(_, place)| place.join(name).is_file());
        found.map(|_| name.to_owned())
    };
    for (at, column) in table.names.iter().enumerate() {
        let cells = given(table, at);
        let n = count(cells.len());
        if let Some(RenamedImage { line, cell, name, how }) = changed(&cells, &is_there)
            && (how != NameDifference::Ending || table.names.len() <= FEW_COLUMNS)
        {
            let (what, change) = match how {
                NameDifference::Backslashes => ("with backslashes", SLASHES.to_owned()),
                NameDifference::Prefix => {
                    let slashed = cell.replace('\\', "/");
                    let before = slashed.strip_suffix(&name).unwrap_or_default();
                    let slashes = if slashed == cell { "" } else { SLASHES };
                    ("in another folder", format!("{slashes}.str.removeprefix(\"{before}\")"))
                }
                NameDifference::Ending => {
                    let ending = name.strip_prefix(cell).unwrap_or_default();
                    ("without their ending", format!(".astype(str) + \"{ending}\""))
                }
            };
            let what = format!("lists {n} images {what}: `{cell}` in line {line} is `{name}`");
            let help = format!(
                "write the names as they are; in Python, with the table as `t`: \
                 `t[\"{column}\"] = t[\"{column}\"]{change}`"
            );
            return Err(unusable(file, &what, &help));
        }
        let is_unread = |(_, cell): &(u64, &str)| images::is_unread(Path::new(cell));
        if !cells.is_empty() && cells.iter().all(is_unread) && is_there(cells[0].1).is_some() {
            let what =
                format!("lists images of a format that is not read, such as `{}`", cells[0].1);
            return Err(unusable(file, &what, images::CONVERT));
        }
        if are_image_names(&cells) {
            let (line, cell) = cells[0];
            let what =
                format!("lists {n} images of which most are not there: `{cell}` in line {line}");
            let help = "put them there: names begin at the folder of the table, or at a folder in it; \
                        or remove the column, to learn from the others";
            return Err(unusable(file, &what, help));
        }
    }
    Ok(())
}

/// Difference between the name of an image and that of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameDifference {
    Backslashes,
    Prefix,
    Ending,
}

/// A cell that names a file in another way.
struct RenamedImage<'a> {
    line: u64,
    cell: &'a str,
    /// The name of the file.
    name: String,
    how: NameDifference,
}

/// The difference between most cells of a column and the names of existing files, if there is one.
fn changed<'a>(
    cells: &[(u64, &'a str)],
    is_there: &dyn Fn(&str) -> Option<String>,
) -> Option<RenamedImage<'a>> {
    let stride = cells.len().div_ceil(TRIED).max(1);
    let tried: Vec<&(u64, &str)> = cells.iter().step_by(stride).collect();
    let slashed = |cell: &str| cell.replace('\\', "/");
    let backslashes = |cell: &str| -> Option<String> {
        let name = slashed(cell);
        if name == cell { None } else { is_there(&name) }
    };
    let prefix = |cell: &str| -> Option<String> {
        let name = slashed(cell);
        // A file in the root is no file of the table.
        let mut behind = name.match_indices('/').map(|(at, _)| &name[at + 1..]);
        images::is_image(Path::new(&name)).then(|| behind.find_map(is_there))?
    };
    let ending = |cell: &str| -> Option<String> {
        let has_image_ending = images::is_image(Path::new(cell));
        let endings = data::IMAGE_ENDINGS.iter().map(|ending| (*ending).to_owned());
        let mut all = endings.flat_map(|ending| [ending.to_uppercase(), ending]);
        (!has_image_ending).then(|| all.find_map(|ending| is_there(&format!("{cell}{ending}"))))?
    };
    let hows: [(NameDifference, &dyn Fn(&str) -> Option<String>); 3] = [
        (NameDifference::Backslashes, &backslashes),
        (NameDifference::Prefix, &prefix),
        (NameDifference::Ending, &ending),
    ];
    hows.into_iter().find_map(|(how, found)| {
        let names: Vec<_> =
            tried.iter().filter_map(|(line, cell)| Some((*line, *cell, found(cell)?))).collect();
        let are_most = names.len() * 2 > tried.len();
        let (line, cell, name) = names.into_iter().next().filter(|_| are_most)?;
        Some(RenamedImage { line, cell, name, how })
    })
}

/// The images that the table at `file` lists, whose options begin with `parts`; `None` if it lists
/// none.
///
/// # Errors
///
/// A listed file is not there, or there is nothing to learn of the images.
pub(super) fn listed(
    file: &Path,
    table: &Table,
    parts: &[(&'static str, Value)],
    request: InitRequest<'_>,
) -> Result<Option<RecognisedData>, ErrorPage> {
    let Some(found) = Images::of(table, file) else { return Ok(None) };
    if let Some((line, name)) = found.absent.first() {
        let n = found.absent.len();
        let (files, are) = if n == 1 { ("image", "is") } else { ("images", "are") };
        let what = format!(
            "lists {} {files} of {} that {are} not there: `{name}` in line {line}",
            count(n),
            count(n + found.files.len()),
        );
        let help = "put them there, or remove their rows";
        return Err(unusable(file, &what, help));
    }
    let group = table.names.iter().find(|name| GROUPS.contains(&name.to_lowercase().as_str()));
    let others: Vec<usize> = (0..table.names.len())
        .filter(|&at| at != found.at && group.is_none_or(|group| *group != table.names[at]))
        .collect();
    let (answer, columns) = answer(file, table, &others, request)?;
    let names: Vec<String> = columns.iter().map(|&at| table.names[at].clone()).collect();
    let shown = named(&names);
    let mut options = parts.to_vec();
    if table.names[found.at] != "image" {
        options.push(("image_column", table.names[found.at].clone().into()));
    }
    options.extend(found.dir.as_deref().map(|dir| ("image_dir", path(dir))));
    let what = match answer {
        ImageAnswer::Labels => {
            options.push(("class_columns", names.clone().into()));
            format!("{shown}: 1 where an image has the label")
        }
        ImageAnswer::Class => {
            options.push(("class_column", names[0].clone().into()));
            format!("{shown}: the class of each image")
        }
        ImageAnswer::Numbers => {
            options.push(("target_columns", names.clone().into()));
            format!("{shown}: numbers")
        }
    };
    options.extend(group.map(|group| ("group", group.clone().into())));
    if found.files.first().is_some_and(|first| has_more_than_8_bits(first)) {
        options.push(("pixel_dtype", "uint16".into()));
    }
    let mut notes = vec![("target", what)];
    let is_left = |at: &&usize| !columns.contains(at);
    let left: Vec<&str> =
        others.iter().filter(is_left).map(|&at| table.names[at].as_str()).collect();
    if !left.is_empty() {
        notes.push(("left out", format!("{}: not predicted", named(&left))));
    }
    if let Some(group) = group {
        notes.push(("group", format!("`{group}`: rows of one value are held out together")));
    }
    let are_empty = |at: &usize| given(table, *at).len() < table.rows.len();
    if columns.iter().any(are_empty) {
        options.push(("drop_unlabelled", true.into()));
    }
    let task = Task::ImageTable { answer, side: images::median_side(&found.files) };
    Ok(Some(RecognisedData::new("image_table", &options, task).noting(notes)))
}

/// The answer that is learnt for each image, and the columns that hold it.
fn answer(
    file: &Path,
    table: &Table,
    others: &[usize],
    request: InitRequest<'_>,
) -> Result<(ImageAnswer, Vec<usize>), ErrorPage> {
    let are_numbers = |at: usize| {
        let cells = given(table, at);
        !cells.is_empty() && cells.iter().all(|(_, cell)| cell.parse::<f64>().is_ok())
    };
    let kind = |at: usize| match request.task {
        Some(TableTask::Classification) => ImageAnswer::Class,
        None if is_class(table, at) => ImageAnswer::Class,
        Some(TableTask::Regression) | None => ImageAnswer::Numbers,
    };
    if let Some(name) = request.target {
        let at = table.place(name).filter(|at| others.contains(at)).ok_or_else(|| {
            let names: Vec<&str> = others.iter().map(|&at| table.names[at].as_str()).collect();
            let what = format!("`{}` has no column `{name}` to predict", file.display());
            ErrorPage::refused(what, format!("it has {}", named(&names)))
        })?;
        return Ok((kind(at), vec![at]));
    }
    let flags: Vec<usize> = others
        .iter()
        .copied()
        .filter(|&at| {
            let cells = given(table, at);
            !cells.is_empty() && target_cells(&cells).are_flags()
        })
        .collect();
    if flags.len() > 1 && request.task.is_none() {
        return Ok((ImageAnswer::Labels, flags));
    }
    // One column of classes: of a usual name, else the only one.
    let classes: Vec<usize> = others
        .iter()
        .copied()
        .filter(|&at| kind(at) == ImageAnswer::Class && is_class(table, at))
        .collect();
    let usual = |at: &&usize| {
        let name = table.names[**at].to_lowercase();
        ["label", "labels", "class", "target", "category", "breed", "diagnosis"]
            .contains(&name.as_str())
    };
    match (classes.iter().find(usual), &classes[..]) {
        (Some(&at), _) | (None, &[at]) => return Ok((ImageAnswer::Class, vec![at])),
        (None, [_, _, ..]) => {
            let names: Vec<&str> = classes.iter().map(|&at| table.names[at].as_str()).collect();
            let what = format!("lists images with several columns of classes: {}", named(&names));
            return Err(unusable(file, &what, "choose one with `--target`"));
        }
        (None, []) => {}
    }
    let numbers: Vec<usize> = others.iter().copied().filter(|&at| are_numbers(at)).collect();
    if numbers.is_empty() {
        let what = "lists images without a column of classes or numbers";
        let help = "add a column with the class of each image, a word or a whole number";
        return Err(unusable(file, what, help));
    }
    Ok((ImageAnswer::Numbers, numbers))
}

/// True if the cells of a column are classes, most of which are in several rows.
fn is_class(table: &Table, at: usize) -> bool {
    let cells = given(table, at);
    let distinct: BTreeSet<&str> = cells.iter().map(|(_, cell)| *cell).collect();
    let are_classes = target_cells(&cells).are_classes();
    are_classes && distinct.len() >= 2 && distinct.len() * 2 <= cells.len()
}

fn target_cells(cells: &[(u64, &str)]) -> TargetCells {
    let mut found = TargetCells::default();
    for (_, cell) in cells {
        found.push(cell);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::init::columns::tests::table;

    #[test]
    fn images_that_are_named_otherwise_than_their_files_are_refused_with_the_change() {
        let root = tempfile::tempdir().unwrap();
        files::create_folder(&root.path().join("images")).unwrap();
        for i in 0..6 {
            files::write_atomic(&root.path().join(format!("images/cat{i}.jpg")), b"").unwrap();
        }
        let page = |name: fn(usize) -> String| {
            let names: Vec<String> = (0..6).map(name).collect();
            let row = |i: usize| vec![names[i].as_str(), ["cat", "dog"][i % 2]];
            let table = table(&["filename", "label"], (0..6).map(row));
            let file = root.path().join("labels.csv");
            assert!(Images::of(&table, &file).is_none_or(|found| found.absent.is_empty()));
            refuse_unfound(&file, &table).err().map_or(String::new(), |page| page.to_string())
        };
        let cases: [(fn(usize) -> String, &str); 6] = [
            (
                |i| format!("images\\cat{i}.jpg"),
                "with backslashes: `images\\cat0.jpg` in line 2 is `images/cat0.jpg`",
            ),
            (
                |i| format!("/kaggle/input/images/cat{i}.jpg"),
                "`.str.removeprefix(\"/kaggle/input/\")`",
            ),
            (|i| format!("C:\\data\\images\\cat{i}.jpg"), "is `images/cat0.jpg`"),
            (|i| format!("images/cat{i}"), "without their ending: `images/cat0` in line 2 is"),
            (|i| format!("cat{i}"), "`cat0` in line 2 is `cat0.jpg`"),
            (|i| format!("photos/dog{i}.jpg"), "not there: `photos/dog0.jpg` in line 2"),
        ];
        for (name, what) in cases {
            let page = page(name).replace("`t[\"filename\"] = t[\"filename\"]", "`");
            assert!(page.contains(what), "{page}");
        }
        assert_eq!(page(|i| format!("https://x.org/dog{i}.jpg")), "");
        assert_eq!(page(|i| format!("red{i}")), "");
    }

    #[test]
    fn truth_values_and_missing_labels_are_labels() {
        let root = tempfile::tempdir().unwrap();
        let row = |i: usize| {
            let name = ["0.jpg", "1.jpg", "2.jpg", "3.jpg"][i % 4];
            files::write_atomic(&root.path().join(name), b"").unwrap();
            vec![name, ["True", "False"][i % 2], ["1.0", "0.0", ""][i % 3], ["a", "b"][i % 2]]
        };
        let whole = table(&["image", "cat", "dog", "of"], (0..24).map(row));
        let file = root.path().join("labels.csv");
        let found = listed(&file, &whole, &[], InitRequest::default()).ok().flatten().unwrap();
        let options = &found.data.options;
        assert_eq!(options["class_columns"], serde_json::json!(["cat", "dog"]));
        assert_eq!(options["drop_unlabelled"], true);
    }
}
