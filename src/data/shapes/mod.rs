//! A generated image folder of coloured shapes and textures: real PNG and JPEG files, so that a first run
//! needs no download. Equal parameters give equal files.
//!
//! The folder is made under another name and renamed when it is whole; `dataset.json` in it says what it
//! was made from. A folder without that file is the user's, and is never touched.

mod draw;

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::config::schema::Data;
use crate::data::error::Error;
use crate::data::read;
use crate::plan::{DataFacts, SourcePlan};
use crate::rng::{Key, Purpose};

/// Version of what is drawn; a new version draws anew.
const FORMAT: u32 = 1;
const MARKER: &str = "dataset.json";
const JPEG_QUALITY: u8 = 92;
/// Longest wait for another process that generates the same folder.
const PATIENCE: Duration = Duration::from_mins(5);

/// What a generated folder is made from.
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
    /// As `[data]` says; 10 classes of 200 + 40 images of 32 pixels where it says nothing.
    ///
    /// # Errors
    ///
    /// A number is out of range.
    pub(crate) fn new(data: &Data, seed: u64) -> Result<Self, Error> {
        let most_classes = draw::MOST_CLASSES as u32;
        let within = |key, given: Option<u32>, default, low, high| {
            let given = given.unwrap_or(default);
            let fits = (low..=high).contains(&given);
            if fits { Ok(given) } else { Err(Error::OutOfRange { key, given, low, high }) }
        };
        Ok(Self {
            format: FORMAT,
            generator: "shapes".to_owned(),
            seed,
            classes: within("data.classes", data.classes, 10, 2, most_classes)?,
            train_per_class: within(
                "data.train_per_class",
                data.train_per_class,
                200,
                1,
                1_000_000,
            )?,
            val_per_class: within("data.val_per_class", data.val_per_class, 40, 1, 1_000_000)?,
            image_size: within("data.image_size", data.image_size, 32, 8, 2048)?,
        })
    }

    /// What a survey of the generated folder will find.
    pub(crate) fn facts(&self, source: SourcePlan) -> DataFacts {
        let mut classes: Vec<String> = (0..self.classes as usize).map(draw::class_name).collect();
        classes.sort();
        let total = |per_class: u32| (self.classes * per_class) as usize;
        DataFacts {
            source,
            n_train: total(self.train_per_class),
            n_val: total(self.val_per_class),
            classes,
            sample: None,
            n_test: 0,
            notes: Vec::new(),
            target: Vec::new(),
        }
    }
}

/// Makes sure that `dir` holds the shapes of `parameters`, generating them if needed. Other generated
/// shapes in `dir` are replaced. Processes that ask for the same folder wait for the first one.
///
/// # Errors
///
/// `dir` holds something that was not generated, cannot be written, or is generated elsewhere for minutes.
pub(crate) fn ensure(dir: &Path, parameters: &Parameters) -> Result<(), Error> {
    if is_ready(dir, parameters)? {
        return Ok(());
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(write_error("create", parent))?;
    let _lock = lock(&beside(dir, parent, "lock"), dir)?;
    // Another process may have generated it meanwhile.
    if is_ready(dir, parameters)? {
        return Ok(());
    }
    let partial = beside(dir, parent, "partial");
    remove_folder(&partial)?;
    generate(&partial, parameters)?;
    replace(dir, &partial, &beside(dir, parent, "old"))
}

/// Whether `dir` holds exactly these shapes.
pub(crate) fn is_ready(dir: &Path, parameters: &Parameters) -> Result<bool, Error> {
    match read::whole(&dir.join(MARKER)) {
        Ok(bytes) => {
            let marker: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
            let generator = marker.as_ref().and_then(|marker| marker.get("generator"));
            if generator.and_then(serde_json::Value::as_str) != Some("shapes") {
                return Err(Error::ForeignFolder { path: dir.to_owned() });
            }
            Ok(serde_json::to_value(parameters).ok() == marker)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_empty = match fs::read_dir(dir) {
                Ok(mut entries) => entries.next().is_none(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => true,
                Err(source) => {
                    return Err(Error::Io { action: "list", path: dir.to_owned(), source });
                }
            };
            if is_empty { Ok(false) } else { Err(Error::ForeignFolder { path: dir.to_owned() }) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(Error::NotAFolder {
            what: "the path of the generated data",
            path: dir.to_owned(),
            expected: "nothing yet, or a folder that ddprun generated",
        }),
        Err(source) => Err(Error::Io { action: "read", path: dir.join(MARKER), source }),
    }
}

/// Draws and writes all images, then the marker, and waits until the disk has them.
fn generate(dir: &Path, parameters: &Parameters) -> Result<(), Error> {
    let splits = [("train", 0, parameters.train_per_class), ("val", 1, parameters.val_per_class)];
    for (split, split_idx, per_class) in splits {
        for class in 0..parameters.classes as usize {
            let folder = dir.join(split).join(draw::class_name(class));
            fs::create_dir_all(&folder).map_err(write_error("create", &folder))?;
            let key = Key::new(parameters.seed, Purpose::Generate, split_idx, class as u64);
            (0..per_class).into_par_iter().try_for_each(|index| {
                let size = parameters.image_size as usize;
                let pixels = draw::draw(class, size, key.with(u64::from(index)));
                write_image(&folder, index, parameters.image_size, &pixels)
            })?;
        }
    }
    write_marker(dir, parameters).map_err(write_error("write", &dir.join(MARKER)))
}

/// Images alternate between PNG and JPEG.
fn write_image(folder: &Path, index: u32, size: u32, pixels: &[u8]) -> Result<(), Error> {
    let ending = if index.is_multiple_of(2) { "png" } else { "jpg" };
    let path = folder.join(format!("{index:04}.{ending}"));
    let mut file = BufWriter::new(File::create(&path).map_err(write_error("write", &path))?);
    let encoded = if index.is_multiple_of(2) {
        PngEncoder::new(&mut file).write_image(pixels, size, size, ExtendedColorType::Rgb8)
    } else {
        let encoder = JpegEncoder::new_with_quality(&mut file, JPEG_QUALITY);
        encoder.write_image(pixels, size, size, ExtendedColorType::Rgb8)
    };
    let written = encoded.map_err(|error| match error {
        image::ImageError::IoError(source) => source,
        other => io::Error::other(other),
    });
    written.and_then(|()| file.flush()).map_err(write_error("write", &path))
}

fn write_marker(dir: &Path, parameters: &Parameters) -> io::Result<()> {
    // One flush of the file system costs less than one per image.
    rustix::fs::syncfs(File::open(dir)?)?;
    let mut marker = File::create(dir.join(MARKER))?;
    marker.write_all(serde_json::to_string_pretty(parameters)?.as_bytes())?;
    marker.sync_all()?;
    File::open(dir)?.sync_all()
}

/// Puts `partial` in the place of `dir`, whose old content `is_ready` has recognised as generated.
fn replace(dir: &Path, partial: &Path, old: &Path) -> Result<(), Error> {
    remove_folder(old)?;
    match fs::rename(dir, old) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(write_error("replace", dir)(source)),
    }
    fs::rename(partial, dir).map_err(write_error("create", dir))?;
    remove_folder(old)
}

/// Takes the lock file of `dir`; it is let go of when the process ends, however it ends.
fn lock(path: &Path, dir: &Path) -> Result<File, Error> {
    let file = File::create(path).map_err(write_error("create", path))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(source)) => return Err(write_error("lock", path)(source)),
            Err(TryLockError::WouldBlock) if Instant::now() > deadline => {
                return Err(Error::Busy { path: dir.to_owned(), seconds: PATIENCE.as_secs() });
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
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(write_error("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn write_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Write { action, path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::listing;

    fn parameters(seed: u64, classes: u32) -> Parameters {
        Parameters {
            format: FORMAT,
            generator: "shapes".to_owned(),
            seed,
            classes,
            train_per_class: 3,
            val_per_class: 2,
            image_size: 16,
        }
    }

    fn digest(dir: &Path) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (path, _) in listing::scan(dir, "the folder").unwrap().listing.files.iter() {
            hasher.update(path.strip_prefix(dir).unwrap().as_os_str().as_encoded_bytes());
            hasher.update(&read::whole(&path).unwrap());
        }
        hasher.finalize()
    }

    #[test]
    fn equal_parameters_give_equal_files_and_another_seed_other_ones() {
        let root = tempfile::tempdir().unwrap();
        let made = |name: &str, seed| {
            let dir = root.path().join(name);
            ensure(&dir, &parameters(seed, 4)).unwrap();
            digest(&dir.join("train"))
        };
        assert_eq!(made("a", 1), made("b", 1));
        assert_ne!(made("a", 1), made("c", 2));
        let train = listing::scan(&root.path().join("a/train"), "t").unwrap().listing;
        assert_eq!(train.classes, ["blue_circle", "blue_square", "red_circle", "red_square"]);
        assert_eq!(train.files.len(), 12);
        assert_ne!(digest(&root.path().join("a/train")), digest(&root.path().join("a/val")));
    }

    #[test]
    fn changed_parameters_replace_generated_shapes_but_never_other_folders() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("shapes");
        ensure(&dir, &parameters(1, 2)).unwrap();
        ensure(&dir, &parameters(1, 5)).unwrap();
        assert_eq!(listing::scan(&dir.join("val"), "v").unwrap().listing.classes.len(), 5);
        fs::remove_file(dir.join(MARKER)).unwrap();
        let error = ensure(&dir, &parameters(1, 2)).unwrap_err();
        assert!(matches!(error, Error::ForeignFolder { .. }), "{error}");
        assert_eq!(listing::scan(&dir.join("val"), "v").unwrap().listing.classes.len(), 5);
        File::create(dir.join(MARKER)).unwrap().write_all(b"{\"my\": \"notes\"}").unwrap();
        assert!(ensure(&dir, &parameters(1, 2)).is_err());
    }

    #[test]
    fn what_an_interrupted_generation_left_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("shapes");
        fs::create_dir_all(root.path().join(".shapes.partial/train/half")).unwrap();
        ensure(&dir, &parameters(1, 2)).unwrap();
        assert!(!root.path().join(".shapes.partial").exists());
        assert_eq!(listing::scan(&dir.join("train"), "t").unwrap().listing.classes.len(), 2);
    }

    #[test]
    fn many_that_ask_at_once_all_find_it_whole() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("shapes");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    ensure(&dir, &parameters(1, 3)).unwrap();
                    assert_eq!(
                        listing::scan(&dir.join("val"), "v").unwrap().listing.files.len(),
                        6
                    );
                });
            }
        });
    }
}
