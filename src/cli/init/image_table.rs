//! Tables that list images, with classes or numbers of each.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::Refusal;
use crate::cli::init::images;
use crate::cli::init::recognised::{Recognised, Task, unusable};
use crate::data::has_more_than_8_bits;

/// Names of a column whose rows belong together.
const GROUPS: [&str; 6] = ["patient", "patient_id", "subject", "subject_id", "group", "case"];

/// The rows of a table.
pub(super) struct Table<'a> {
    pub(super) names: &'a [String],
    pub(super) rows: &'a [csv::StringRecord],
}

impl Table<'_> {
    fn cells(&self, at: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().map(move |row| row.get(at).unwrap_or_default())
    }

    /// The columns but `except` of which all cells are so.
    fn columns(&self, except: usize, is_so: impl Fn(&str) -> bool) -> Vec<&str> {
        let all = (0..self.names.len()).filter(|&at| at != except && self.cells(at).all(&is_so));
        all.map(|at| self.names[at].as_str()).collect()
    }

    /// The column of image files beside the table at `file`, and the files.
    fn images(&self, file: &Path) -> Option<(usize, Vec<PathBuf>)> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let files = |at: usize| -> Vec<PathBuf> {
            self.cells(at).filter(|cell| !cell.is_empty()).map(|cell| folder.join(cell)).collect()
        };
        let are_images = |files: &Vec<PathBuf>| {
            !files.is_empty() && files.iter().all(|file| images::is_image(file) && file.is_file())
        };
        (0..self.names.len()).map(|at| (at, files(at))).find(|(_, files)| are_images(files))
    }
}

/// The images that the table at `file` lists, whose options begin with `parts`; `None` if it lists
/// none.
///
/// # Errors
///
/// There is nothing to learn of them.
pub(super) fn listed(
    file: &Path,
    table: &Table<'_>,
    parts: &[(&'static str, Value)],
) -> Result<Option<Recognised>, Refusal> {
    let Some((at, files)) = table.images(file) else { return Ok(None) };
    let group = table.names.iter().find(|name| GROUPS.contains(&name.to_lowercase().as_str()));
    let is_group = |name: &&str| group.is_some_and(|group| group == *name);
    let besides = |mut columns: Vec<&str>| {
        columns.retain(|name| !is_group(name));
        columns.into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let classes = besides(table.columns(at, |cell| cell == "0" || cell == "1"));
    let numbers = besides(table.columns(at, |cell| cell.parse::<f64>().is_ok()));
    let multi_label = !classes.is_empty();
    let (key, columns) =
        if multi_label { ("class_columns", classes) } else { ("target_columns", numbers) };
    if columns.is_empty() {
        let what = "lists images without a column of numbers, or of 0 and 1 for a class";
        let help = "put images of one class each into a folder of the class's name, or give each \
                    class a column in which 1 says that an image has it";
        return Err(unusable(file, what, help));
    }
    let mut options = parts.to_vec();
    if table.names[at] != "image" {
        options.push(("image_column", table.names[at].clone().into()));
    }
    options.push((key, columns.into()));
    options.extend(group.map(|group| ("group", group.clone().into())));
    if files.first().is_some_and(|first| has_more_than_8_bits(first)) {
        options.push(("pixel_dtype", "uint16".into()));
    }
    let task = Task::ImageTable { multi_label, side: images::median_side(&files) };
    Ok(Some(Recognised::new("image_table", &options, task)))
}
