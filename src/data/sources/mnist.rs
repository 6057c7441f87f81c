//! `data.name = "mnist"`: idx files (Fashion-MNIST and EMNIST share the format), gzipped or not.
//!
//! A file: magic number `0x0000_08dd` (u8 values, dd dimensions), the dimensions as big-endian u32,
//! then one byte per value (<http://yann.lecun.com/exdb/mnist/>).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Choice, Kind, Modality, Offer, Options};
use crate::data::error::{Error, SampleError};
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::transform::{Decoded, Images, Pipeline, Pixels, Transforms, buffer_pool};
use crate::data::{Dataset, Splits, Target, read};
use crate::rng::Key;
use crate::units::Bytes;

const EXPECTED: &str = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte \
                        and t10k-labels-idx1-ubyte, each gzipped (.gz) or not";
/// Largest decompressed file: 8 GiB.
const MAX_FILE_BYTES: u64 = 8 << 30;

/// the idx files of MNIST and its relatives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mnist {
    /// folder of the four idx files (.gz or not).
    #[schemars(extend("format" = "path"), example = "data/mnist")]
    pub dir: PathBuf,
}

impl Kind for Mnist {
    const NAME: &'static str = "mnist";
    const OFFERS: &'static [Offer] = &[Offer::Samples(Modality::Images)];
}

impl DataSource for Mnist {
    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        let train = Digits::read(&self.dir, "train", reading.train_transforms, reading.transforms)?;
        let val = Digits::read(&self.dir, "t10k", reading.val_transforms, reading.transforms)?;
        let largest = train.labels.iter().chain(&val.labels).max().copied().unwrap_or(0);
        let classes = (0..=largest).map(|label| label.to_string()).collect();
        Ok(Splits { train: Arc::new(train), val: Arc::new(val), test: None, classes })
    }

    fn survey(&self, _: &Asked<'_>) -> Result<Survey, Error> {
        let counts = count(&self.dir)?;
        let (height, width) = (counts.size.0 as usize, counts.size.1 as usize);
        Ok(Survey {
            n_train: counts.n_train,
            n_val: counts.n_val,
            classes: counts.classes,
            class_counts: counts.of_classes,
            sample: Some(vec![1, height, width]),
            line: self.dir.display().to_string(),
            // A byte per pixel.
            held: Bytes(((counts.n_train + counts.n_val) * height * width) as u64),
            ..Survey::default()
        })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let paths = files(&self.dir)?;
        Ok(vec![Files { by_contents: true, ..Files::many("idx files", &self.dir, paths) }])
    }
}

/// One split, its bytes in memory.
#[derive(Debug)]
pub(crate) struct Digits {
    images: Vec<u8>,
    labels: Vec<u8>,
    size: (usize, usize),
    split: &'static str,
    pipeline: Pipeline,
}

/// What the files say without their pixels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Training images.
    pub(crate) n_train: usize,
    /// Test images, which validate.
    pub(crate) n_val: usize,
    /// (height, width)
    pub(crate) size: (u32, u32),
    /// "0" to the largest label.
    pub(crate) classes: Vec<String>,
    /// Training images of each.
    pub(crate) of_classes: Vec<u64>,
}

/// Counts the images, and reads all labels.
///
/// # Errors
///
/// A file is absent, is not an idx file, or its length is not the one that its header announces.
pub(crate) fn count(dir: &Path) -> Result<Counts, Error> {
    let (train, train_labels) = count_split(dir, "train")?;
    let (val, val_labels) = count_split(dir, "t10k")?;
    if train[1..] != val[1..] {
        let what = format!(
            "its images are {:?}, but the training images are {:?}",
            &val[1..],
            &train[1..]
        );
        return Err(Error::Format { path: find(dir, "t10k", IMAGES)?, what });
    }
    let largest = train_labels.iter().chain(&val_labels).max().copied().unwrap_or(0);
    let mut of_classes = vec![0; usize::from(largest) + 1];
    for &label in &train_labels {
        of_classes[usize::from(label)] += 1;
    }
    Ok(Counts {
        of_classes,
        n_train: train[0],
        n_val: val[0],
        size: (train[1] as u32, train[2] as u32),
        classes: (0..=largest).map(|label| label.to_string()).collect(),
    })
}

impl Digits {
    fn read(
        dir: &Path,
        split: &'static str,
        list: &[Choice],
        transforms: &Transforms,
    ) -> Result<Self, Error> {
        let (dims, images) = read_idx(&find(dir, split, IMAGES)?, 3)?;
        let labels_path = find(dir, split, LABELS)?;
        let (label_dims, labels) = read_idx(&labels_path, 1)?;
        same_count(&labels_path, label_dims[0], dims[0])?;
        let size = (dims[1], dims[2]);
        let all = Images { channels: 1, size: Some((size.0 as u32, size.1 as u32)) };
        let pipeline = Pipeline::new(list, transforms, all)?;
        Ok(Self { images, labels, size, split, pipeline })
    }
}

impl Dataset for Digits {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn shape(&self) -> &[usize] {
        self.pipeline.shape()
    }

    fn classifies(&self) -> bool {
        true
    }

    fn label(&self, index: usize) -> Option<u32> {
        Some(u32::from(self.labels[index]))
    }

    fn name(&self, index: usize) -> String {
        format!("image {index} of `{}-images`", self.split)
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let (height, width) = self.size;
        let mut data = buffer_pool::take(height * width);
        data.copy_from_slice(&self.images[index * height * width..][..height * width]);
        let image = Decoded::whole(Pixels { channels: 1, height, width, data });
        self.pipeline
            .run(image, key, values)
            .map_err(|reason| SampleError::Transform { name: self.name(index), reason })?;
        Ok(Target::Class(u32::from(self.labels[index])))
    }
}

/// Part of a file's name and its number of dimensions.
type Part = (&'static str, u8);
const IMAGES: Part = ("images", 3);
const LABELS: Part = ("labels", 1);

fn count_split(dir: &Path, split: &str) -> Result<(Vec<usize>, Vec<u8>), Error> {
    let images = find(dir, split, IMAGES)?;
    let dims = check_idx(&images, 3)?;
    let labels_path = find(dir, split, LABELS)?;
    let (label_dims, labels) = read_idx(&labels_path, 1)?;
    same_count(&labels_path, label_dims[0], dims[0])?;
    Ok((dims, labels))
}

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
///
/// # Errors
///
/// One is absent.
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let parts = ["train", "t10k"].into_iter().flat_map(|split| [(split, IMAGES), (split, LABELS)]);
    parts.map(|(split, part)| find(dir, split, part)).collect()
}

/// The file of a part: in the folder itself or where torchvision puts it, with either spelling.
fn find(dir: &Path, split: &str, (part, dimensions): Part) -> Result<PathBuf, Error> {
    let spellings = ["-idx", ".idx"].map(|dot| format!("{split}-{part}{dot}{dimensions}-ubyte"));
    for folder in ["", "raw", "MNIST/raw"] {
        for spelling in &spellings {
            for ending in ["", ".gz"] {
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
    /// Length of a file that is not gzipped.
    plain_length: Option<u64>,
    header_length: u64,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self, Error> {
        let read_failed = |source| Error::Io { action: "read", path: path.to_owned(), source };
        let file: File = read::open(path).map_err(read_failed)?;
        let length = file.metadata().map_err(read_failed)?.len();
        let file = BufReader::with_capacity(1 << 16, file);
        let gzipped = path.extension().is_some_and(|ending| ending == "gz");
        let (reader, plain_length): (Box<dyn Read>, _) = if gzipped {
            (Box::new(MultiGzDecoder::new(file)), None)
        } else {
            (Box::new(file), Some(length))
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
            return Err(self.wrong(format!("magic number {found:#010x} instead of {magic:#010x}")));
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
                self.wrong(format!("it is not gzip data ({error})"))
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
    use std::io::Write;

    use super::*;
    use crate::skipped::skipped;

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

    /// Three 2x2 training images (gzipped) and one for validation.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let pixels: Vec<u8> = (0..12).collect();
        put(dir.path(), "train-images-idx3-ubyte.gz", &gz(&idx(&[3, 2, 2], &pixels)));
        put(dir.path(), "train-labels-idx1-ubyte.gz", &gz(&idx(&[3], &[2, 0, 1])));
        put(dir.path(), "t10k-images.idx3-ubyte", &idx(&[1, 2, 2], &[255, 0, 51, 102]));
        put(dir.path(), "t10k-labels.idx1-ubyte", &idx(&[1], &[1]));
        dir
    }

    #[test]
    fn idx_files_are_counted_and_read_gzipped_or_not() {
        let dir = folder();
        let counts = count(dir.path()).unwrap();
        assert_eq!((counts.n_train, counts.n_val, counts.size), (3, 1, (2, 2)));
        assert_eq!(counts.classes, ["0", "1", "2"]);
        let val = Digits::read(dir.path(), "t10k", &[], &Transforms::default()).unwrap();
        let mut values = Vec::new();
        assert_eq!(val.load(0, None, &mut values).unwrap(), Target::Class(1));
        assert_eq!(values, [1.0, 0.0, 0.2, 0.4]);
        let train = Digits::read(dir.path(), "train", &[], &Transforms::default()).unwrap();
        train.load(2, None, &mut values).unwrap();
        let bytes: Vec<f32> = values[4..].iter().map(|v| (v * 255.0).round()).collect();
        assert_eq!(bytes, [8.0, 9.0, 10.0, 11.0]);
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
        check(train, b"no gzip here, only text", "not gzip");
    }

    #[test]
    fn a_missing_folder_or_file_says_what_is_expected() {
        let dir = folder();
        let error = count(&dir.path().join("absent")).unwrap_err();
        assert!(error.to_string().starts_with("the folder of idx files"), "{error}");
        std::fs::remove_file(dir.path().join("t10k-labels.idx1-ubyte")).unwrap();
        let error = count(dir.path()).unwrap_err();
        assert!(error.to_string().contains("t10k-labels-idx1-ubyte"), "{error}");
        assert!(error.help().unwrap().contains("gzipped"));
    }

    #[test]
    fn the_real_mnist_files_have_sixty_thousand_and_ten_thousand_digits() {
        let dir = Path::new("../shared/data/mnist");
        if !dir.exists() {
            skipped("the files of MNIST in `../shared/data/mnist`");
            return;
        }
        let counts = count(dir).unwrap();
        assert_eq!((counts.n_train, counts.n_val, counts.size), (60_000, 10_000, (28, 28)));
        assert_eq!(counts.classes.len(), 10);
        let val = Digits::read(dir, "t10k", &[], &Transforms::default()).unwrap();
        assert_eq!(val.labels[..8], [7, 2, 1, 0, 4, 1, 4, 9]);
    }
}
