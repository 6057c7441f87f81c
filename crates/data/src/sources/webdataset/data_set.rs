//! `data.name = "webdataset"`: images and classes in tar files, shuffled and read where they lie.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::error::{Error, SampleError, shown};
use crate::images::decode::DecodeOptions;
use crate::images::orientation::Exif;
use crate::inputs::{Inputs, PredictionRequest};
use crate::plan::{Part, PixelDtype, SplitPlan};
use crate::sources::class_labels::ClassLabels;
use crate::sources::encoded_images::{EncodedImages, LabelledImages, compared};
use crate::sources::holdout::{Labelled, Parts, Selection, parts_that_train};
use crate::sources::image_folder::{image_inputs, preprocessing_of};
use crate::sources::named_files::{FileNames, files_of, files_of_repository};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::webdataset::index_cache::{self, IndexCache};
use crate::sources::webdataset::tar_shard::{EXPECTED, NamedFields, TarShard};
use crate::{Splits, read};

/// How shards are called.
pub(super) const TAR_FILES: FileNames =
    FileNames { endings: &[".tar"], packed: &[], example: "data/train-{0000..0127}.tar" };
/// Endings of packed shards, which cannot be read in place.
const PACKED: [&str; 6] = [".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4"];

/// images with classes in tar shards, as the Python library webdataset reads them. Shards are read
/// in place, in the order of a full shuffle over all samples, not of one through a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebDataset {
    /// shards to train on: a tar file, a folder of them, or a pattern of files in one folder, as in
    /// "data/train-{0000..0127}.tar" or "data/train-*.tar"; "hf:datasets/ORG/NAME/train-*.tar" on the
    /// Hugging Face hub.
    #[schemars(extend("format" = "path"), example = "data/train-{0000..0127}.tar")]
    pub train_shards: PathBuf,
    /// shards to validate on; or hold out samples of `train_shards` with `data.val_fraction` or
    /// `data.folds`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/val-*.tar")]
    pub val_shards: Option<PathBuf>,
    /// shards to test on; they are used once, at the end of training.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/test")]
    pub test_shards: Option<PathBuf>,
    /// field of images: what follows the first dot in the names of their files. Default: the only
    /// one that is called like an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"jpg")]
    pub image_field: Option<String>,
    /// field of classes: whole numbers from 0, or words. Default: `cls`, else `json`, else `txt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"cls")]
    pub label_field: Option<String>,
    /// key of the class, where its field is JSON.
    #[serde(default = "label", skip_serializing_if = "is_label")]
    #[schemars(example = &"label")]
    pub label_key: String,
    /// file with the names of classes that are numbers, one in a line, from class 0 on. Default:
    /// the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"), example = "data/classnames.txt")]
    pub class_names: Option<PathBuf>,
    /// how pixels are read: `uint8`, or `uint16` for 16-bit scans and satellite images, as in
    /// `image_folder`.
    #[serde(default, skip_serializing_if = "PixelDtype::is_usual")]
    #[schemars(example = &"uint16")]
    pub pixel_dtype: PixelDtype,
    /// orientation that cameras write into a photo instead of turning its pixels: `apply`, to see
    /// photos upright, or `ignore`, as in `image_folder`.
    #[serde(default, skip_serializing_if = "Exif::is_usual")]
    #[schemars(example = &"apply")]
    pub exif: Exif,
}

fn label() -> String {
    "label".to_owned()
}

fn is_label(key: &str) -> bool {
    key == label()
}

/// Shards to validate and to test on, by their options.
const PARTS: BuiltinSplits =
    BuiltinSplits { val: &["val_shards"], test: &["test_shards"], ..BuiltinSplits::FILES };

impl Kind for WebDataset {
    const NAME: &'static str = "webdataset";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Images), Capability::Split(PARTS)];

    fn check(&self) -> Vec<OptionConflict> {
        let others = [("val_shards", &self.val_shards), ("test_shards", &self.test_shards)];
        parts_that_train((&["train_shards"], &self.train_shards), others)
    }
}

impl WebDataset {
    /// Shards to train on.
    pub fn of(train_shards: &Path) -> Self {
        Self {
            train_shards: train_shards.to_owned(),
            val_shards: None,
            test_shards: None,
            image_field: None,
            label_field: None,
            label_key: label(),
            class_names: None,
            pixel_dtype: PixelDtype::Uint8,
            exif: Exif::Ignore,
        }
    }

    fn decoding(&self) -> DecodeOptions {
        DecodeOptions { dtype: self.pixel_dtype, exif: self.exif }
    }

    fn fields(&self) -> NamedFields<'_> {
        let [image, label] = [&self.image_field, &self.label_field].map(Option::as_deref);
        NamedFields { image, label, json_key: &self.label_key }
    }

    /// What names the shards of each part.
    fn named(&self) -> impl Iterator<Item = (Part, &PathBuf)> {
        let train = (Part::Train, Some(&self.train_shards));
        let val = (Part::Val, self.val_shards.as_ref());
        let test = (Part::Test, self.test_shards.as_ref());
        [train, val, test].into_iter().filter_map(|(part, path)| Some((part, path?)))
    }

    /// The shards of each part.
    fn shards(&self) -> Result<Vec<(Part, Vec<PathBuf>)>, Error> {
        let mut all: Vec<(Part, Vec<PathBuf>)> = Vec::new();
        for (part, named) in self.named() {
            let shards = shards_of(part, named)?;
            let is_there = |path: &&PathBuf| all.iter().any(|(_, known)| known.contains(path));
            if let Some(path) = shards.iter().find(is_there) {
                let what = format!("it is one of `data.{}_shards`, too", Part::Train.name());
                let help = "name each shard for one part only".to_owned();
                return Err(Error::WithHelp { path: path.clone(), what, help });
            }
            all.push((part, shards));
        }
        Ok(all)
    }

    /// The shards with their samples, by part; and the classes.
    pub(super) fn read(&self) -> Result<(Parts<SplitShards>, Vec<String>), Error> {
        let named = self.class_names.as_deref().map(names_in).transpose()?;
        let cache = IndexCache::of_user();
        let mut parts = Parts::<SplitShards>::default();
        for (part, paths) in self.shards()? {
            let mut shards = SplitShards::read(paths, self.fields(), cache.as_ref())?;
            match part {
                Part::Train => {}
                _ => shards.label_as(&parts.train)?,
            }
            parts.put(part, shards);
        }
        if let (Some(path), true) = (&self.class_names, parts.train.labels.are_words()) {
            let what = "it names classes, but those of the shards are words".to_owned();
            let help = "remove `data.class_names`".to_owned();
            return Err(Error::WithHelp { path: path.clone(), what, help });
        }
        let all: Vec<&ClassLabels> = parts.each().map(|(_, shards)| &shards.labels).collect();
        let classes = parts.train.labels.classes(named.as_deref(), &all);
        Ok((parts, classes))
    }

    /// The samples of all parts, the classes, and notes for the user.
    pub(super) fn parts(&self, split: &SplitPlan) -> Result<ShardParts, Error> {
        let (parts, classes) = self.read()?;
        let named = self.class_names.is_some().then_some(&*classes);
        let mut notes = Vec::new();
        let mut samples = |shards: SplitShards| -> Result<Selection<LabelledShards>, Error> {
            if shards.labels.len() == 0 {
                return Ok(Selection::default());
            }
            notes.extend(shards.note());
            let labels = shards.among(&classes, named)?;
            Ok(Selection::all(LabelledShards {
                shards: shards.shards,
                starts: shards.starts,
                labels,
            }))
        };
        let Parts { train, val, test } = parts;
        let (train, val) = (samples(train)?, samples(val)?);
        let parts = Parts { train, val, test: test.map(samples).transpose()? };
        let unusable = |what| Error::Format { path: self.train_shards.clone(), what };
        Ok(ShardParts { parts: parts.held_back(split).map_err(unusable)?, classes, notes })
    }
}

/// The samples of all parts.
#[derive(Debug)]
pub(super) struct ShardParts {
    parts: Parts<Selection<LabelledShards>>,
    classes: Vec<String>,
    notes: Vec<String>,
}

/// The shards that `named` means.
fn shards_of(part: Part, named: &Path) -> Result<Vec<PathBuf>, Error> {
    let what = match part {
        Part::Train => "the training shard",
        Part::Val => "the validation shard",
        Part::Test => "the test shard",
    };
    files_of(what, named, EXPECTED, TAR_FILES).map_err(|error| match error {
        Error::WithHelp { path, what, .. }
            if what.starts_with("it holds no files") && has_packed(&path) =>
        {
            let help = "samples are read where they lie, which a packed file does not allow: \
                        `gunzip FILE` unpacks it, and takes hardly more space, since images are \
                        compressed themselves";
            let what = format!("{what}, but packed ones");
            Error::WithHelp { path, what, help: help.to_owned() }
        }
        other => other,
    })
}

/// True if the folder has packed shards.
fn has_packed(folder: &Path) -> bool {
    let Ok(mut found) = fs::read_dir(folder) else { return false };
    found.any(|entry| {
        let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
        PACKED.iter().any(|ending| name.to_string_lossy().ends_with(ending))
    })
}

/// The names in a file of classes, by line.
fn names_in(path: &Path) -> Result<Vec<String>, Error> {
    const EXPECTED: &str = "a file with the name of a class in each line";
    let text = read::text("the file of class names", path, EXPECTED)?;
    let refuse = |what: String| Error::Format { path: path.to_owned(), what };
    let text = String::from_utf8(text).map_err(|_| refuse("it is not UTF-8".to_owned()))?;
    let names: Vec<String> = text.trim_end().lines().map(|line| line.trim().to_owned()).collect();
    let mut known = BTreeSet::new();
    for (at, name) in names.iter().enumerate() {
        if name.is_empty() || !known.insert(name) {
            let what = if name.is_empty() { "is empty" } else { "is the name of a class before" };
            let line = at as u64 + 1;
            let what = what.to_owned();
            return Err(Error::Line { path: path.to_owned(), line, what });
        }
    }
    if names.is_empty() {
        return Err(Error::Empty { path: path.to_owned(), expected: EXPECTED });
    }
    Ok(names)
}

/// A shard, and where its samples lie.
#[derive(Clone, Debug)]
pub(super) struct IndexedShard {
    pub(super) path: PathBuf,
    /// Size and time of the last change, as they were when it was read.
    size: u64,
    modified: (i64, i64),
    pub(super) samples: TarShard,
}

/// The shards of a part.
#[derive(Clone, Debug, Default)]
pub(super) struct SplitShards {
    pub(super) shards: Vec<IndexedShard>,
    /// The sample of the part with which each shard begins.
    starts: Vec<usize>,
    pub(super) labels: ClassLabels,
}

impl SplitShards {
    /// Finds the samples of these shards.
    pub(super) fn read(
        paths: Vec<PathBuf>,
        asked: NamedFields<'_>,
        cache: Option<&IndexCache>,
    ) -> Result<Self, Error> {
        let read = |path: PathBuf| {
            let failed = Error::reading("the shard", &path, EXPECTED);
            let meta = fs::metadata(&path).map_err(failed)?;
            let samples = index_cache::index(&path, asked, cache)?;
            let modified = (meta.mtime(), meta.mtime_nsec());
            Ok(IndexedShard { path, size: meta.size(), modified, samples })
        };
        let shards: Vec<Result<IndexedShard, Error>> = paths.into_par_iter().map(read).collect();
        let mut found = Self::default();
        let mut labels = Vec::new();
        let mut n = 0;
        for shard in shards {
            let mut shard = shard?;
            if let Some(first) = found.shards.first() {
                same_field(first, &shard)?;
            }
            labels.push(std::mem::take(&mut shard.samples.labels));
            found.starts.push(n);
            n += shard.samples.len();
            found.shards.push(shard);
        }
        found.labels = ClassLabels::joined(labels);
        Ok(found)
    }

    /// Takes the form of the training shards' classes, where these are words.
    fn label_as(&mut self, train: &Self) -> Result<(), Error> {
        if let (Some(first), Some(own)) = (train.shards.first(), self.shards.first()) {
            same_field(first, own)?;
            if self.labels.are_words() && !train.labels.are_words() {
                let [theirs, ours] = [&self.labels, &train.labels].map(ClassLabels::in_words);
                let what = format!("its classes are {theirs}, but the training shards' are {ours}");
                return Err(Error::Format { path: own.path.clone(), what });
            }
        }
        let words = ClassLabels::Words(Vec::new());
        if train.labels.are_words() {
            self.labels = ClassLabels::joined(vec![words, std::mem::take(&mut self.labels)]);
        }
        Ok(())
    }

    /// The label of each sample among `classes`.
    fn among(&self, classes: &[String], named: Option<&[String]>) -> Result<Vec<u32>, Error> {
        self.labels.among(classes, named, UNLABELLED, |place, what, help| {
            let (shard, at) = place_of(&self.shards, &self.starts, place);
            let (key, field) = (shard.samples.key(at), &shard.samples.label_field);
            let what = format!("`{key}.{field}` is {what}");
            Error::WithHelp { path: shard.path.clone(), what, help: help.to_owned() }
        })
    }

    /// Note of entries that are left out.
    fn note(&self) -> Option<String> {
        let first = self.shards.iter().find(|shard| shard.samples.left_out > 0)?;
        let left_out: u64 = self.shards.iter().map(|shard| shard.samples.left_out).sum();
        let (noun, are) = if left_out == 1 { ("file", "is") } else { ("files", "are") };
        Some(format!(
            "{left_out} {noun} in the shards {are} no sample's and left out, in `{}` first",
            shown(&first.path)
        ))
    }
}

/// The remedy for samples without a class.
const UNLABELLED: &str = "leave samples without a class out of the shards, or name another field with `data.label_field`";

/// Refuses a shard whose labels lie in another field than those of the first.
fn same_field(first: &IndexedShard, other: &IndexedShard) -> Result<(), Error> {
    let [ours, theirs] = [first, other].map(|shard| &shard.samples.label_field);
    if ours == theirs {
        return Ok(());
    }
    let what = format!("its labels are in `{theirs}`, but in `{ours}` in the first shard");
    let help = "name the field of all with `data.label_field`".to_owned();
    Err(Error::WithHelp { path: other.path.clone(), what, help })
}

/// The shard of a sample, and the sample's number there, from 0.
fn place_of<'a>(
    shards: &'a [IndexedShard],
    starts: &[usize],
    place: usize,
) -> (&'a IndexedShard, usize) {
    let shard = starts.partition_point(|start| *start <= place).saturating_sub(1);
    (&shards[shard], place - starts[shard])
}

/// The shards of a part, with the labels of their samples.
#[derive(Debug, Default)]
pub(super) struct LabelledShards {
    shards: Vec<IndexedShard>,
    starts: Vec<usize>,
    labels: Vec<u32>,
}

impl LabelledShards {
    fn place(&self, place: usize) -> (&IndexedShard, usize) {
        place_of(&self.shards, &self.starts, place)
    }
}

impl Labelled for LabelledShards {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn label(&self, place: usize) -> u32 {
        self.labels[place]
    }
}

impl EncodedImages for LabelledShards {
    fn name(&self, place: usize) -> String {
        let (shard, at) = self.place(place);
        format!("sample `{}` of `{}`", shard.samples.key(at), shown(&shard.path))
    }

    fn origin(&self, place: usize) -> (&Path, u64) {
        let (shard, at) = self.place(place);
        (&shard.path, at as u64 + 1)
    }

    fn read(&self, place: usize) -> Result<Vec<u8>, SampleError> {
        let (shard, at) = self.place(place);
        shard.image(at).map_err(|reason| match reason {
            Unread::Io(source) => SampleError::Io { path: shard.path.clone(), source },
            Unread::Changed => {
                let reason = "the shard has changed since the run began; `ddprun resume` says \
                              what differs"
                    .to_owned();
                SampleError::Image { name: self.name(place), reason }
            }
        })
    }
}

/// Why an image could not be read.
#[derive(Debug)]
pub(super) enum Unread {
    Io(std::io::Error),
    /// The shard is not the one that was indexed.
    Changed,
}

impl IndexedShard {
    /// The encoded image of a sample. Shards are not kept open: there may be more of them than
    /// files that a process may open.
    pub(super) fn image(&self, at: usize) -> Result<Vec<u8>, Unread> {
        let file = read::open(&self.path).map_err(Unread::Io)?;
        let meta = file.metadata().map_err(Unread::Io)?;
        if (meta.size(), (meta.mtime(), meta.mtime_nsec())) != (self.size, self.modified) {
            return Err(Unread::Changed);
        }
        let (start, length) = self.samples.image(at);
        let mut bytes = vec![0; length];
        match file.read_exact_at(&mut bytes, start) {
            // A device error is tried once more, as of whole files.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                file.read_exact_at(&mut bytes, start)
            }
            result => result,
        }
        .map_err(Unread::Io)?;
        Ok(bytes)
    }
}

impl DataSource for WebDataset {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let ShardParts { parts, classes, .. } = self.parts(&reading.survey.split)?;
        parts.open(reading, classes, |samples, list| {
            Ok(Arc::new(LabelledImages::new(samples, list, reading.transforms, self.decoding())?))
        })
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let ShardParts { parts, classes, notes } = self.parts(&request.split)?;
        let mut class_counts = vec![0; classes.len()];
        parts.train.labels().for_each(|label| class_counts[label as usize] += 1);
        let shards = &parts.train.whole.shards;
        let bytes: u64 = shards.iter().map(|shard| shard.size).sum();
        let field = shards.first().map_or("", |shard| &shard.samples.label_field);
        let noun = if shards.len() == 1 { "shard" } else { "shards" };
        let (n, bytes) = (shards.len(), crate::units::Bytes(bytes));
        Ok(Survey {
            n_train: parts.train.places.len(),
            n_val: parts.val.places.len(),
            n_test: parts.test.as_ref().map_or(0, |test| test.places.len()),
            classes,
            class_counts,
            line: self.train_shards.display().to_string(),
            columns: vec![format!("classes of `{field}`, from {n} {noun} to train on ({bytes})")],
            notes,
            pixel_dtype: self.pixel_dtype,
            ..Survey::default()
        })
    }

    fn repositories(&self) -> &'static [&'static str] {
        &["train_shards", "val_shards", "test_shards"]
    }

    fn repository_files(&self, root: &str, listed: &[String]) -> Result<Vec<String>, Error> {
        files_of_repository(root, listed, TAR_FILES)
    }

    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        Ok(preprocessing_of(found, self.decoding()))
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        image_inputs(request, Vec::new(), self.decoding())
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let root = self.train_shards.parent().unwrap_or(&self.train_shards);
        let names = self.class_names.as_deref().map(|path| Files::one("class names", path));
        Ok(compared(root, self.shards()?).into_iter().chain(names).collect())
    }
}

/// Reads the shard at `path` to its end, and returns the bytes of its images.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_shard(path: &Path) -> Result<u64, Error> {
    let data = WebDataset::of(path);
    let shards = SplitShards::read(vec![path.to_owned()], data.fields(), None)?;
    shards.among(&shards.labels.classes(None, &[&shards.labels]), None)?;
    let shard = &shards.shards[0];
    let images = (0..shard.samples.len()).map(|at| shard.samples.image(at).1 as u64);
    Ok(images.sum())
}

#[cfg(test)]
mod tests;
