//! WAV files -> samples between -1 and 1.

use std::io::{BufReader, Cursor};
use std::path::Path;

use hound::{SampleFormat, WavReader, WavSpec};

use crate::data::error::SampleError;
use crate::data::read;

/// Samples a second that speech may have: what the mel features of more would need, in memory and
/// time, is for a damaged header to ask.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// Bytes that are read at a time to find out what a file holds.
const HEADER_BYTES: usize = 512;

/// Samples a second, and samples of each channel.
pub(super) struct Header {
    pub(super) rate: u32,
    pub(super) samples: usize,
}

/// What the file at `path` says of itself.
///
/// # Errors
///
/// It cannot be read, is no WAV file, or has a rate that no speech has.
pub(super) fn header(path: &Path) -> Result<Header, SampleError> {
    let file = read::open(path).map_err(|source| SampleError::Io { path: path.into(), source })?;
    // Of a long file no more than its beginning is read.
    let reader = WavReader::new(BufReader::with_capacity(HEADER_BYTES, file))
        .map_err(|error| decode(path, &error))?;
    let rate = reader.spec().sample_rate;
    if !RATES.contains(&rate) {
        let (low, high) = (RATES.start(), RATES.end());
        let reason = format!("its sample rate of {rate} Hz is not between {low} and {high}");
        return Err(SampleError::Decode { path: path.into(), reason });
    }
    Ok(Header { rate, samples: reader.duration() as usize })
}

/// Its first `most` samples, the mean over the channels.
///
/// # Errors
///
/// As [`header`], or it is cut short.
pub(super) fn speech(path: &Path, most: usize) -> Result<Vec<f32>, SampleError> {
    let mut reader = open(path)?;
    let WavSpec { channels, bits_per_sample, sample_format, .. } = reader.spec();
    let channels = usize::from(channels.max(1));
    let wanted = most.saturating_mul(channels);
    let fails = |error: hound::Error| decode(path, &error);
    let values: Vec<f32> = match sample_format {
        SampleFormat::Float => {
            reader.samples::<f32>().take(wanted).collect::<Result<_, _>>().map_err(fails)?
        }
        SampleFormat::Int => {
            let scale = 1.0 / (1u64 << (bits_per_sample.clamp(1, 32) - 1)) as f64;
            let value = |value: i32| (f64::from(value) * scale) as f32;
            let values = reader.samples::<i32>().take(wanted).map(|read| read.map(value));
            values.collect::<Result<_, _>>().map_err(fails)?
        }
    };
    let mean = |frame: &[f32]| frame.iter().sum::<f32>() / frame.len() as f32;
    Ok(values.chunks(channels).map(mean).collect())
}

fn open(path: &Path) -> Result<WavReader<Cursor<Vec<u8>>>, SampleError> {
    let bytes =
        read::whole(path).map_err(|source| SampleError::Io { path: path.into(), source })?;
    WavReader::new(Cursor::new(bytes)).map_err(|error| decode(path, &error))
}

fn decode(path: &Path, error: &hound::Error) -> SampleError {
    SampleError::Decode { path: path.into(), reason: error.to_string() }
}
