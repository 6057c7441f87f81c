//! One function for each reader of bytes that others wrote, for the package in `fuzz/`.
//!
//! Each takes any bytes and panics only on a bug: bytes that cannot be used are refused in words,
//! and what was understood stays the same when it is written and read again.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::config::{Loaded, load_text, resolved};
use crate::data::fuzz_readers;
use crate::kinds::Kinds;
use crate::nn::state_dict::{Strict, load_state_dict_bytes};
use crate::nn::{Builder, Init};
use crate::plan::{DataFacts, Facts, Modality, Plan, SourcePlan};
use crate::trajectories::fuzz_readers::trajectories;
use crate::{checkpoint, launch};

/// Reads any bytes.
pub type Target = fn(&[u8]);

/// All targets, by their names, which are those of their folders in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("config", config),
    ("manifest", manifest),
    ("safetensors", safetensors),
    ("frame", frame),
    ("handshake", handshake),
    ("csv", csv),
    ("zstd", zstd),
    ("image", image),
    ("npz", npz),
    ("parquet", parquet),
    ("tar", tar),
    #[cfg(feature = "speech")]
    ("audio", audio),
];

/// An experiment, up to its plan.
///
/// # Panics
///
/// An experiment that was understood is not understood again, or not as the same one, from its
/// `resolved.toml`.
fn config(bytes: &[u8]) {
    let kinds = Kinds::default();
    let vocabulary = kinds.vocabulary();
    let text = String::from_utf8_lossy(bytes);
    let loaded = match load_text(Path::new("fuzzed.toml"), &text, &[], &vocabulary) {
        Ok(loaded) => loaded,
        Err(problems) => return assert!(!problems.page(false, 100).is_empty()),
    };
    if let Ok(text) = resolved(&loaded.experiment) {
        let again = load_text(Path::new("resolved.toml"), &text, &[], &vocabulary);
        let again = again.map(|again| again.experiment).map_err(|why| why.page(false, 100));
        assert!(again.as_ref() == Ok(&loaded.experiment), "{again:?} is not what it was:\n{text}");
    }
    let Some(facts) = facts(&loaded) else { return };
    match Plan::new(&loaded, &facts, &kinds) {
        Ok(plan) => drop(plan.pin(loaded.experiment)),
        Err(problems) => assert!(!problems.page(false, 100).is_empty()),
    }
}

/// Made-up facts of the experiment's data; `None` for kinds whose numbers decide too much.
fn facts(loaded: &Loaded) -> Option<Facts> {
    let name = loaded.experiment.data.name.as_str();
    let (modality, sample) = match name {
        "mnist" => (Modality::Images, Some(vec![1, 28, 28])),
        "image_folder" => (Modality::Images, None),
        "shapes" => (Modality::Images, Some(vec![3, 32, 32])),
        "csv" => (Modality::Table, Some(vec![13])),
        _ => return None,
    };
    let source = SourcePlan::new(name, modality);
    let is_table = modality == Modality::Table;
    let classes = if is_table { vec![] } else { ["a", "b", "c"].map(str::to_owned).to_vec() };
    let data =
        DataFacts { source, sample, classes, n_train: 640, n_val: 64, ..DataFacts::default() };
    Some(Facts { cores: 2, ..Facts::of(data) })
}

/// The manifest of a checkpoint: as it is, and with a seal that fits.
///
/// # Panics
///
/// A manifest that was understood differs when it is written and read again.
fn manifest(bytes: &[u8]) {
    let sealed = checkpoint::sealed_anew(bytes);
    for text in [Some(bytes), sealed.as_deref()].into_iter().flatten() {
        match checkpoint::parse(text) {
            Err(damage) => assert!(!damage.to_string().is_empty()),
            Ok(manifest) => {
                let again = manifest.sealed().ok().and_then(|text| checkpoint::parse(&text).ok());
                assert!(again.is_none_or(|again| again == manifest), "{manifest:?}");
            }
        }
    }
}

/// A safetensors file: of a checkpoint, and as pretrained weights.
fn safetensors(bytes: &[u8]) {
    if let Ok((_file, path)) = in_memory(bytes)
        && let (Some(folder), Some(name)) = (path.parent(), path.file_name())
    {
        drop(checkpoint::header_of(folder, &name.to_string_lossy(), bytes));
    }
    let builder = Builder::new(1);
    drop(builder.pp("fc").param("weight", &[2, 3], Init::Constant(0.0)));
    drop(builder.buffer("mean", &[1], 0.0));
    let params = builder.finish();
    for strict in [Strict::All, Strict::ExceptHead(&["fc."])] {
        let path = PathBuf::from("fuzzed.safetensors");
        let files = [(path.clone(), bytes.to_vec())];
        drop(load_state_dict_bytes(&params, &path, &files, strict));
    }
}

/// Messages between the parent and a rank.
fn frame(bytes: &[u8]) {
    drop(launch::receive_both(bytes));
}

/// The messages of both ends of a handshake between machines.
///
/// # Panics
///
/// A message is accepted although it does not prove that it comes from a holder of the key.
fn handshake(bytes: &[u8]) {
    assert!(!crate::transport::is_believed(bytes));
}

/// A table.
///
/// # Panics
///
/// A refusal is empty.
fn csv(bytes: &[u8]) {
    if let Ok((_file, path)) = in_memory(bytes) {
        let refusals = fuzz_readers::table(&path);
        assert!(refusals.iter().all(|refusal| !refusal.is_empty()));
    }
}

/// A file packed by zstd.
///
/// # Panics
///
/// A refusal is empty.
fn zstd(bytes: &[u8]) {
    if let Err(refusal) = fuzz_readers::zstd(bytes) {
        assert!(!refusal.is_empty());
    }
}

/// An image.
///
/// # Panics
///
/// A refusal is empty, or an image is larger than the most that is admitted.
fn image(bytes: &[u8]) {
    match fuzz_readers::image(bytes) {
        Ok(values) => assert!(values <= 3 * (64 << 20)),
        Err(refusal) => assert!(!refusal.is_empty()),
    }
}

/// Trajectories.
fn npz(bytes: &[u8]) {
    if let Ok((_file, path)) = in_memory(bytes) {
        drop(trajectories(&path));
    }
}

/// Trajectories in columns, or images with classes.
///
/// # Panics
///
/// A refusal is empty, or images have many more bytes than the file.
fn parquet(bytes: &[u8]) {
    if let Ok((_file, path)) = in_memory(bytes) {
        drop(trajectories(&path));
        match fuzz_readers::image_shard(&path) {
            Ok(images) => assert!(images <= 64 * 64 * bytes.len() as u64),
            Err(refusal) => assert!(!refusal.is_empty()),
        }
    }
}

/// A shard of images with classes.
///
/// # Panics
///
/// A refusal is empty, or images lie outside of the file.
fn tar(bytes: &[u8]) {
    if let Ok((_file, path)) = in_memory(bytes) {
        match fuzz_readers::tar_shard(&path) {
            Ok(images) => assert!(images <= bytes.len() as u64),
            Err(refusal) => assert!(!refusal.is_empty()),
        }
    }
}

/// A recording of speech.
#[cfg(feature = "speech")]
fn audio(bytes: &[u8]) {
    if let Ok((_file, path)) = in_memory(bytes) {
        drop(ddprun_speech::features(&path));
    }
}

/// A file that is on no disk, open as long as the first value lives, and its path.
fn in_memory(bytes: &[u8]) -> io::Result<(File, PathBuf)> {
    let fd = rustix::fs::memfd_create("fuzzed", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Damaged inputs of each target; the fuzzer itself makes as many in a second.
    const DAMAGED: u64 = 100;

    /// The files of the corpus of a target, by name.
    fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut inputs: Vec<_> =
            files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        inputs.sort();
        assert!(inputs.len() >= 4, "{} has {} files", folder.display(), inputs.len());
        inputs
    }

    #[test]
    fn every_file_of_the_corpus_is_understood_or_refused() {
        for &(name, target) in TARGETS {
            for (path, bytes) in corpus(name) {
                println!("{}", path.display());
                target(&bytes);
            }
        }
    }

    #[test]
    fn damaged_files_of_the_corpus_are_understood_or_refused() {
        for &(name, target) in TARGETS {
            let originals: Vec<Vec<u8>> =
                corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
            for (number, input) in crate::mutated::inputs(&originals, DAMAGED, 9).enumerate() {
                println!("{name} {number}");
                target(&input);
            }
        }
    }
}
