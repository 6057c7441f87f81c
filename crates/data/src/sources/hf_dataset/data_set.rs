//! `data.name = "hf_dataset"`: parquet shards of encoded images and their classes, as repositories of
//! the Hugging Face hub hold them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Splits;
use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::error::{Error, SampleError, shown};
use crate::images::decode::DecodeOptions;
use crate::images::orientation::Exif;
use crate::inputs::{Inputs, PredictionRequest};
use crate::plan::{Part, PixelDtype, SplitPlan};
use crate::sources::encoded_images::{EncodedImages, LabelledImages, compared};
use crate::sources::hf_dataset::features::NamedColumns;
use crate::sources::hf_dataset::image_store::{self, ImageStore};
use crate::sources::hf_dataset::layout::{ENDING, Layout, SplitChoice};
use crate::sources::hf_dataset::rows::SplitRows;
use crate::sources::holdout::{Labelled, Parts, Selection, parts_that_train};
use crate::sources::image_folder::{image_inputs, preprocessing_of};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::units::Bytes;
use crate::walk::files_below;

const EXPECTED: &str = "a folder with parquet files such as data/train-00000-of-00001.parquet";
/// Folders in folders that are looked into.
const MAX_DEPTH: usize = 8;

/// images with classes in a data set of the Hugging Face hub, or in parquet files like its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HfDataset {
    /// repository on the Hugging Face hub, "hf:datasets/ORG/NAME", maybe with @REVISION or a folder
    /// in it, or a folder of such files. Of a repository, only the splits below are fetched.
    #[schemars(extend("format" = "path"), example = "hf:datasets/ylecun/mnist")]
    pub path: PathBuf,
    /// configuration (subset), where there are several and none is called `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"mnist")]
    pub config_name: Option<String>,
    /// split to train on.
    #[serde(default = "train")]
    pub train_split: String,
    /// split to validate on; or hold out rows of `train_split` with `data.val_fraction` or
    /// `data.folds`.
    #[serde(default)]
    #[schemars(example = &"validation")]
    pub val_split: Option<String>,
    /// split to test on; it is used once, at the end of training.
    #[serde(default)]
    #[schemars(example = &"test")]
    pub test_split: Option<String>,
    /// column of encoded images. Default: the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"image")]
    pub image_column: Option<String>,
    /// column of classes: whole numbers, which may have names, or text. Default: the only one with
    /// names, else `label` or `labels`, else the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"label")]
    pub label_column: Option<String>,
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

fn train() -> String {
    "train".to_owned()
}

/// A split to validate and to test on, by their options.
const PARTS: BuiltinSplits =
    BuiltinSplits { val: &["val_split"], test: &["test_split"], ..BuiltinSplits::FILES };

impl Kind for HfDataset {
    const NAME: &'static str = "hf_dataset";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Images), Capability::Split(PARTS)];

    fn check(&self) -> Vec<OptionConflict> {
        let others = [("val_split", &self.val_split), ("test_split", &self.test_split)];
        parts_that_train((&["train_split"], &self.train_split), others)
    }
}

impl HfDataset {
    /// The split `train` of a folder.
    pub fn of(folder: &Path) -> Self {
        Self {
            path: folder.to_owned(),
            config_name: None,
            train_split: train(),
            val_split: None,
            test_split: None,
            image_column: None,
            label_column: None,
            pixel_dtype: PixelDtype::Uint8,
            exif: Exif::Ignore,
        }
    }

    fn decoding(&self) -> DecodeOptions {
        DecodeOptions { dtype: self.pixel_dtype, exif: self.exif }
    }

    /// The splits that are read.
    fn splits(&self) -> Vec<(Part, &'static str, &str)> {
        let train = (Part::Train, "data.train_split", Some(&self.train_split));
        let val = (Part::Val, "data.val_split", self.val_split.as_ref());
        let test = (Part::Test, "data.test_split", self.test_split.as_ref());
        [train, val, test]
            .into_iter()
            .filter_map(|(part, key, split)| Some((part, key, split?.as_str())))
            .collect()
    }

    /// The files of each split, of those that are `listed`.
    fn choose<'a>(
        &self,
        root: &str,
        listed: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<(Part, Vec<String>)>, Error> {
        let layout = Layout::of(listed);
        let splits = self.splits();
        let asked: Vec<_> = splits.iter().map(|&(_, key, split)| (key, split)).collect();
        let config = self.config_name.as_deref();
        let chosen = layout.choose(&SplitChoice { root, config, splits: &asked })?;
        Ok(splits.into_iter().map(|(part, ..)| part).zip(chosen).collect())
    }

    /// Names of all splits of these files that are of the configuration of this one.
    pub(super) fn names_of_splits(&self, listed: &[String]) -> Vec<String> {
        Layout::of(listed.iter().map(String::as_str)).names(self.config_name.as_deref())
    }

    /// Paths of the parquet files in the folder, relative to it.
    pub(super) fn listed(&self) -> Result<Vec<String>, Error> {
        let (what, path, expected) = ("the data set", self.path.clone(), EXPECTED);
        if !path.exists() {
            if let Some(help) = fetched_again(&path) {
                let what = "it is no longer in the cache of the hub".to_owned();
                return Err(Error::WithHelp { path, what, help });
            }
            return Err(Error::Missing { what, path, expected });
        }
        if !path.is_dir() {
            return Err(Error::NotAFolder { what, path, expected });
        }
        let mut listed = Vec::new();
        for file in files_below(&path, MAX_DEPTH) {
            let file = file?;
            let below = file.strip_prefix(&path).unwrap_or(&file).to_str();
            listed.extend(below.filter(|name| name.ends_with(ENDING)).map(str::to_owned));
        }
        if listed.is_empty() {
            let what = "it has no parquet files".to_owned();
            let help = "name the folder of files such as `data/train-00000-of-00001.parquet`";
            return Err(Error::WithHelp { path, what, help: help.to_owned() });
        }
        Ok(listed)
    }

    /// The shards of each split in the folder.
    fn shards(&self) -> Result<Vec<(Part, Vec<PathBuf>)>, Error> {
        let listed = self.listed()?;
        let chosen = self.choose(&shown(&self.path), listed.iter().map(String::as_str))?;
        let absolute =
            |files: Vec<String>| files.iter().map(|file| self.path.join(file)).collect::<Vec<_>>();
        Ok(chosen.into_iter().map(|(part, files)| (part, absolute(files))).collect())
    }

    /// All rows without their images, and the classes.
    fn rows(&self) -> Result<(Parts<SplitRows>, Vec<String>), Error> {
        let [images, labels] = [&self.image_column, &self.label_column].map(Option::as_deref);
        let asked = NamedColumns { images, labels };
        let mut parts = Parts::<SplitRows>::default();
        for (part, shards) in self.shards()? {
            // Those of the training split are the columns of all.
            let [images, labels] = [&parts.train.images, &parts.train.labelled_by];
            let same = NamedColumns { images: Some(images), labels: Some(labels) };
            let rows = SplitRows::read(shards, if part == Part::Train { asked } else { same })?;
            parts.put(part, rows);
        }
        let read = parts.each().map(|(_, rows)| rows).filter(|rows| rows.len() > 0);
        let classes = parts.train.classes(&read.collect::<Vec<_>>())?;
        Ok((parts, classes))
    }

    /// The splits whose images lie in a file of their own, each with the folder of that.
    fn stored_rows(&self) -> Result<Vec<(SplitRows, PathBuf)>, Error> {
        let (Parts { train, val, test }, _) = self.rows()?;
        let all = [train, val].into_iter().chain(test);
        Ok(all.filter_map(|rows| image_store::folder(&rows).map(|folder| (rows, folder))).collect())
    }

    /// The samples of all parts, with images where `stored` opens them.
    pub(super) fn parts(
        &self,
        split: &SplitPlan,
        stored: impl Fn(&SplitRows) -> Result<Option<ImageStore>, Error>,
    ) -> Result<(Parts<Selection<SplitSamples>>, Vec<String>), Error> {
        let (rows, classes) = self.rows()?;
        let samples = |rows: SplitRows| -> Result<Selection<SplitSamples>, Error> {
            if rows.len() == 0 {
                return Ok(Selection::default());
            }
            let (labels, images) = (rows.labels(&classes)?, stored(&rows)?);
            Ok(Selection::all(SplitSamples { rows, labels, images }))
        };
        let Parts { train, val, test } = rows;
        let (train, val) = (samples(train)?, samples(val)?);
        let parts = Parts { train, val, test: test.map(samples).transpose()? };
        let unusable = |what| Error::Format { path: self.path.clone(), what };
        Ok((parts.held_back(split).map_err(unusable)?, classes))
    }
}

impl DataSource for HfDataset {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let stored = |rows: &SplitRows| {
            ImageStore::open(rows, image_store::folder(rows).as_deref()).map(Some)
        };
        let (parts, classes) = self.parts(&reading.survey.split, stored)?;
        parts.open(reading, classes, |samples, list| {
            Ok(Arc::new(LabelledImages::new(samples, list, reading.transforms, self.decoding())?))
        })
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let (parts, classes) = self.parts(&request.split, |_| Ok(None))?;
        let mut class_counts = vec![0; classes.len()];
        parts.train.labels().for_each(|label| class_counts[label as usize] += 1);
        let rows = &parts.train.whole.rows;
        let words = format!(
            "images of column `{}`, classes of `{}`, from {}",
            rows.images,
            rows.labelled_by,
            self.splits()
                .iter()
                .map(|(.., split)| format!("`{split}`"))
                .collect::<Vec<_>>()
                .join(", ")
        );
        Ok(Survey {
            n_train: parts.train.places.len(),
            n_val: parts.val.places.len(),
            n_test: parts.test.as_ref().map_or(0, |test| test.places.len()),
            classes,
            class_counts,
            line: self.path.display().to_string(),
            columns: vec![words],
            pixel_dtype: self.pixel_dtype,
            held: Bytes(held(&parts)),
            ..Survey::default()
        })
    }

    fn repositories(&self) -> &'static [&'static str] {
        &["path"]
    }

    fn repository_files(&self, root: &str, listed: &[String]) -> Result<Vec<String>, Error> {
        if !listed.iter().any(|file| file.ends_with(ENDING)) {
            return Err(no_parquet(root));
        }
        let chosen = self.choose(root, listed.iter().map(String::as_str))?;
        Ok(chosen.into_iter().flat_map(|(_, files)| files).collect())
    }

    fn generate(&self, _: &SurveyRequest<'_>, tell: &dyn Fn(&str)) -> Result<(), Error> {
        let stored = self.stored_rows()?;
        let mut pending = None;
        let (mut n, mut bytes) = (0, 0);
        for (rows, folder) in &stored {
            if !image_store::is_ready(rows, folder)? {
                n += rows.len();
                bytes += rows.bytes;
                pending = Some(folder.display());
            }
        }
        if let Some(folder) = pending {
            let bytes = Bytes(bytes);
            tell(&format!("copying {n} images ({bytes}) from parquet files to `{folder}`, once"));
        }
        stored.iter().try_for_each(|(rows, folder)| ImageStore::open(rows, Some(folder)).map(drop))
    }

    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        Ok(preprocessing_of(found, self.decoding()))
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        image_inputs(request, Vec::new(), self.decoding())
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(compared(&self.path, self.shards()?))
    }
}

/// The command that fetches a snapshot of the hub's cache again; `None` for another folder.
fn fetched_again(path: &Path) -> Option<String> {
    let mut words = path.components().rev().map(|word| word.as_os_str().to_string_lossy());
    let (commit, snapshots, repository) = (words.next()?, words.next()?, words.next()?);
    let name = repository.strip_prefix("datasets--").filter(|_| snapshots == "snapshots")?;
    let name = name.replace("--", "/");
    Some(format!("`hf download --repo-type dataset {name} --revision {commit}` fetches it again"))
}

/// Error for a repository of other files.
fn no_parquet(root: &str) -> Error {
    let name = root.split('@').next().unwrap_or(root);
    let what = "it has no parquet files".to_owned();
    let help = if root.contains("@refs/convert") {
        "name another repository, or write its images to parquet files with `datasets`".to_owned()
    } else {
        format!("the hub converts many repositories: try `{name}@refs/convert/parquet`")
    };
    Error::WithHelp { path: root.into(), what, help }
}

/// Bytes of the images that are kept in memory.
fn held(parts: &Parts<Selection<SplitSamples>>) -> u64 {
    let mut splits: Vec<&Arc<SplitSamples>> = Vec::new();
    for (_, samples) in parts.each() {
        if !splits.iter().any(|known| Arc::ptr_eq(known, &samples.whole)) {
            splits.push(&samples.whole);
        }
    }
    let rows = splits.into_iter().map(|split| &split.rows);
    rows.filter(|rows| image_store::folder(rows).is_none()).map(|rows| rows.bytes).sum()
}

/// Reads the shard at `path` to its end, and returns the bytes of its images.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_shard(path: &Path) -> Result<u64, Error> {
    let asked = NamedColumns { images: None, labels: None };
    let rows = SplitRows::read(vec![path.to_owned()], asked)?;
    rows.labels(&rows.classes(&[&rows])?)?;
    Ok(ImageStore::open(&rows, None)?.bytes())
}

/// A split of the data set.
#[derive(Debug, Default)]
pub(super) struct SplitSamples {
    rows: SplitRows,
    labels: Vec<u32>,
    images: Option<ImageStore>,
}

impl Labelled for SplitSamples {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn label(&self, place: usize) -> u32 {
        self.labels[place]
    }
}

impl EncodedImages for SplitSamples {
    fn name(&self, place: usize) -> String {
        self.rows.name(place)
    }

    fn origin(&self, place: usize) -> (&Path, u64) {
        let (path, row) = self.rows.place(place);
        (path, row as u64 + 1)
    }

    fn read(&self, place: usize) -> Result<Vec<u8>, SampleError> {
        let images = self.images.as_ref().ok_or_else(|| "it was not opened".to_owned());
        let bytes = images.and_then(|images| images.get(place));
        bytes.map_err(|reason| SampleError::Image { name: self.name(place), reason })
    }
}

#[cfg(test)]
mod tests;
