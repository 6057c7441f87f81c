//! Archives of data sets -> folders as an experiment reads them: `train/<class>/<file>`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use ddprun_host::files;
use flate2::read::MultiGzDecoder;
use image::{ColorType, ImageError, ImageFormat};
use tar::Entry;

use crate::error::Error;
use crate::progress::{OnProgress, Progress};

/// Values of an image of CIFAR: three channels of 32x32.
const PIXELS: usize = 3 * 32 * 32;

/// The contents of a set's archives, and their places in the folder that is made from them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    /// Files below one folder of the archive, as they are.
    Folder,
    /// Binary records of CIFAR, written as PNG: `labels` bytes, of which the last is the class, then the pixels by
    /// channel. The file `names` has the classes, one per line.
    Cifar { labels: usize, names: &'static str },
    /// Photos of Oxford-IIIT Pet, after the archive with its lists: `Abyssinian_100 1 1 1` is a breed and a number.
    Pets,
    /// Recordings of Speech Commands in a folder per word, with lists of those that validate and test.
    SpeechCommands,
}

type Contents<'a> = Entry<'a, MultiGzDecoder<Counted<'a>>>;

/// Unpacks `archives` into `folder`.
///
/// # Errors
///
/// An archive is damaged or of another layout, `folder` cannot be written, or the user stops it.
pub(crate) fn unpack(
    layout: Layout,
    archives: &[PathBuf],
    folder: &Path,
    on_progress: OnProgress<'_>,
) -> Result<(), Error> {
    let mut pets = PetParts::new();
    for archive in archives {
        match layout {
            Layout::Folder => each_file(archive, on_progress, |path, file| {
                let mut parts = path.components();
                parts.next();
                write(archive, file, &folder.join(parts.as_path()))
            }),
            Layout::Cifar { labels, names } => cifar(archive, labels, names, folder, on_progress),
            Layout::Pets => pet_photos(archive, &mut pets, folder, on_progress),
            Layout::SpeechCommands => speech_commands(archive, folder, on_progress),
        }?;
    }
    Ok(files::sync_file_system(folder)?)
}

/// `train` or `test` for the name of each photo.
type PetParts = HashMap<String, &'static str>;

/// Unpacks the photos that `parts` names, to which lists in the archive are added.
fn pet_photos(
    archive: &Path,
    parts: &mut PetParts,
    folder: &Path,
    on_progress: OnProgress<'_>,
) -> Result<(), Error> {
    each_file(archive, on_progress, |path, file| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let part = match &*name {
            "trainval.txt" => "train",
            "test.txt" => "test",
            _ => {
                let Some(part) = parts.get(&*name) else { return Ok(()) };
                let breed = name.rsplit_once('_').map_or("", |(breed, _)| breed);
                return write(archive, file, &folder.join(part).join(breed).join(&*name));
            }
        };
        let photos = text(archive, file)?;
        let photos = photos.lines().filter_map(|line| line.split(' ').next());
        parts.extend(photos.map(|photo| (format!("{photo}.jpg"), part)));
        Ok(())
    })
}

fn cifar(
    archive: &Path,
    labels: usize,
    names: &str,
    folder: &Path,
    on_progress: OnProgress<'_>,
) -> Result<(), Error> {
    let mut classes = Vec::new();
    let mut batches: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    each_file(archive, on_progress, |path, file| {
        if path.ends_with(names) {
            let lines = text(archive, file)?;
            classes = lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        } else if path.extension().is_some_and(|ending| ending == "bin") {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(|error| not_unpacked(archive, &error))?;
            batches.push((path.to_owned(), bytes));
        }
        Ok(())
    })?;
    batches.sort();
    let unusable = |what: &str| Error::Unpack { file: shown(archive), why: what.to_owned() };
    let mut counts = [0; 2];
    for (path, batch) in &batches {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let part = usize::from(name.starts_with("test"));
        for record in batch.chunks(labels + PIXELS) {
            if record.len() != labels + PIXELS {
                return Err(unusable(&format!("`{}` ends inside an image", path.display())));
            }
            let class = classes.get(usize::from(record[labels - 1]));
            let class =
                class.ok_or_else(|| unusable("a label is larger than the list of classes"))?;
            let to = folder.join(["train", "test"][part]).join(class);
            files::create_folder(&to)?;
            let to = to.join(format!("{:05}.png", counts[part]));
            let values = interleaved(&record[labels..]);
            image::save_buffer_with_format(&to, &values, 32, 32, ColorType::Rgb8, ImageFormat::Png)
                .map_err(|error| match error {
                    ImageError::IoError(error) => not_unpacked(archive, &error),
                    error => unusable(&error.to_string()),
                })?;
            counts[part] += 1;
        }
    }
    Ok(())
}

/// Pixels by channel -> red, green and blue of each pixel.
fn interleaved(planes: &[u8]) -> Vec<u8> {
    let plane = planes.len() / 3;
    (0..plane).flat_map(|at| [planes[at], planes[plane + at], planes[2 * plane + at]]).collect()
}

fn speech_commands(
    archive: &Path,
    folder: &Path,
    on_progress: OnProgress<'_>,
) -> Result<(), Error> {
    // The lists may come after the recordings.
    let mut parts: HashMap<PathBuf, &str> = HashMap::new();
    each_file(archive, on_progress, |path, file| {
        let part = match path.file_name().and_then(|name| name.to_str()) {
            Some("validation_list.txt") => "val",
            Some("testing_list.txt") => "test",
            _ => return Ok(()),
        };
        parts.extend(text(archive, file)?.lines().map(|line| (PathBuf::from(line), part)));
        Ok(())
    })?;
    each_file(archive, on_progress, |path, file| {
        if path.extension().is_none_or(|ending| ending != "wav") {
            return Ok(());
        }
        let is_noise = path.starts_with("_background_noise_");
        let part = if is_noise { "" } else { parts.get(path).copied().unwrap_or("train") };
        write(archive, file, &folder.join(part).join(path))
    })
}

/// Calls `visit` with each regular file of an archive and its path, which leads nowhere above the archive's root.
fn each_file(
    archive: &Path,
    on_progress: OnProgress<'_>,
    mut visit: impl FnMut(&Path, &mut Contents<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let file = File::open(archive).map_err(files::Error::io("open", archive))?;
    let size = file.metadata().map_or(0, |found| found.len());
    let done = std::cell::Cell::new(0);
    let name = shown(archive);
    let broken = |error: io::Error| not_unpacked(archive, &error);
    let counted = Counted { file: BufReader::new(file), done: &done };
    let mut contents = tar::Archive::new(MultiGzDecoder::new(counted));
    for entry in contents.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().map_err(broken)?.into_owned();
        let path: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            let why = format!("it has a file that would lie elsewhere: `{}`", path.display());
            return Err(Error::Unpack { file: name, why });
        }
        visit(&path, &mut entry)?;
        if !on_progress(Progress::Unpacking { file: &name, done: done.get(), size }) {
            return Err(Error::Stopped { file: name });
        }
    }
    Ok(())
}

/// The error of an archive that is damaged, or of a disk that does not take what is in it.
fn not_unpacked(archive: &Path, error: &io::Error) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    match error.kind() {
        InvalidData | InvalidInput | Other | UnexpectedEof => {
            Error::Unpack { file: shown(archive), why: error.to_string() }
        }
        kind => files::Error::io("unpack", archive)(kind.into()).into(),
    }
}

fn write(archive: &Path, file: &mut Contents<'_>, to: &Path) -> Result<(), Error> {
    files::create_parent(to)?;
    file.unpack(to).map(drop).map_err(|error| not_unpacked(archive, &error))
}

fn text(archive: &Path, file: &mut Contents<'_>) -> Result<String, Error> {
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| not_unpacked(archive, &error))?;
    Ok(text)
}

fn shown(archive: &Path) -> String {
    archive.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A file, and the number of bytes that were read from it.
struct Counted<'a> {
    file: BufReader<File>,
    done: &'a std::cell::Cell<u64>,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer)?;
        self.done.set(self.done.get() + n as u64);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ring::digest::{SHA256, digest};
    use test_support::hub_server::HubServer;

    use super::*;
    use crate::catalog::{Form, KnownFile, KnownSet};
    use crate::{Config, Hub};

    /// A gzipped archive of these files.
    fn tgz(contents: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, bytes) in contents {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            // `set_path` refuses `..`.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            archive.append(&header, *bytes).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap()
    }

    /// Files that are unpacked from archives, by their paths; or the error.
    fn unpacked(layout: Layout, archives: &[Vec<u8>]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("set");
        std::fs::create_dir(&to).unwrap();
        let mut paths = Vec::new();
        for (index, bytes) in archives.iter().enumerate() {
            paths.push(folder.path().join(format!("{index}.tgz")));
            files::write_atomic(&paths[index], bytes).unwrap();
        }
        unpack(layout, &paths, &to, &mut |_| true).map_err(|error| error.to_string())?;
        assert!(!folder.path().join("evil").exists());
        Ok(below(&to))
    }

    fn below(folder: &Path) -> Vec<String> {
        let entries = walkdir::WalkDir::new(folder).sort_by_file_name().into_iter();
        let files = entries.map(Result::unwrap).filter(|entry| entry.file_type().is_file());
        let name = |path: &Path| path.strip_prefix(folder).unwrap().display().to_string();
        files.map(|entry| name(entry.path())).collect()
    }

    #[test]
    fn photos_lie_as_in_the_archive_and_none_above_it() {
        let photos = tgz(&[("top/train/a/1.JPEG", b"1"), ("./top/val/a/2.JPEG", b"2")]);
        let found = unpacked(Layout::Folder, &[photos]);
        assert_eq!(found.unwrap(), ["train/a/1.JPEG", "val/a/2.JPEG"]);
        let why = unpacked(Layout::Folder, &[tgz(&[("top/../../evil", b"x")])]).unwrap_err();
        assert!(why.contains("would lie elsewhere"), "{why}");
        let mut cut = tgz(&[("top/train/a/1.JPEG", &[7; 5000])]);
        cut.truncate(cut.len() / 2);
        assert!(unpacked(Layout::Folder, &[cut]).unwrap_err().contains("cannot be unpacked"));
    }

    #[test]
    fn records_of_cifar_become_images_in_a_folder_per_class() {
        let record = |labels: &[u8], value: u8| {
            let mut bytes = labels.to_vec();
            bytes.extend([value; 1024].iter().chain(&[value + 1; 1024]).chain(&[value + 2; 1024]));
            bytes
        };
        let layout = Layout::Cifar { labels: 2, names: "fine_label_names.txt" };
        let train = [record(&[9, 1], 10), record(&[9, 0], 20)].concat();
        let archive = tgz(&[
            ("c/train.bin", &train),
            ("c/test.bin", &record(&[9, 1], 30)),
            ("c/fine_label_names.txt", b"apple\nbear\n\n"),
        ]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cifar.tgz");
        files::write_atomic(&path, &archive).unwrap();
        let to = folder.path().join("set");
        unpack(layout, &[path], &to, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            below(&to),
            ["test/bear/00000.png", "train/apple/00001.png", "train/bear/00000.png"]
        );
        let image = image::open(to.join("train/apple/00001.png")).unwrap().to_rgb8();
        assert_eq!((image.dimensions(), image.get_pixel(31, 31).0), ((32, 32), [20, 21, 22]));
        let names = ("c/fine_label_names.txt", b"apple\n".as_slice());
        let unusable = |bin: &[u8]| unpacked(layout, &[tgz(&[("c/train.bin", bin), names])]);
        assert!(unusable(&train).unwrap_err().contains("larger than the list of classes"));
        let cut = &record(&[9, 0], 20)[1..];
        assert!(unusable(cut).unwrap_err().contains("ends inside an image"));
    }

    #[test]
    fn pets_and_words_lie_in_folders_by_lists() {
        let lists = tgz(&[
            ("annotations/trainval.txt", b"Sphynx_1 1 1 1\nmain_coon_2 2 1 1\n"),
            ("annotations/test.txt", b"Sphynx_3 1 1 1\n"),
        ]);
        let photos = tgz(&[
            ("images/Sphynx_1.jpg", b"1"),
            ("images/main_coon_2.jpg", b"2"),
            ("images/Sphynx_3.jpg", b"3"),
            ("images/Sphynx_4.mat", b"4"),
        ]);
        assert_eq!(
            unpacked(Layout::Pets, &[lists, photos]).unwrap(),
            [
                "test/Sphynx/Sphynx_3.jpg",
                "train/Sphynx/Sphynx_1.jpg",
                "train/main_coon/main_coon_2.jpg"
            ]
        );
        let words = tgz(&[
            ("./yes/a.wav", b"1"),
            ("./yes/b.wav", b"2"),
            ("./no/c.wav", b"3"),
            ("./_background_noise_/rain.wav", b"4"),
            ("./validation_list.txt", b"yes/b.wav\n"),
            ("./testing_list.txt", b"no/c.wav\n"),
        ]);
        assert_eq!(
            unpacked(Layout::SpeechCommands, &[words]).unwrap(),
            ["_background_noise_/rain.wav", "test/no/c.wav", "train/yes/a.wav", "val/yes/b.wav"]
        );
    }

    #[test]
    fn a_set_is_unpacked_by_one_process_and_again_after_a_kill() {
        let archive = tgz(&[("top/train/a/1.JPEG", b"1"), ("top/val/a/2.JPEG", b"2")]);
        let server = HubServer::new();
        server.publish("plain", &[("photos.tgz", &archive)]);
        let hash = digest(&SHA256, &archive)
            .as_ref()
            .iter()
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let file = KnownFile { name: "photos.tgz", mirrors: &[], sha256: hash.leak() };
        let form = Form::Unpacked(Layout::Folder);
        let set = KnownSet { path: "photos", form, files: vec![file].leak() };
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("data/photos");
        let mirror = Some(format!("{}/plain", server.endpoint));
        let config = Config { mirror, ..Config::from_env(&|_| None) };
        // A process was killed while it unpacked: it had the archive, and a part of the folder.
        let killed = folder.path().join("data/.photos.elsewhere-1-00000001.ddprun-tmp");
        std::fs::create_dir_all(&killed).unwrap();
        let fetch = || Hub::new(config.clone()).unwrap().fetch_set(&set, &place, &mut |_| true);
        std::thread::scope(|scope| {
            for process in [(); 3].map(|()| scope.spawn(fetch)) {
                process.join().unwrap().unwrap();
            }
        });
        assert_eq!(server.take_requests().len(), 1);
        assert_eq!(
            below(&folder.path().join("data")),
            ["photos/train/a/1.JPEG", "photos/val/a/2.JPEG"]
        );
        assert!(!killed.exists());
    }
}
