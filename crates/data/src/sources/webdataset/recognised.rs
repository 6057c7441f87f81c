//! Recognises tar shards of images with classes in a folder, for `ddprun init`.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::ImageReader;

use crate::error::Error;
use crate::plan::SplitPlan;
use crate::sources::hf_dataset::{are_synonyms, split_of};
use crate::sources::name_pattern::NamePattern;
use crate::sources::webdataset::data_set::{SplitShards, WebDataset};

/// Images whose sizes are looked at.
const MAX_MEASURED: usize = 200;

/// A folder of tar files that hold images and classes.
#[derive(Clone, Debug, PartialEq)]
pub struct TarShards {
    /// The data set, with the shards of the folder to validate and to test on.
    pub data: WebDataset,
    /// The median of the shorter sides of some images, in pixels.
    pub side: u32,
}

impl WebDataset {
    /// Looks at the tar files of a folder, or of the folders in it that are called `train`, `val`
    /// and the like; `None` if there are none.
    ///
    /// # Errors
    ///
    /// There are some, but they cannot be used.
    pub fn recognise(folder: &Path) -> Result<Option<TarShards>, Error> {
        let splits = splits_in(folder)?;
        let find = |wanted: &str| {
            let found = splits.iter().find(|(name, _)| are_synonyms(name, wanted));
            found.map(|(_, paths)| pattern_for(folder, paths, splits.len() == 1))
        };
        let (Some(train), val, test) = (find("train"), find("validation"), find("test")) else {
            return Ok(None);
        };
        let mut data = Self::of(&train);
        (data.val_shards, data.test_shards) = (val, test);
        let (parts, _) = data.read()?;
        data.parts(&SplitPlan::NONE)?;
        let mut sides = sides(&parts.train);
        sides.sort_unstable();
        let side = sides.get(sides.len() / 2).copied();
        Ok(side.map(|side| TarShards { data, side }))
    }
}

/// The tar files in `folder`, and in the folders in it, by the split that their names tell.
fn splits_in(folder: &Path) -> Result<BTreeMap<String, Vec<PathBuf>>, Error> {
    let mut splits: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in crate::walk::files_below(folder, 1) {
        let file = file?;
        let below = file.strip_prefix(folder).ok().and_then(Path::to_str);
        if let Some(stem) = below.and_then(|name| name.strip_suffix(".tar")) {
            let ((_, split), _) = split_of(stem);
            splits.entry(split).or_default().push(file);
        }
    }
    Ok(splits)
}

/// The shortest way to name these files: the folder, if they are all that is in it, or a pattern.
fn pattern_for(folder: &Path, paths: &[PathBuf], are_all: bool) -> PathBuf {
    let parent = paths.first().and_then(|path| path.parent()).unwrap_or(folder);
    let is_folder = are_all || parent != folder;
    if is_folder && paths.iter().all(|path| path.parent() == Some(parent)) {
        return parent.to_owned();
    }
    let names: Vec<&str> = paths.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    let first = names.first().copied().unwrap_or_default();
    let length = (0..=first.len())
        .rev()
        .find(|&end| {
            first.get(..end).is_some_and(|start| names.iter().all(|it| it.starts_with(start)))
        })
        .unwrap_or(0);
    let start = &first[..length];
    let start = start.strip_suffix(".tar").unwrap_or(start);
    let start = start.trim_end_matches(|sign: char| sign.is_ascii_digit());
    let pattern = folder.join(format!("{start}*.tar"));
    debug_assert!(NamePattern::of(&pattern).is_some());
    pattern
}

/// The shorter sides of some images of the first shard.
fn sides(train: &SplitShards) -> Vec<u32> {
    let Some(shard) = train.shards.first() else { return Vec::new() };
    let side = |at: usize| {
        let image = shard.image(at).ok()?;
        let reader = ImageReader::new(Cursor::new(image)).with_guessed_format().ok()?;
        reader.into_dimensions().ok().map(|(width, height)| width.min(height))
    };
    (0..shard.samples.len().min(MAX_MEASURED)).filter_map(side).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(names: &[&str], are_all: bool) -> String {
        let paths: Vec<PathBuf> = names.iter().map(|name| Path::new("set").join(name)).collect();
        pattern_for(Path::new("set"), &paths, are_all).display().to_string()
    }

    #[test]
    fn shards_are_named_by_their_folder_or_by_what_their_names_begin_with() {
        assert_eq!(pattern(&["train/0.tar", "train/1.tar"], false), "set/train");
        assert_eq!(pattern(&["a-0.tar", "a-1.tar"], true), "set");
        assert_eq!(
            pattern(&["in1k-train-000.tar", "in1k-train-001.tar"], false),
            "set/in1k-train-*.tar"
        );
        assert_eq!(pattern(&["val.tar"], false), "set/val*.tar");
        assert_eq!(pattern(&["val-007.tar"], false), "set/val-*.tar");
    }
}
