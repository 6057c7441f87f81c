//! Encoded images with classes, many to a file: the samples of one part, decoded and transformed.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use crate::config::kind::Choice;
use crate::error::{Error, SampleError};
use crate::images::decode::{self, DecodeOptions};
use crate::plan::Part;
use crate::rng::Key;
use crate::sources::holdout::{Labelled, Selection};
use crate::sources::source::Files;
use crate::transform::{Images, Pipeline, Transforms};
use crate::{Dataset, Target};

/// Bytes of files whose contents are compared when a run goes on; of more, names and sizes are.
const MAX_COMPARED: u64 = 2 << 30;

/// Encoded images that can be read in any order.
pub(crate) trait EncodedImages: Labelled + Debug + Send + Sync {
    /// The image at `place` as messages call it, its file included.
    fn name(&self, place: usize) -> String;

    /// The file of the image at `place`, and its number there, from 1.
    fn origin(&self, place: usize) -> (&Path, u64);

    /// The bytes of the image at `place`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not the one that was counted.
    fn read(&self, place: usize) -> Result<Vec<u8>, SampleError>;
}

/// One part.
#[derive(Debug)]
pub(crate) struct LabelledImages<T> {
    samples: Selection<T>,
    pipeline: Pipeline,
    options: DecodeOptions,
}

impl<T: EncodedImages> LabelledImages<T> {
    /// These samples, to be transformed as `list` says.
    pub(crate) fn new(
        samples: Selection<T>,
        list: &[Choice],
        transforms: &Transforms,
        options: DecodeOptions,
    ) -> Result<Self, Error> {
        let images = Images { dtype: options.dtype, ..Images::new(3, None) };
        Ok(Self { samples, pipeline: Pipeline::new(list, transforms, images)?, options })
    }

    /// Place among the images of the whole.
    fn place(&self, index: usize) -> usize {
        self.samples.places[index] as usize
    }
}

impl<T: EncodedImages> Dataset for LabelledImages<T> {
    fn len(&self) -> usize {
        self.samples.places.len()
    }

    fn shape(&self) -> &[usize] {
        self.pipeline.shape()
    }

    fn classifies(&self) -> bool {
        true
    }

    fn label(&self, index: usize) -> Option<u32> {
        Some(self.samples.whole.label(self.place(index)))
    }

    fn name(&self, index: usize) -> String {
        self.samples.whole.name(self.place(index))
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        let (path, number) = self.samples.whole.origin(self.place(index));
        Some((path.to_owned(), Some(number)))
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let place = self.place(index);
        let whole = &*self.samples.whole;
        let bytes = whole.read(place)?;
        let image =
            decode::decode(bytes, self.options, |size| self.pipeline.needed(size, key)).map_err(
                |why| SampleError::Image { name: whole.name(place), reason: why.to_string() },
            )?;
        self.pipeline
            .run(image, key, values)
            .map_err(|reason| SampleError::Transform { name: whole.name(place), reason })?;
        Ok(Target::Class(whole.label(place)))
    }
}

/// The files of each part below `root`, large ones to be compared by their names and sizes.
pub(crate) fn compared(root: &Path, parts: Vec<(Part, Vec<PathBuf>)>) -> Vec<Files> {
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let bytes: u64 = parts.iter().flat_map(|(_, paths)| paths).map(size).sum();
    let files = |(part, paths): (Part, Vec<PathBuf>)| Files {
        by_contents: bytes <= MAX_COMPARED,
        ..Files::many(part.name(), root, paths)
    };
    parts.into_iter().map(files).collect()
}
