//! The images of a camera: in a column, or files beside the tables, as `LeRobot` has them.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::data::parquet::Table;
use crate::data::{Error, files_below, is_hidden, read_file};
use crate::episodes::{Camera, Encoded, Frames};

/// Most files of images, and how deep they are looked for.
const MOST_FILES: usize = 1 << 24;
const DEEPEST: usize = 8;

/// The rows of a table: the number of its episode and of its frame.
pub(crate) struct Numbers<'a> {
    pub(crate) episodes: Option<&'a [i64]>,
    pub(crate) frames: Option<&'a [i64]>,
    pub(crate) rows: usize,
}

/// The images of the camera `name` in each row of `table`, a file of the data set in the folder
/// `root`.
pub(crate) fn images(
    table: &Table<'_>,
    root: &Path,
    name: &str,
    numbers: &Numbers<'_>,
) -> Result<Camera, Error> {
    let fails = |row: usize, what: &str| {
        table.format(format!("column `{name}` {what} in row {row}, not an image"))
    };
    let folder = root.join("images").join(name);
    let encoded = table.bytes(&[name, "bytes"])?;
    let paths = table.bytes(&[name, "path"])?;
    if encoded.is_none() && paths.is_none() && !folder.is_dir() {
        return Err(absent(table, root, name));
    }
    let mut encoded = encoded.unwrap_or_default();
    let paths = paths.unwrap_or_default();
    let of_row = |row: usize| {
        if let Some(bytes) = encoded.get_mut(row).and_then(Option::take) {
            return Ok(Encoded::Bytes(bytes));
        }
        let path = paths.get(row).and_then(|path| std::str::from_utf8(path.as_ref()?).ok());
        let written = path.map(|path| root.join(path)).filter(|path| path.is_file());
        let numbered = || numbers.path(&folder, row).filter(|path| path.is_file());
        let file = written.or_else(numbered).ok_or_else(|| match path {
            Some(path) => fails(row, &format!("names `{path}`, which is not there")),
            None => fails(row, "holds nothing"),
        });
        file.map(Encoded::File)
    };
    let images = (0..numbers.rows).map(of_row).collect::<Result<_, _>>()?;
    Ok(Camera { name: name.to_owned(), frames: Frames::Encoded(images) })
}

impl Numbers<'_> {
    /// `episode_000003/frame_000017.png`, below the folder of a camera.
    fn path(&self, folder: &Path, row: usize) -> Option<PathBuf> {
        let episode = self.episodes?[row];
        let frame = self.frames?[row];
        Some(folder.join(format!("episode_{episode:06}")).join(format!("frame_{frame:06}.png")))
    }
}

/// Cameras whose images can be read: columns of a table, and folders in `images`.
pub(crate) fn seen(table: &Table<'_>, root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("images")).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir() && !is_hidden(&entry.file_name()));
    let names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut cameras: Vec<String> = names.chain(table.structs_with("bytes")).collect();
    cameras.sort_unstable();
    cameras.dedup();
    cameras
}

/// `meta/info.json` of a data set.
#[derive(Deserialize)]
struct Info {
    features: std::collections::BTreeMap<String, Feature>,
}

#[derive(Deserialize)]
struct Feature {
    dtype: String,
}

/// Error for missing images of the camera `name`.
fn absent(table: &Table<'_>, root: &Path, name: &str) -> Error {
    let path = root.to_owned();
    let camera = name.to_owned();
    let info = read_file(&root.join("meta").join("info.json")).ok();
    let info = info.and_then(|bytes| serde_json::from_slice::<Info>(&bytes).ok());
    let features = info.map(|info| info.features).unwrap_or_default();
    if features.get(name).is_some_and(|feature| feature.dtype == "video") {
        return Error::Video { path, camera };
    }
    let pictured = |dtype: &str| ["image", "video"].contains(&dtype);
    let described = features.into_iter().filter(|(_, feature)| pictured(&feature.dtype));
    let mut cameras = table.structs_with("bytes");
    cameras.extend(described.map(|(name, _)| name));
    cameras.sort_unstable();
    cameras.dedup();
    Error::NoCamera { path, camera, cameras }
}

/// Files of images beside the tables of the data set in the folder `root`.
pub(crate) fn listed(root: &Path, cameras: &[String]) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for folder in cameras.iter().map(|name| root.join("images").join(name)) {
        if folder.is_dir() {
            let room = MOST_FILES - files.len();
            for file in files_below(&folder, DEEPEST).take(room) {
                files.push(file?);
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}
