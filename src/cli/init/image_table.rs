//! Tables that list images, with classes or numbers of each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::Refusal;
use crate::cli::init::columns::{Table, given};
use crate::cli::init::formatting::{count, named};
use crate::cli::init::recognised::{Asked, ImageAnswer, Recognised, Task, path, refused, unusable};
use crate::cli::init::{images, listing};
use crate::cli::init_args::TableTask;
use crate::data::{TargetCells, has_more_than_8_bits};

/// Names of a column whose rows belong together.
const GROUPS: [&str; 6] = ["patient", "patient_id", "subject", "subject_id", "group", "case"];

/// A column that names image files.
struct Images {
    /// Its place in the table.
    at: usize,
    /// The folder of the images, if it is not that of the table.
    dir: Option<PathBuf>,
    files: Vec<PathBuf>,
    /// Files that are not there, by the line that names each.
    absent: Vec<(u64, String)>,
}

impl Images {
    /// The column of image files of the table at `file`, most of which are there: beside it, or in
    /// a folder beside it.
    fn of(table: &Table, file: &Path) -> Option<Self> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let here = if folder == Path::new("") { Path::new(".") } else { folder };
        let places = std::iter::once((None, folder.to_owned()))
            .chain(listing::folders(here).into_iter().map(|dir| (Some(dir.clone()), dir)));
        let places: Vec<(Option<PathBuf>, PathBuf)> = places.collect();
        (0..table.names.len()).find_map(|at| {
            let cells = given(table, at);
            let are_names = |cell: &str| images::is_image(Path::new(cell));
            if cells.is_empty() || !cells.iter().all(|(_, cell)| are_names(cell)) {
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
    asked: Asked<'_>,
) -> Result<Option<Recognised>, Refusal> {
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
    let (answer, columns) = answer(file, table, &others, asked)?;
    let names: Vec<String> = columns.iter().map(|&at| table.names[at].clone()).collect();
    let shown = named(&names.iter().map(String::as_str).collect::<Vec<_>>());
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
    let task = Task::ImageTable { answer, side: images::median_side(&found.files) };
    Ok(Some(Recognised::new("image_table", &options, task).noting(notes)))
}

/// What is to be said of each image, and the columns that hold it.
fn answer(
    file: &Path,
    table: &Table,
    others: &[usize],
    asked: Asked<'_>,
) -> Result<(ImageAnswer, Vec<usize>), Refusal> {
    let all_are = |at: usize, is_so: fn(&str) -> bool| table.cells(at).all(|(_, cell)| is_so(cell));
    let is_number = |cell: &str| cell.parse::<f64>().is_ok();
    let kind = |at: usize| match asked.task {
        Some(TableTask::Classification) => ImageAnswer::Class,
        None if is_class(table, at) => ImageAnswer::Class,
        Some(TableTask::Regression) | None => ImageAnswer::Numbers,
    };
    if let Some(name) = asked.target {
        let at = table.place(name).filter(|at| others.contains(at)).ok_or_else(|| {
            let names: Vec<&str> = others.iter().map(|&at| table.names[at].as_str()).collect();
            let what = format!("`{}` has no column `{name}` to predict", file.display());
            refused(&what, &format!("it has {}", named(&names)))
        })?;
        return Ok((kind(at), vec![at]));
    }
    let flags: Vec<usize> = others
        .iter()
        .copied()
        .filter(|&at| all_are(at, |cell| cell == "0" || cell == "1"))
        .collect();
    if flags.len() > 1 && asked.task.is_none() {
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
    let numbers: Vec<usize> = others.iter().copied().filter(|&at| all_are(at, is_number)).collect();
    if numbers.is_empty() {
        let what = "lists images without a column of classes or numbers";
        let help = "add a column with the class of each image, a word or a whole number";
        return Err(unusable(file, what, help));
    }
    Ok((ImageAnswer::Numbers, numbers))
}

/// Whether the cells of a column are classes, of which most are in several rows.
fn is_class(table: &Table, at: usize) -> bool {
    let cells = given(table, at);
    let mut found = TargetCells::default();
    for (_, cell) in &cells {
        found.push(cell);
    }
    let distinct: BTreeSet<&str> = cells.iter().map(|(_, cell)| *cell).collect();
    found.are_classes() && distinct.len() >= 2 && distinct.len() * 2 <= cells.len()
}
