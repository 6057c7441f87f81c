//! An image folder as a [`Dataset`]: file -> decoded RGB -> transformed values.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::error::{Error, SampleError, shown};
use crate::data::listing::{self, Listing};
use crate::data::transform::Pipeline;
use crate::data::{Dataset, Splits, Target, decode, read};
use crate::plan::{DataPlan, TransformPlan};
use crate::rng::Key;

/// One split.
#[derive(Debug)]
pub(crate) struct ImageFolder {
    files: Vec<(PathBuf, u32)>,
    pipeline: Pipeline,
}

/// Lists both roots: (training, validation).
///
/// # Errors
///
/// A folder is unusable, or the two do not have the same classes.
pub(crate) fn list(train: &Path, val: &Path) -> Result<(Listing, Listing), Error> {
    let train_listing = listing::list(train, "the training folder")?;
    let val_listing = listing::list(val, "the validation folder")?;
    listing::check_same_classes((train, &train_listing.classes), (val, &val_listing.classes))?;
    Ok((train_listing, val_listing))
}

/// Opens both splits; also returns the classes in label order.
///
/// # Errors
///
/// As [`list`], or the transforms are unusable.
pub(crate) fn open(
    train: &Path,
    val: &Path,
    plan: &DataPlan,
) -> Result<(Splits, Vec<String>), Error> {
    let (train, val) = list(train, val)?;
    let train_split = ImageFolder::new(train.files, &plan.train_transforms)?;
    let val_split = ImageFolder::new(val.files, &plan.val_transforms)?;
    Ok((Splits { train: Arc::new(train_split), val: Arc::new(val_split) }, train.classes))
}

impl ImageFolder {
    /// The files with their labels, in sample order, to be transformed by `transforms`.
    ///
    /// # Errors
    ///
    /// The transforms do not bring all images to one size.
    pub(crate) fn new(
        files: Vec<(PathBuf, u32)>,
        transforms: &[TransformPlan],
    ) -> Result<Self, Error> {
        Ok(Self { files, pipeline: Pipeline::new(transforms, 3, None)? })
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn shape(&self) -> &[usize] {
        self.pipeline.shape()
    }

    fn classifies(&self) -> bool {
        true
    }

    fn name(&self, index: usize) -> String {
        format!("`{}`", shown(&self.files[index].0))
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut [f32],
    ) -> Result<Target, SampleError> {
        let (path, label) = &self.files[index];
        let bytes =
            read::whole(path).map_err(|source| SampleError::Io { path: path.clone(), source })?;
        let image = decode::decode(&bytes)
            .map_err(|reason| SampleError::Decode { path: path.clone(), reason })?;
        self.pipeline
            .run(image, key, values)
            .map_err(|reason| SampleError::Transform { name: self.name(index), reason })?;
        Ok(Target::Class(*label))
    }
}
