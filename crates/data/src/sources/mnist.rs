//! `data.name = "mnist"`: idx files (Fashion-MNIST and EMNIST share the format), packed or not.
//!
//! A file: magic number `0x0000_08dd` (u8 values, dd dimensions), the dimensions as big-endian u32,
//! then one byte per value (<http://yann.lecun.com/exdb/mnist/>).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{BuiltinSplits, Capability, Choice, Kind, Modality, Options};
use crate::error::{Error, SampleError};
use crate::inputs::{self, InputItem, InputItems, Inputs, PredictionKind, PredictionRequest};
use crate::packed::Packing;
use crate::plan::SplitPlan;
use crate::rng::Key;
use crate::sources::holdout::{Labelled, Parts, Selection};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::transform::{Decoded, Images, Pipeline, Pixels, Transforms, take_buffer};
use crate::units::Bytes;
use crate::{Dataset, Splits, Target, read};

const EXPECTED: &str = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte \
                        and t10k-labels-idx1-ubyte, each packed (.gz, .zst) or not";
/// Largest decompressed file: 8 GiB.
const MAX_FILE_BYTES: u64 = 8 << 30;

/// the idx files of MNIST and similar data sets. The official test images validate; with
/// `data.val_fraction` or `data.folds` they are the test set instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mnist {
    /// folder with the four idx files (.gz, .zst or not).
    #[schemars(extend("format" = "path"), example = "data/mnist")]
    pub dir: PathBuf,
}

impl Kind for Mnist {
    const NAME: &'static str = "mnist";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Images), Capability::Split(BuiltinSplits::FIXED)];
}

impl Mnist {
    /// All parts of what `read` makes of the pair of files that a name begins with.
    fn parts(
        &self,
        split: &SplitPlan,
        read: fn(&Path, &'static str) -> Result<IdxPair, Error>,
    ) -> Result<Parts<Selection<IdxPair>>, Error> {
        let all = |name| read(&self.dir, name).map(Selection::all);
        let train = all("train")?;
        let val = all("t10k")?;
        if train.whole.size != val.whole.size {
            let train = train.whole.size;
            let val = val.whole.size;
            let what = format!("its images are {val:?}, but the training images are {train:?}");
            return Err(Error::Format { path: find(&self.dir, "t10k", IMAGES)?, what });
        }
        let unusable = |what| Error::Format { path: self.dir.clone(), what };
        Parts { train, val, test: None }.held_back(split).map_err(unusable)
    }
}

impl DataSource for Mnist {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let parts = self.parts(&reading.survey.split, IdxPair::read)?;
        let classes = parts.classes();
        parts.open(reading, classes, |chosen, list| {
            Ok(Arc::new(Digits::new(chosen, list, reading.transforms)?))
        })
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let parts = self.parts(&request.split, IdxPair::count)?;
        let classes = parts.classes();
        let mut class_counts = vec![0; classes.len()];
        parts.train.labels().for_each(|label| class_counts[label as usize] += 1);
        let (height, width) = parts.train.whole.size;
        let [n_train, n_val] = [&parts.train, &parts.val].map(|chosen| chosen.places.len());
        let n_test = parts.test.map_or(0, |test| test.places.len());
        Ok(Survey {
            n_train,
            n_val,
            n_test,
            classes,
            class_counts,
            sample: Some(vec![1, height, width]),
            line: self.dir.display().to_string(),
            // A byte per pixel.
            held: Bytes(((n_train + n_val + n_test) * height * width) as u64),
            ..Survey::default()
        })
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        unlabelled(request)
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let paths = files(&self.dir)?;
        Ok(vec![Files { by_contents: true, ..Files::many("idx files", &self.dir, paths) }])
    }
}

/// The images of idx files, which must be of one size.
fn unlabelled(request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
    let is_idx = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains("images") && name.contains("idx3")
    };
    let mut whole = IdxPair { name: "input", ..IdxPair::default() };
    let mut items = Vec::new();
    let inputs::InputFiles { files, notes } =
        inputs::files(request.paths, "idx files of images, maybe packed", &is_idx)?;
    for path in files {
        let (dims, pixels) = read_idx(&path, 3)?;
        let size = (dims[1], dims[2]);
        if items.is_empty() {
            whole.size = size;
        } else if whole.size != size {
            let what = format!("its images are {size:?}, but those before are {:?}", whole.size);
            return Err(Error::Format { path, what });
        }
        let file = Arc::from(&*path);
        let first = whole.labels.len();
        items.extend(
            (0..dims[0])
                .map(|at| InputItem::new(&file, Some(at as u64 + 1), first + at..first + at + 1)),
        );
        whole.pixels.extend(pixels);
        whole.labels.resize(first + dims[0], 0);
    }
    let list = &request.plan.val_transforms;
    let samples = Arc::new(Digits::new(Selection::all(whole), list, request.transforms)?);
    let items = InputItems::Listed(items);
    let answers = PredictionKind::OfLoss(Vec::new());
    Ok(Inputs { samples, items, answers, notes })
}

/// A pair of files, with their bytes in memory.
#[derive(Debug, Default)]
struct IdxPair {
    /// Prefix of the files' names.
    name: &'static str,
    /// (height, width)
    size: (usize, usize),
    labels: Vec<u8>,
    /// Pixels of one image after the other; empty if they were only counted.
    pixels: Vec<u8>,
}

impl IdxPair {
    fn read(dir: &Path, name: &'static str) -> Result<Self, Error> {
        let (dims, pixels) = read_idx(&find(dir, name, IMAGES)?, 3)?;
        Self::of(dir, name, &dims, pixels)
    }

    /// Counts the images without reading their pixels.
    fn count(dir: &Path, name: &'static str) -> Result<Self, Error> {
        let dims = check_idx(&find(dir, name, IMAGES)?, 3)?;
        Self::of(dir, name, &dims, Vec::new())
    }

    fn of(dir: &Path, name: &'static str, dims: &[usize], pixels: Vec<u8>) -> Result<Self, Error> {
        let labels_path = find(dir, name, LABELS)?;
        let (label_dims, labels) = read_idx(&labels_path, 1)?;
        same_count(&labels_path, label_dims[0], dims[0])?;
        Ok(Self { name, size: (dims[1], dims[2]), labels, pixels })
    }
}

impl Labelled for IdxPair {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn label(&self, place: usize) -> u32 {
        u32::from(self.labels[place])
    }
}

impl Parts<Selection<IdxPair>> {
    /// "0" to the largest label.
    fn classes(&self) -> Vec<String> {
        let all = [&self.train, &self.val].into_iter().chain(&self.test);
        let largest = all.flat_map(Selection::labels).max().unwrap_or(0);
        (0..=largest).map(|label| label.to_string()).collect()
    }
}

/// One split.
#[derive(Debug)]
struct Digits {
    chosen: Selection<IdxPair>,
    pipeline: Pipeline,
}

impl Digits {
    fn new(
        chosen: Selection<IdxPair>,
        list: &[Choice],
        transforms: &Transforms,
    ) -> Result<Self, Error> {
        let (height, width) = chosen.whole.size;
        let all = Images::new(1, Some((height as u32, width as u32)));
        Ok(Self { chosen, pipeline: Pipeline::new(list, transforms, all)? })
    }

    /// Position in the files.
    fn place(&self, index: usize) -> usize {
        self.chosen.places[index] as usize
    }

    fn class(&self, index: usize) -> u32 {
        self.chosen.whole.label(self.place(index))
    }
}

impl Dataset for Digits {
    fn len(&self) -> usize {
        self.chosen.places.len()
    }

    fn shape(&self) -> &[usize] {
        self.pipeline.shape()
    }

    fn classifies(&self) -> bool {
        true
    }

    fn label(&self, index: usize) -> Option<u32> {
        Some(self.class(index))
    }

    fn name(&self, index: usize) -> String {
        format!("image {} of `{}-images`", self.place(index), self.chosen.whole.name)
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let whole = &*self.chosen.whole;
        let (height, width) = whole.size;
        let mut data = take_buffer(height * width);
        let first = self.place(index) * height * width;
        data.copy_from_slice(&whole.pixels[first..][..height * width]);
        let image = Decoded::whole(Pixels::new(1, [height, width], data));
        self.pipeline
            .run(image, key, values)
            .map_err(|reason| SampleError::Transform { name: self.name(index), reason })?;
        Ok(Target::Class(self.class(index)))
    }
}

/// Contents of a file, as in its name, and the number of its dimensions.
type Content = (&'static str, u8);
const IMAGES: Content = ("images", 3);
const LABELS: Content = ("labels", 1);

fn same_count(path: &Path, labels: usize, images: usize) -> Result<(), Error> {
    if labels == images {
        return Ok(());
    }
    Err(Error::Format {
        path: path.to_owned(),
        what: format!("it holds {labels} labels for {images} images"),
    })
}

/// The files of both splits.
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let parts = ["train", "t10k"].into_iter().flat_map(|split| [(split, IMAGES), (split, LABELS)]);
    parts.map(|(split, part)| find(dir, split, part)).collect()
}

/// The file of a part: in the folder itself or where torchvision puts it, with either spelling.
fn find(dir: &Path, split: &str, (part, dimensions): Content) -> Result<PathBuf, Error> {
    let spellings = ["-idx", ".idx"].map(|dot| format!("{split}-{part}{dot}{dimensions}-ubyte"));
    for folder in ["", "raw", "MNIST/raw"] {
        for spelling in &spellings {
            for ending in ["", ".gz", ".zst"] {
                let path = dir.join(folder).join(format!("{spelling}{ending}"));
                if path.exists() {
                    return Ok(path);
                }
            }
        }
    }
    let what = if dir.is_dir() { "the idx file" } else { "the folder of idx files" };
    let path = if dir.is_dir() { dir.join(&spellings[0]) } else { dir.to_owned() };
    Err(Error::Missing { what, path, expected: EXPECTED })
}

/// Dimensions of an idx file, its length checked against them without keeping its values.
fn check_idx(path: &Path, dimensions: u8) -> Result<Vec<usize>, Error> {
    let mut source = Source::open(path)?;
    let dims = source.header(dimensions)?;
    let found = source.remaining()?;
    source.length_is(&dims, found)?;
    Ok(dims)
}

/// Dimensions and values of an idx file.
fn read_idx(path: &Path, dimensions: u8) -> Result<(Vec<usize>, Vec<u8>), Error> {
    let mut source = Source::open(path)?;
    let dims = source.header(dimensions)?;
    // One more than announced shows that a file is too long, however much follows.
    let most = announced(&dims).unwrap_or(MAX_FILE_BYTES).saturating_add(1).min(MAX_FILE_BYTES);
    let mut values = Vec::new();
    let read = (&mut source.reader).take(most).read_to_end(&mut values);
    read.map_err(|error| source.failed(error))?;
    source.length_is(&dims, values.len() as u64)?;
    Ok((dims, values))
}

/// Values of an array with these dimensions, if the number fits.
fn announced(dims: &[usize]) -> Option<u64> {
    dims.iter().try_fold(1u64, |product, &n| product.checked_mul(n as u64))
}

/// An open idx file.
struct Source<'a> {
    path: &'a Path,
    reader: Box<dyn Read>,
    /// Length of a file that is not packed.
    plain_length: Option<u64>,
    header_length: u64,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self, Error> {
        let read_failed = |source| Error::Io { action: "read", path: path.to_owned(), source };
        let file: File = read::open(path).map_err(read_failed)?;
        let length = file.metadata().map_err(read_failed)?.len();
        let file = BufReader::with_capacity(1 << 16, file);
        let (reader, plain_length): (Box<dyn Read>, _) = match Packing::of_name(path) {
            Some(packing) => (packing.reader(file), None),
            None => (Box::new(file), Some(length)),
        };
        Ok(Self { path, reader, plain_length, header_length: 0 })
    }

    fn header(&mut self, dimensions: u8) -> Result<Vec<usize>, Error> {
        let mut words = vec![[0; 4]; 1 + usize::from(dimensions)];
        for word in &mut words {
            self.reader.read_exact(word).map_err(|error| self.failed(error))?;
        }
        self.header_length = 4 * words.len() as u64;
        let numbers: Vec<u32> = words.into_iter().map(u32::from_be_bytes).collect();
        let magic = 0x0800 + u32::from(dimensions);
        if numbers[0] != magic {
            let found = numbers[0];
            return Err(self.wrong(format!(
                "it is no idx file of {dimensions} dimensions, as MNIST's are: magic number \
                 {found:#010x} instead of {magic:#010x}"
            )));
        }
        let dims: Vec<usize> = numbers[1..].iter().map(|&n| n as usize).collect();
        if dims.contains(&0) {
            return Err(self.wrong(format!("its dimensions are {dims:?}")));
        }
        Ok(dims)
    }

    /// Bytes after the header.
    fn remaining(&mut self) -> Result<u64, Error> {
        if let Some(length) = self.plain_length {
            return Ok(length.saturating_sub(self.header_length));
        }
        let copied = io::copy(&mut (&mut self.reader).take(MAX_FILE_BYTES), &mut io::sink());
        copied.map_err(|error| self.failed(error))
    }

    fn length_is(&self, dims: &[usize], found: u64) -> Result<(), Error> {
        if announced(dims) == Some(found) {
            return Ok(());
        }
        Err(self.wrong(format!("its header announces {dims:?} values, but {found} follow")))
    }

    fn failed(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.wrong("it is truncated".to_owned()),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                self.wrong(format!("it is not packed as its name says ({error})"))
            }
            _ => Error::Io { action: "read", path: self.path.to_owned(), source: error },
        }
    }

    fn wrong(&self, what: String) -> Error {
        Error::Format { path: self.path.to_owned(), what }
    }
}

#[cfg(test)]
mod tests {
    use crate::user_error::UserError;
    use std::io::Write;

    use super::*;
    use crate::plan::Targets;
    use crate::skipped::shared;

    fn idx(dims: &[u32], values: &[u8]) -> Vec<u8> {
        let mut bytes = (0x0800 + dims.len() as u32).to_be_bytes().to_vec();
        bytes.extend(dims.iter().flat_map(|n| n.to_be_bytes()));
        bytes.extend(values);
        bytes
    }

    fn put(dir: &Path, name: &str, bytes: &[u8]) {
        File::create(dir.join(name)).unwrap().write_all(bytes).unwrap();
    }

    fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn count(dir: &Path) -> Result<Survey, Error> {
        counted(dir, SplitPlan::NONE)
    }

    fn counted(dir: &Path, split: SplitPlan) -> Result<Survey, Error> {
        let request = SurveyRequest { split, ..SurveyRequest::new("x", 0, Targets::Classes) };
        Mnist { dir: dir.to_owned() }.survey(&request)
    }

    fn digits(dir: &Path, name: &'static str) -> Digits {
        let all = Selection::all(IdxPair::read(dir, name).unwrap());
        Digits::new(all, &[], &Transforms::default()).unwrap()
    }

    /// Three 2x2 training images (packed) and one for validation.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let pixels: Vec<u8> = (0..12).collect();
        put(dir.path(), "train-images-idx3-ubyte.gz", &gz(&idx(&[3, 2, 2], &pixels)));
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let labels = ruzstd::encoding::compress_to_vec(&idx(&[3], &[2, 0, 1])[..], level);
        put(dir.path(), "train-labels-idx1-ubyte.zst", &labels);
        put(dir.path(), "t10k-images.idx3-ubyte", &idx(&[1, 2, 2], &[255, 0, 51, 102]));
        put(dir.path(), "t10k-labels.idx1-ubyte", &idx(&[1], &[1]));
        dir
    }

    #[test]
    fn idx_files_are_counted_and_read_packed_or_not() {
        let dir = folder();
        let counts = count(dir.path()).unwrap();
        assert_eq!((counts.n_train, counts.n_val, counts.sample), (3, 1, Some(vec![1, 2, 2])));
        assert_eq!(counts.classes, ["0", "1", "2"]);
        let val = digits(dir.path(), "t10k");
        let mut values = Vec::new();
        assert_eq!(val.load(0, None, &mut values).unwrap(), Target::Class(1));
        assert_eq!(values, [1.0, 0.0, 0.2, 0.4]);
        let train = digits(dir.path(), "train");
        train.load(2, None, &mut values).unwrap();
        let bytes: Vec<f32> = values[4..].iter().map(|v| (v * 255.0).round()).collect();
        assert_eq!(bytes, [8.0, 9.0, 10.0, 11.0]);
    }

    #[test]
    fn training_images_validate_and_the_test_files_test() {
        let dir = folder();
        let split = SplitPlan { folds: Some(3), fold: 1, ..SplitPlan::NONE };
        let found = counted(dir.path(), split).unwrap();
        assert_eq!((found.n_train, found.n_val, found.n_test), (2, 1, 1));
        assert_eq!(found.class_counts.iter().sum::<u64>(), 2);
        let data = Mnist { dir: dir.path().to_owned() };
        let parts = data.parts(&split, IdxPair::read).unwrap();
        let val = Digits::new(parts.val, &[], &Transforms::default()).unwrap();
        let place = val.place(0);
        assert_eq!(val.name(0), format!("image {place} of `train-images`"));
        let mut values = Vec::new();
        assert_eq!(val.load(0, None, &mut values).unwrap(), Target::Class([2, 0, 1][place]));
        assert_eq!((values[0] * 255.0).round() as usize, 4 * place);
    }

    #[test]
    fn a_wrong_magic_number_length_or_count_is_named_with_its_file() {
        let dir = folder();
        let check = |name: &str, bytes: &[u8], expected: &str| {
            put(dir.path(), name, bytes);
            let message = count(dir.path()).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(expected), "{message}");
        };
        let labels = "t10k-labels.idx1-ubyte";
        check(labels, &idx(&[2], &[1, 1]), "2 labels for 1 images");
        check(labels, &idx(&[1, 1], &[1]), "magic number 0x00000802");
        check(labels, &idx(&[2], &[1]), "announces [2] values, but 1 follow");
        check(labels, &[0, 0], "truncated");
        check("t10k-images.idx3-ubyte", &idx(&[1, 2, 2], &[0; 5]), "but 5 follow");
        let whole = gz(&idx(&[3, 2, 2], &[0; 12]));
        let train = "train-images-idx3-ubyte.gz";
        check(train, &whole[..whole.len() - 9], "truncated");
        check(train, b"no gzip here, only text", "not packed as its name says");
        let labels = "train-labels-idx1-ubyte.zst";
        let whole = std::fs::read(folder().path().join(labels)).unwrap();
        put(dir.path(), train, &gz(&idx(&[3, 2, 2], &[0; 12])));
        check(labels, &whole[..whole.len() - 2], "truncated");
        check(labels, b"no zstd here, only text", "not packed as its name says");
    }

    #[test]
    fn a_missing_folder_or_file_says_what_is_expected() {
        let dir = folder();
        let error = count(&dir.path().join("absent")).unwrap_err();
        assert!(error.to_string().starts_with("the folder of idx files"), "{error}");
        std::fs::remove_file(dir.path().join("t10k-labels.idx1-ubyte")).unwrap();
        let error = count(dir.path()).unwrap_err();
        assert!(error.to_string().contains("t10k-labels-idx1-ubyte"), "{error}");
        assert!(error.help().unwrap().contains("(.gz, .zst)"));
    }

    #[test]
    fn the_real_mnist_files_have_sixty_thousand_and_ten_thousand_digits() {
        let Some(dir) = shared("data/mnist") else { return };
        let dir = dir.as_path();
        let counts = count(dir).unwrap();
        assert_eq!((counts.n_train, counts.n_val), (60_000, 10_000));
        assert_eq!(counts.sample, Some(vec![1, 28, 28]));
        let split = SplitPlan { val_fraction: Some(0.1), ..SplitPlan::NONE };
        let held = counted(dir, split).unwrap();
        assert_eq!((held.n_train, held.n_val, held.n_test), (54_000, 6_000, 10_000));
        assert_eq!(held.class_counts[0], 5_331, "of 5,923 zeros");
        assert_eq!(counts.classes.len(), 10);
        let val = digits(dir, "t10k");
        assert_eq!(val.chosen.whole.labels[..8], [7, 2, 1, 0, 4, 1, 4, 9]);
    }
}
