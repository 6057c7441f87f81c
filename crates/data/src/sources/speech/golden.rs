//! Recordings as libsndfile reads them, and resampled ones as torchaudio's
//! (`tests/golden/audio.py`).

use std::path::PathBuf;

use serde::Deserialize;

/// Golden values written by the generator.
#[derive(Deserialize)]
pub(super) struct Golden {
    pub(super) files: Vec<Read>,
    pub(super) resampled: Vec<Resampled>,
}

/// A file of `tests/golden/audio`: squares in eight equal parts, and samples of the middle.
#[derive(Deserialize)]
pub(super) struct Read {
    pub(super) name: String,
    pub(super) rate: u32,
    pub(super) n: usize,
    pub(super) parts: Vec<f64>,
    pub(super) middle: Vec<f64>,
}

/// 2000 samples at one rate, at another.
#[derive(Deserialize)]
pub(super) struct Resampled {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) n: usize,
    pub(super) first: Vec<f64>,
    pub(super) last: Vec<f64>,
    pub(super) energy: f64,
}

pub(super) fn read() -> Golden {
    serde_json::from_str(include_str!("../../../../../tests/golden/audio.json")).unwrap()
}

pub(super) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audio").join(name)
}
