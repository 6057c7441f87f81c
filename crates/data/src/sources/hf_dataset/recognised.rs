//! A folder of parquet files -> the data set that it is, for `ddprun init`.

use std::io::Cursor;
use std::path::Path;

use image::ImageReader;

use crate::error::Error;
use crate::plan::SplitPlan;
use crate::sources::hf_dataset::data_set::HfDataset;
use crate::sources::hf_dataset::features::NamedColumns;
use crate::sources::hf_dataset::layout;
use crate::sources::hf_dataset::rows::Shard;

/// Most images of the first row group that are measured.
const MAX_MEASURED: usize = 200;

/// A folder of parquet files that hold images and classes.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageShards {
    /// The data set, with the splits of the folder to validate and to test on.
    pub data: HfDataset,
    /// The median of the shorter sides of some images, in pixels.
    pub side: u32,
    /// A split that is left out, and why.
    pub left_out: Option<(String, String)>,
}

impl HfDataset {
    /// Looks at the parquet files of a folder; `None` if their columns are no images with classes.
    ///
    /// # Errors
    ///
    /// They are, but cannot be used.
    pub fn recognise(folder: &Path) -> Result<Option<ImageShards>, Error> {
        let mut data = Self::of(folder);
        let Ok(listed) = data.listed() else { return Ok(None) };
        let Some(path) = listed.first().map(|file| folder.join(file)) else { return Ok(None) };
        let asked = NamedColumns { images: None, labels: None };
        let mut shard = match Shard::open(&path, asked) {
            Ok(shard) => shard,
            // Several columns of images, say: the experiment is to name one.
            Err(error @ Error::ManyColumns { .. }) => return Err(error),
            Err(_) => return Ok(None),
        };
        if shard.groups() == 0 {
            return Ok(None);
        }
        let mut sides: Vec<u32> = shard
            .images(0, 0)?
            .into_iter()
            .take(MAX_MEASURED)
            .filter_map(|image| {
                let reader = ImageReader::new(Cursor::new(image)).with_guessed_format().ok()?;
                reader.into_dimensions().ok().map(|(width, height)| width.min(height))
            })
            .collect();
        sides.sort_unstable();
        let Some(&side) = sides.get(sides.len() / 2) else { return Ok(None) };
        let splits = data.names_of_splits(&listed);
        let find = |wanted: &str| splits.iter().find(|name| layout::are_synonyms(name, wanted));
        data.val_split = find("validation").cloned();
        data.test_split = find("test").cloned();
        let mut left_out = None;
        if let Some(test) = data.test_split.clone()
            && let Err(error) = data.parts(&SplitPlan::NONE, |_| Ok(None))
        {
            // Those of competitions have no classes.
            data.test_split = None;
            left_out = Some((test, error.to_string()));
        }
        data.parts(&SplitPlan::NONE, |_| Ok(None))?;
        Ok(Some(ImageShards { data, side, left_out }))
    }
}
