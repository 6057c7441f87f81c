//! `data.name = "image_folder"`: file -> decoded RGB -> transformed values.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{BuiltinSplits, Capability, Choice, Kind, Modality, Options};
use crate::error::{Error, SampleError, shown};
use crate::file_names::{IMAGES, is_image};
use crate::images::decode::{self, DecodeOptions};
use crate::images::orientation::{Exif, is_turned};
use crate::inputs::{self, InputItems, Inputs, OutputScale, PredictionKind, PredictionRequest};
use crate::listing::cache::{self, ListingCache};
use crate::listing::paths::Paths;
use crate::listing::scan::{self, Listing};
use crate::plan::{Part, SplitPlan};
use crate::rng::Key;
use crate::sources::holdout::Parts;
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::transform::{Images, Pipeline, PixelDtype, Transforms};
use crate::{Dataset, Splits, Target, read};

/// image folders, one per class, as torchvision's ImageFolder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageFolder {
    /// training folder, with one folder per class that holds .jpg .jpeg .jfif .png .ppm .bmp .pgm
    /// .tif .tiff and .webp files. Pixels are those of Pillow's convert("RGB"), which clips 16-bit
    /// grey at 255 (see `pixel_dtype`). Names that begin with a dot are skipped; many other files
    /// cause a warning.
    #[schemars(extend("format" = "path"), example = "data/train")]
    pub train_dir: PathBuf,
    /// validation folder, with the same classes, of which some may have no images; or hold out images of `train_dir` with
    /// `data.val_fraction` or `data.folds`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/val")]
    pub val_dir: Option<PathBuf>,
    /// test folder, with the same classes; it is used once, at the end of training.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/test")]
    pub test_dir: Option<PathBuf>,
    /// how pixels are read: `uint8`, or `uint16` for 16-bit scans and satellite images, which
    /// become value / 65535 (8-bit files among them are scaled to the same range). Colour
    /// transforms need `uint8`.
    #[serde(default, skip_serializing_if = "PixelDtype::is_usual")]
    #[schemars(example = &"uint16")]
    pub pixel_dtype: PixelDtype,
    /// accept class folders of `train_dir` without images, as torchvision's ImageFolder with
    /// `allow_empty=True`; those of other folders are always accepted, with a warning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(example = true)]
    pub allow_empty: bool,
    /// orientation that cameras write into a photo instead of turning its pixels: `apply`, to see
    /// photos upright, or `ignore`. Ignored by default, as by torchvision's `ImageFolder` and timm,
    /// so that pixels are theirs; `ddprun plan` counts the photos that it concerns. Of a TIFF it is
    /// always applied, as by Pillow.
    #[serde(default, skip_serializing_if = "Exif::is_usual")]
    #[schemars(example = &"apply")]
    pub exif: Exif,
}

impl Kind for ImageFolder {
    const NAME: &'static str = "image_folder";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Images), Capability::Split(BuiltinSplits::FOLDERS)];
}

impl ImageFolder {
    /// Images of `train_dir` to train on, of `val_dir` to validate on.
    pub fn new(train_dir: PathBuf, val_dir: PathBuf) -> Self {
        let val_dir = Some(val_dir);
        let test_dir = None;
        let allow_empty = false;
        let pixel_dtype = PixelDtype::Uint8;
        let exif = Exif::Ignore;
        Self { train_dir, val_dir, test_dir, pixel_dtype, allow_empty, exif }
    }

    fn decoding(&self) -> DecodeOptions {
        DecodeOptions { dtype: self.pixel_dtype, exif: self.exif }
    }

    /// The folders with what they are called in messages.
    fn folders(&self) -> impl Iterator<Item = (Part, &Path, &'static str)> {
        let train = (Part::Train, Some(&self.train_dir), "the training folder");
        let val = (Part::Val, self.val_dir.as_ref(), "the validation folder");
        let test = (Part::Test, self.test_dir.as_ref(), "the test folder");
        [train, val, test]
            .into_iter()
            .filter_map(|(part, path, what)| Some((part, path?.as_path(), what)))
    }

    /// Lists all folders; also what is to be said of classes without images.
    fn list(&self) -> Result<Listings<'_>, Error> {
        let mut notes = Vec::new();
        let cache = ListingCache::of_user();
        let mut listed: Vec<(Part, &Path, Listing)> = Vec::new();
        for (part, path, what) in self.folders() {
            let mut listing = cache::list(path, what, cache.as_ref())?;
            let empty = match listed.first() {
                Some((_, train, first)) => {
                    scan::label_as(train, &first.classes, path, &mut listing)?
                }
                None => listing.empty_classes(),
            };
            let may_be_empty =
                part != Part::Train || (self.allow_empty && !listing.files.is_empty());
            if !(empty.is_empty() || may_be_empty) {
                return Err(Error::EmptyClasses { path: path.to_owned(), classes: empty });
            }
            notes.extend(note_of_empty(path, &empty));
            listed.push((part, path, listing));
        }
        Ok((listed, notes))
    }

    /// The images of all parts, and the classes.
    fn parts(&self, split: &SplitPlan) -> Result<FolderParts, Error> {
        let mut parts = Parts::<Paths>::default();
        let (listed, mut notes) = self.list()?;
        let mut all_classes = Vec::new();
        for (part, path, listing) in listed {
            notes.extend(listing.note(path));
            parts.put(part, listing.files);
            if part == Part::Train {
                all_classes = listing.classes;
            }
        }
        notes.dedup();
        let unusable = |what| Error::Format { path: self.train_dir.clone(), what };
        let parts = parts.held_back(split).map_err(unusable)?;
        Ok(FolderParts { parts, classes: all_classes, notes })
    }

    fn line(&self) -> String {
        let folders: Vec<String> =
            self.folders().map(|(_, path, _)| path.display().to_string()).collect();
        folders.join(" and ")
    }
}

/// The listing of each folder, and what is to be said of them.
type Listings<'a> = (Vec<(Part, &'a Path, Listing)>, Vec<String>);

/// Classes named in a message.
const MAX_NAMED_CLASSES: usize = 5;

/// Note that a folder has no image of some classes.
fn note_of_empty(root: &Path, classes: &[String]) -> Option<String> {
    let named: Vec<String> =
        classes.iter().take(MAX_NAMED_CLASSES).map(|class| format!("`{class}`")).collect();
    let more = match classes.len().saturating_sub(MAX_NAMED_CLASSES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let noun = if classes.len() == 1 { "class" } else { "classes" };
    let note = || format!("`{}` has no images of {noun} {}{more}", shown(root), named.join(", "));
    (!classes.is_empty()).then(note)
}

/// The images of all parts.
#[derive(Debug)]
struct FolderParts {
    parts: Parts<Paths>,
    classes: Vec<String>,
    notes: Vec<String>,
}

impl DataSource for ImageFolder {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let FolderParts { parts, classes, .. } = self.parts(&reading.survey.split)?;
        parts.open(reading, classes, |files, list| {
            Ok(Arc::new(ImageFiles::new(files, list, reading.transforms, self.decoding())?))
        })
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let FolderParts { parts, classes, mut notes } = self.parts(&request.split)?;
        notes.extend(note_of_bits(&parts.train, self.pixel_dtype));
        let (turned, lying) = turned_photos(parts.each(), self.exif);
        notes.extend(lying);
        Ok(Survey {
            n_train: parts.train.len(),
            n_val: parts.val.len(),
            n_test: parts.test.map_or(0, |test| test.len()),
            class_counts: parts.train.counts(classes.len()),
            classes,
            notes,
            line: self.line() + &turned,
            pixel_dtype: self.pixel_dtype,
            ..Survey::default()
        })
    }

    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        Ok(preprocessing_of(found, self.decoding()))
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        image_inputs(request, Vec::new(), self.decoding())
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let paths = |listing: Listing| -> Vec<PathBuf> {
            listing.files.iter().map(|(path, _)| path).collect()
        };
        let (listed, _) = self.list()?;
        Ok(listed
            .into_iter()
            .map(|(part, root, listing)| Files::many(part.name(), root, paths(listing)))
            .collect())
    }
}

/// Note that the first file has 16 bits, of which 8 are read.
pub(crate) fn note_of_bits(files: &Paths, dtype: PixelDtype) -> Option<String> {
    let (first, _) = files.iter().next()?;
    let is_cut = dtype == PixelDtype::Uint8 && decode::has_more_than_8_bits(&first);
    is_cut.then(|| {
        format!(
            "`{}` has pixels of 16 bits, which are cut to 8: `data.pixel_dtype = \"uint16\"` reads \
             all of them",
            shown(&first)
        )
    })
}

/// Most images of a part whose headers are read for their orientation.
const MAX_LOOKED_AT: usize = 1000;

/// Counts photos that name an orientation: for the plan's line if it is applied, as notes if it is
/// not.
pub(crate) fn turned_photos<'a>(
    parts: impl Iterator<Item = (Part, &'a Paths)>,
    exif: Exif,
) -> (String, Vec<String>) {
    let said: Vec<String> = parts.filter_map(|(part, files)| counted_photos(part, files)).collect();
    match exif {
        Exif::Apply => {
            (said.iter().flat_map(|photos| [", ", photos, ", applied"]).collect(), vec![])
        }
        Exif::Ignore => {
            let note = |photos: &String| {
                format!(
                    "{photos}, which is not applied: they are read as they are stored, lying or \
                     mirrored; `data.exif = \"apply\"` turns them upright"
                )
            };
            (String::new(), said.iter().map(note).collect())
        }
    }
}

fn counted_photos(part: Part, files: &Paths) -> Option<String> {
    let step = files.len().div_ceil(MAX_LOOKED_AT).max(1);
    let looked_at: Vec<usize> = (0..files.len()).step_by(step).collect();
    // Headers only: no threads, which a process that plans may not get.
    let turned = looked_at.iter().filter(|&&index| is_turned(&files.get(index).0)).count();
    let part = match part {
        Part::Train => "training",
        Part::Val => "validation",
        Part::Test => "test",
    };
    let of = looked_at.len();
    let all = files.len();
    let sample = if step > 1 { format!(" looked at (of {all})") } else { String::new() };
    let has = if turned == 1 { "has" } else { "have" };
    (turned > 0)
        .then(|| format!("{turned} of {of} {part} images{sample} {has} an EXIF orientation"))
}

/// Reading of image files, described for other programs.
pub(crate) fn preprocessing_of(found: &Options, options: DecodeOptions) -> Options {
    let mut found = found.clone();
    let said = [
        ("pixel_dtype", serde_json::to_value(options.dtype)),
        ("exif", serde_json::to_value(options.exif)),
    ];
    found.extend(said.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.ok()?))));
    found
}

/// Images of files and folders, transformed as those to validate on.
pub(crate) fn image_inputs(
    request: &PredictionRequest<'_>,
    units: Vec<OutputScale>,
    options: DecodeOptions,
) -> Result<Inputs, Error> {
    let is_wanted = |path: &Path| path.file_name().is_some_and(is_image);
    let inputs::InputFiles { files, notes } = inputs::files(request.paths, IMAGES, &is_wanted)?;
    let listed = inputs::unlabelled(&files);
    let images =
        ImageFiles::new(listed, &request.plan.val_transforms, request.transforms, options)?;
    let items = InputItems::Files(files);
    let answers = PredictionKind::OfLoss(units);
    Ok(Inputs { samples: Arc::new(images), items, answers, notes })
}

/// One split.
#[derive(Debug)]
pub(crate) struct ImageFiles {
    files: Paths,
    pipeline: Pipeline,
    options: DecodeOptions,
}

impl ImageFiles {
    /// The files with their labels, in sample order, to be transformed as `list` says.
    pub(crate) fn new(
        files: Paths,
        list: &[Choice],
        transforms: &Transforms,
        options: DecodeOptions,
    ) -> Result<Self, Error> {
        let images = Images { dtype: options.dtype, ..Images::new(3, None) };
        Ok(Self { files, pipeline: Pipeline::new(list, transforms, images)?, options })
    }
}

impl Dataset for ImageFiles {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn shape(&self) -> &[usize] {
        self.pipeline.shape()
    }

    fn classifies(&self) -> bool {
        true
    }

    fn label(&self, index: usize) -> Option<u32> {
        Some(self.files.get(index).1)
    }

    fn name(&self, index: usize) -> String {
        format!("`{}`", shown(&self.files.get(index).0))
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        Some((self.files.get(index).0, None))
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let (path, label) = self.files.get(index);
        let bytes =
            read::whole(&path).map_err(|source| SampleError::Io { path: path.clone(), source })?;
        let image = decode::decode(bytes, self.options, |size| self.pipeline.needed(size, key))
            .map_err(|why| why.of(&path))?;
        self.pipeline
            .run(image, key, values)
            .map_err(|reason| SampleError::Transform { name: self.name(index), reason })?;
        Ok(Target::Class(label))
    }
}

#[cfg(test)]
mod tests {
    use libjpeg_turbo_rs::{PixelFormat, Subsampling, compress};

    use super::*;
    use crate::config::values::Shape2;
    use crate::pipeline::loader::{Loader, Request, Settings};
    use crate::plan::OnBadSample;
    use crate::rng::Purpose;
    use crate::transform::golden::picture;
    use crate::transform::{Decoded, RandomHorizontalFlip, RandomResizedCrop};

    /// Twelve JPEG files of different sizes, cropped at random and flipped.
    fn folder(dir: &Path) -> ImageFiles {
        let mut files = Paths::default();
        for number in 0..12 {
            let (height, width) = (40 + 9 * number, 130 - 7 * number);
            let pixels = picture(3, height, width).data;
            let subsampling = [Subsampling::S444, Subsampling::S420][number % 2];
            let bytes = compress(&pixels, width, height, PixelFormat::Rgb, 85, subsampling);
            let path = dir.join(format!("{number}.jpg"));
            crate::files::write_atomic(&path, &bytes.unwrap()).unwrap();
            files.push_path(&path, number as u32);
        }
        let size = Shape2::Both([24, 20]);
        let list = [
            Choice::of(&RandomResizedCrop { ratio: [0.75, 1.33], ..RandomResizedCrop::to(size) }),
            Choice::of(&RandomHorizontalFlip { p: 0.5 }),
        ];
        ImageFiles::new(files, &list, &Transforms::default(), DecodeOptions::default()).unwrap()
    }

    #[test]
    fn a_sample_is_that_of_the_whole_image_though_only_a_part_is_decoded() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path());
        for index in 0..folder.len() {
            let key = Some(Key::new(7, Purpose::Augment, 1, index as u64));
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            folder.load(index, key, &mut found).unwrap();
            let bytes = read::whole(&folder.files.get(index).0).unwrap();
            let whole =
                decode::decode(bytes.clone(), PixelDtype::Uint8, crate::transform::Area::whole)
                    .unwrap();
            let part =
                decode::decode(bytes, PixelDtype::Uint8, |size| folder.pipeline.needed(size, key))
                    .unwrap();
            assert!(part.pixels.data.len() <= whole.pixels.data.len());
            folder.pipeline.run(Decoded::whole(whole.pixels), key, &mut expected).unwrap();
            assert_eq!(found, expected, "sample {index}");
        }
    }

    #[test]
    fn batches_have_the_same_bits_for_any_number_of_loader_threads() {
        let dir = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Dataset> = Arc::new(folder(dir.path()));
        let batches = |threads| -> Vec<(Vec<u32>, Vec<u32>)> {
            let requests = (0..9u32).map(|pass| Request {
                samples: (0..5).map(|i| (pass * 7 + i * 5) % 12).collect(),
                epoch: (pass < 7).then_some(u64::from(pass / 3)),
                ..Request::default()
            });
            let on_bad_sample = OnBadSample::Error;
            let settings = Settings {
                seed: 3,
                threads,
                prefetch_factor: 2,
                on_bad_sample,
                mixup: None,
                pad_to_longest: false,
            };
            let loader = Loader::start(folder.clone(), requests, settings).unwrap();
            let bits = loader.map(|loaded| {
                let batch = loaded.unwrap().batch;
                assert_eq!(batch.inputs.dims(), [5, 3, 24, 20]);
                let values: Vec<f32> = batch.inputs.flatten_all().unwrap().to_vec1().unwrap();
                (batch.samples, values.into_iter().map(f32::to_bits).collect())
            });
            bits.collect()
        };
        let inline = batches(0);
        assert_eq!(inline.len(), 9);
        assert_eq!(batches(1), inline);
        assert_eq!(batches(4), inline);
    }
}
