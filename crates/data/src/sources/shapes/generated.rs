//! `data.name = "shapes"`, a generated image folder of coloured shapes and textures: real PNG and
//! JPEG files, so that a first run needs no download. Equal parameters give equal files.
//!
//! Each set has a folder of its own, whose name follows from all that decides its content, so that
//! runs of different seeds never share one. It is made under another name and renamed when it is
//! whole, and never written again; `dataset.json` in it says what it was made from.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, Options};
use crate::error::Error;
use crate::files::{self, NewFile};
use crate::inputs::{Inputs, PredictionRequest};
use crate::listing::paths::both;
use crate::plan::{PixelDtype, Targets};
use crate::rng::{Key, Purpose};
use crate::sources::holdout::Parts;
use crate::sources::image_folder::{ImageFolder, image_inputs};
use crate::sources::shapes::draw;
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::{Splits, read};

/// Version of what is drawn; a new version draws anew.
const FORMAT: u32 = 1;
const MARKER: &str = "dataset.json";
const GENERATOR: &str = "shapes";
/// Prefix of the names of sets.
const PREFIX: &str = "seed-";
const JPEG_QUALITY: u8 = 92;
/// Longest wait for another process that generates the same folder.
const GENERATION_TIMEOUT: Duration = Duration::from_mins(5);

/// generated images of coloured shapes and textures; no files needed. They are written as an image
/// folder on first use. With `data.val_fraction` or `data.folds`, the generated validation images
/// are the test set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shapes {
    /// folder to generate into; each set gets a subfolder named after the seed and the options
    /// below. Default: `data/` and the name of the experiment.
    #[schemars(extend("format" = "output-path"), example = "data/shapes")]
    pub dir: Option<PathBuf>,
    /// number of classes, 2 to 90.
    #[schemars(range(min = 2, max = 90))]
    pub classes: u32,
    /// training images per class.
    #[schemars(range(min = 1, max = 100_000))]
    pub train_per_class: u32,
    /// validation images per class.
    #[schemars(range(min = 1, max = 100_000))]
    pub val_per_class: u32,
    /// height and width in pixels, 8 to 512.
    #[schemars(range(min = 8, max = 512))]
    pub image_size: u32,
}

impl Default for Shapes {
    fn default() -> Self {
        let dir = None;
        let classes = 10;
        let train_per_class = 200;
        let val_per_class = 40;
        Self { dir, classes, train_per_class, val_per_class, image_size: 32 }
    }
}

impl Kind for Shapes {
    const NAME: &'static str = "shapes";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Images), Capability::Split(BuiltinSplits::FIXED)];
}

impl DataSource for Shapes {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        self.images(reading.found, reading.survey).open(reading)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let (root, parameters) = self.parameters(request);
        let folder = parameters.folder(&root);
        let images = in_folder(&folder);
        let found = if is_ready(&root, &parameters)? {
            images.survey(request)?
        } else {
            let parts = self.labels().held_back(&request.split);
            let unusable = |what| Error::Generated { what };
            let parts = parts.map_err(unusable)?;
            let mut class_counts = vec![0; self.classes as usize];
            parts.train.iter().for_each(|&label| class_counts[label as usize] += 1);
            Survey {
                n_train: parts.train.len(),
                n_val: parts.val.len(),
                n_test: parts.test.map_or(0, |test| test.len()),
                class_counts,
                classes: parameters.class_names(),
                line: both(&folder.join("train"), &folder.join("val")),
                ..Survey::default()
            }
        };
        let size = self.image_size as usize;
        Ok(Survey {
            // Where it was generated: not every reader knows the name of the experiment.
            found: [(FOLDER.to_owned(), folder.to_string_lossy().into())].into(),
            sample: Some(vec![3, size, size]),
            ..found
        })
    }

    fn generated_in(&self) -> Option<&'static str> {
        Some("dir")
    }

    fn generate(&self, request: &SurveyRequest<'_>, _: &dyn Fn(&str)) -> Result<(), Error> {
        let (root, parameters) = self.parameters(request);
        ensure(&root, &parameters)
    }

    /// Nothing but the transforms.
    fn preprocessing(&self, _: &Options) -> Result<Options, Error> {
        Ok(Options::new())
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        image_inputs(request, Vec::new(), PixelDtype::Uint8.into())
    }

    fn files(&self, found: &Options) -> Result<Vec<Files>, Error> {
        let nowhere = SurveyRequest::new(GENERATOR, 0, Targets::Classes);
        self.images(found, &nowhere).files(found)
    }
}

/// Key of the set's folder among the survey's results.
const FOLDER: &str = "folder";

fn in_folder(folder: &Path) -> ImageFolder {
    ImageFolder::new(folder.join("train"), folder.join("val"))
}

impl Shapes {
    /// The classes of what is generated.
    fn labels(&self) -> Parts<Vec<u32>> {
        let labels = |per_class: u32| {
            (0..self.classes).flat_map(|label| (0..per_class).map(move |_| label)).collect()
        };
        let train = labels(self.train_per_class);
        let val = labels(self.val_per_class);
        Parts { train, val, test: None }
    }

    /// The folder that holds generated sets, and what this one is made from.
    fn parameters(&self, request: &SurveyRequest<'_>) -> (PathBuf, Parameters) {
        let root = self.dir.clone().unwrap_or_else(|| Path::new("data").join(request.experiment));
        let parameters = Parameters {
            format: FORMAT,
            generator: GENERATOR.to_owned(),
            seed: request.seed,
            classes: self.classes,
            train_per_class: self.train_per_class,
            val_per_class: self.val_per_class,
            image_size: self.image_size,
        };
        (root, parameters)
    }

    /// The generated set, where a survey found it.
    fn images(&self, found: &Options, request: &SurveyRequest<'_>) -> ImageFolder {
        let folder = found.get(FOLDER).and_then(|folder| folder.as_str()).map(PathBuf::from);
        in_folder(&folder.unwrap_or_else(|| {
            let (root, parameters) = self.parameters(request);
            parameters.folder(&root)
        }))
    }
}

/// Parameters of a generated folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    format: u32,
    generator: String,
    seed: u64,
    classes: u32,
    train_per_class: u32,
    val_per_class: u32,
    image_size: u32,
}

impl Parameters {
    /// The set's folder below `root`, which the experiment names.
    pub(crate) fn folder(&self, root: &Path) -> PathBuf {
        /// Hexadecimal digits of the hash.
        const DIGITS: usize = 12;
        // A struct of numbers and a word has a written form.
        let text = serde_json::to_vec(self).unwrap_or_default();
        let hash = blake3::hash(&text).to_hex();
        root.join(format!("{PREFIX}{}-{}", self.seed, &hash.as_str()[..DIGITS]))
    }

    /// Names of the classes, in label order.
    fn class_names(&self) -> Vec<String> {
        let mut names: Vec<String> = (0..self.classes as usize).map(draw::class_name).collect();
        names.sort();
        names
    }
}

/// Makes sure that the set of `parameters` is below `root`, generating it if needed. Processes that
/// ask for the same set wait for the first one.
fn ensure(root: &Path, parameters: &Parameters) -> Result<(), Error> {
    if is_ready(root, parameters)? {
        return Ok(());
    }
    files::create_folder(root).map_err(unwritable)?;
    let dir = parameters.folder(root);
    let _lock = lock(&beside(&dir, root, "lock"), &dir)?;
    // Another process may have generated it meanwhile.
    if is_ready(root, parameters)? {
        return Ok(());
    }
    let partial = beside(&dir, root, "partial");
    remove_folder(&partial)?;
    generate(&partial, parameters)?;
    files::rename_folder(&partial, &dir).map_err(unwritable)
}

/// True if the set of `parameters` is below `root`.
pub(crate) fn is_ready(root: &Path, parameters: &Parameters) -> Result<bool, Error> {
    let dir = parameters.folder(root);
    match read::whole(&dir.join(MARKER)) {
        Ok(bytes) => {
            let marker: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
            let is_this = marker.is_some() && serde_json::to_value(parameters).ok() == marker;
            if is_this { Ok(true) } else { Err(Error::ForeignFolder { path: dir }) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if !entries(&dir)?.is_empty() {
                return Err(Error::ForeignFolder { path: dir });
            }
            if is_ours(root)? { Ok(false) } else { Err(Error::ForeignFolder { path: root.into() }) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(Error::NotAFolder {
            what: "the path of the generated data",
            path: root.to_owned(),
            expected: "nothing yet, or a folder that ddprun generated",
        }),
        Err(source) => Err(Error::Io { action: "read", path: dir.join(MARKER), source }),
    }
}

/// True if `root` holds nothing but generated sets: a folder of the user's own images must not get
/// one more class.
fn is_ours(root: &Path) -> Result<bool, Error> {
    // Before sets had folders of their own, `root` was one.
    let earlier: Option<serde_json::Value> =
        read::whole(&root.join(MARKER)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if earlier.is_some_and(|marker| marker["generator"] == GENERATOR) {
        return Ok(true);
    }
    let is_set = |name: &String| name.starts_with(PREFIX) || name.starts_with('.');
    Ok(entries(root)?.iter().all(is_set))
}

/// Names in a folder; none if it is absent.
fn entries(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::Io { action: "list", path: folder.to_owned(), source };
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed
            .map_err(failed)?
            .map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned()))
            .collect(),
    }
}

/// Draws and writes all images, then the marker, and waits until the disk has them.
fn generate(dir: &Path, parameters: &Parameters) -> Result<(), Error> {
    let splits = [("train", 0, parameters.train_per_class), ("val", 1, parameters.val_per_class)];
    for (split, split_idx, per_class) in splits {
        for class in 0..parameters.classes as usize {
            let folder = dir.join(split).join(draw::class_name(class));
            files::create_folder(&folder).map_err(unwritable)?;
            let key = Key::new(parameters.seed, Purpose::Generate, split_idx, class as u64);
            (0..per_class).into_par_iter().try_for_each(|index| {
                let size = parameters.image_size as usize;
                let pixels = draw::draw(class, size, key.with(u64::from(index)));
                write_image(&folder, index, parameters.image_size, &pixels)
            })?;
        }
    }
    // One flush of the file system costs less than one per image.
    let flushed = File::open(dir).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
    flushed.map_err(write_error("sync", dir))?;
    let text = serde_json::to_vec_pretty(parameters).unwrap_or_default();
    files::write_atomic(&dir.join(MARKER), &text).map_err(unwritable)
}

/// Images alternate between PNG and JPEG.
fn write_image(folder: &Path, index: u32, size: u32, pixels: &[u8]) -> Result<(), Error> {
    let ending = if index.is_multiple_of(2) { "png" } else { "jpg" };
    let path = folder.join(format!("{index:04}.{ending}"));
    let mut bytes = Vec::new();
    let encoded = if index.is_multiple_of(2) {
        PngEncoder::new(&mut bytes).write_image(pixels, size, size, ExtendedColorType::Rgb8)
    } else {
        let encoder = JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
        encoder.write_image(pixels, size, size, ExtendedColorType::Rgb8)
    };
    encoded.map_err(|error| write_error("write", &path)(io::Error::other(error)))?;
    NewFile::create(&path).and_then(|mut file| file.write(&bytes)).map_err(unwritable)
}

/// Takes the lock file of `dir`; it is let go of when the process ends, however it ends.
fn lock(path: &Path, dir: &Path) -> Result<File, Error> {
    let file = files::open_lock(path).map_err(write_error("create", path))?;
    let deadline = Instant::now() + GENERATION_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(source)) => return Err(write_error("lock", path)(source)),
            Err(TryLockError::WouldBlock) if Instant::now() > deadline => {
                return Err(Error::Busy {
                    path: dir.to_owned(),
                    seconds: GENERATION_TIMEOUT.as_secs(),
                });
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// `.<name>.<role>` in the parent folder: on the same file system, so that a rename moves no data.
fn beside(dir: &Path, parent: &Path, role: &str) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    parent.join(format!(".{name}.{role}"))
}

/// Removes a folder of ours, if it is there.
fn remove_folder(path: &Path) -> Result<(), Error> {
    match files::remove_leftover(path) {
        Err(files::Error::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(unwritable),
    }
}

fn unwritable(error: files::Error) -> Error {
    match error {
        files::Error::Io { operation, path, reason } => {
            Error::Write { action: operation, path, source: reason }
        }
        other => write_error("write", Path::new(""))(io::Error::other(other)),
    }
}

fn write_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Write { action, path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use test_support::assert_refused;

    use super::*;
    use crate::listing::scan;

    fn parameters(seed: u64, classes: u32) -> Parameters {
        Parameters {
            format: FORMAT,
            generator: GENERATOR.to_owned(),
            seed,
            classes,
            train_per_class: 3,
            val_per_class: 2,
            image_size: 16,
        }
    }

    fn digest(dir: &Path) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (path, _) in scan::scan(dir, "the folder").unwrap().listing.files.iter() {
            hasher.update(path.strip_prefix(dir).unwrap().as_os_str().as_encoded_bytes());
            hasher.update(&read::whole(&path).unwrap());
        }
        hasher.finalize()
    }

    #[test]
    fn equal_parameters_give_equal_files_and_another_seed_other_ones_beside_them() {
        let root = tempfile::tempdir().unwrap();
        let made = |name: &str, seed| {
            let root = root.path().join(name);
            ensure(&root, &parameters(seed, 4)).unwrap();
            parameters(seed, 4).folder(&root)
        };
        let train = |dir: &Path| digest(&dir.join("train"));
        let (a, b) = (made("a", 1), made("b", 1));
        let before = train(&a);
        assert_eq!(before, train(&b));
        assert_ne!(before, train(&made("a", 2)));
        assert_eq!(train(&a), before, "another set changes nothing");
        let listed = scan::scan(&a.join("train"), "t").unwrap().listing;
        assert_eq!(listed.classes, ["blue_circle", "blue_square", "red_circle", "red_square"]);
        assert_eq!(listed.files.len(), 12);
        assert_ne!(train(&a), digest(&a.join("val")));
    }

    #[test]
    fn everything_that_decides_the_content_decides_the_folder() {
        let given = parameters(1, 2);
        let root = Path::new("shapes");
        let changes: [fn(&mut Parameters); 6] = [
            |p| p.format += 1,
            |p| p.seed += 1,
            |p| p.classes += 1,
            |p| p.train_per_class += 1,
            |p| p.val_per_class += 1,
            |p| p.image_size += 1,
        ];
        for change in changes {
            let mut other = given.clone();
            change(&mut other);
            assert_ne!(other.folder(root), given.folder(root), "{other:?}");
        }
        assert_eq!(given.clone().folder(root), given.folder(root));
    }

    #[test]
    fn what_was_not_generated_is_never_touched() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("train/cat")).unwrap();
        let error = ensure(root.path(), &parameters(1, 2)).unwrap_err();
        assert!(matches!(error, Error::ForeignFolder { .. }), "{error}");
        assert_eq!(entries(root.path()).unwrap(), ["train"]);
        // What an earlier version generated has no folder of its own, and stays.
        let marker = root.path().join(MARKER);
        File::create(&marker).unwrap().write_all(b"{\"generator\": \"shapes\"}").unwrap();
        ensure(root.path(), &parameters(1, 2)).unwrap();
        assert!(root.path().join("train/cat").is_dir());
        // A set that is not what its name says.
        let set = parameters(1, 2).folder(root.path());
        File::create(set.join(MARKER)).unwrap().write_all(b"{\"my\": \"notes\"}").unwrap();
        assert_refused(ensure(root.path(), &parameters(1, 2)), "was not generated by ddprun");
        fs::remove_file(set.join(MARKER)).unwrap();
        assert_refused(ensure(root.path(), &parameters(1, 2)), "was not generated by ddprun");
    }

    #[test]
    fn what_an_interrupted_generation_left_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let set = parameters(1, 2).folder(root.path());
        let partial = beside(&set, root.path(), "partial");
        fs::create_dir_all(partial.join("train/half")).unwrap();
        ensure(root.path(), &parameters(1, 2)).unwrap();
        assert!(!partial.exists());
        assert_eq!(scan::scan(&set.join("train"), "t").unwrap().listing.classes.len(), 2);
    }

    #[test]
    fn many_that_ask_at_once_all_find_theirs_whole() {
        let root = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (root, parameters) = (root.path(), parameters(thread % 2, 3));
                scope.spawn(move || {
                    ensure(root, &parameters).unwrap();
                    let val = parameters.folder(root).join("val");
                    assert_eq!(scan::scan(&val, "v").unwrap().listing.files.len(), 6);
                });
            }
        });
    }
}
