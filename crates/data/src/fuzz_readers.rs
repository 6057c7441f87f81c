//! Files of each kind as the fuzzer gives them: read to the end, and what was wrong with them.

use std::io::{self, Read};
use std::path::Path;

use crate::CsvForecast;
use crate::config::values::SplitRule;
use crate::images::decode::decode;
use crate::packed::Packing;
use crate::plan::Targets;
use crate::sources::hf_dataset;
use crate::sources::source::{DataSource, SurveyRequest};
use crate::sources::tables::csv;
use crate::sources::webdataset;
use crate::transform::{Area, PixelDtype};

/// An image as a whole, or half of it where the number of bytes is odd.
///
/// # Panics
///
/// Some of what was needed was not decoded.
pub fn image(bytes: &[u8]) -> Result<usize, String> {
    let is_half = !bytes.len().is_multiple_of(2);
    let needed = |(height, width): (usize, usize)| {
        let top = height / 4;
        let left = width / 4;
        let half = Area { top, left, height: height.div_ceil(2), width: width.div_ceil(2) };
        if is_half { half } else { Area::whole((height, width)) }
    };
    let decoded =
        decode(bytes.to_vec(), PixelDtype::Uint8, needed).map_err(|why| why.to_string())?;
    assert!(decoded.holds(needed(decoded.size)));
    let deep = decode(bytes.to_vec(), PixelDtype::Uint16, needed).map_err(|why| why.to_string())?;
    assert_eq!(deep.pixels.data.len(), 2 * decoded.pixels.data.len());
    Ok(decoded.pixels.data.len())
}

/// The first megabytes of what a file packed by zstd holds.
pub fn zstd(bytes: &[u8]) -> Result<u64, String> {
    const MOST: u64 = 16 << 20;
    let mut contents = Packing::Zstd.reader(bytes).take(MOST);
    io::copy(&mut contents, &mut io::sink()).map_err(|error| error.to_string())
}

/// A shard of images with classes: the bytes of all images.
pub fn image_shard(path: &Path) -> Result<u64, String> {
    hf_dataset::read_shard(path).map_err(|error| error.to_string())
}

/// A tar shard of images with classes: the bytes of all images.
pub fn tar_shard(path: &Path) -> Result<u64, String> {
    webdataset::read_shard(path).map_err(|error| error.to_string())
}

/// A table as training and validation, with numbers and with classes, and as a series.
pub fn table(path: &Path) -> Vec<String> {
    let as_table =
        |targets| csv::open(path, path, "y", targets).err().map(|error| error.to_string());
    let series = CsvForecast {
        split: SplitRule::Parts([2, 1, 1]),
        ..CsvForecast::new(path.to_owned(), 3, 2)
    };
    let request = SurveyRequest::new("fuzzed", 0, Targets::Numbers);
    let as_series = series.survey(&request).err().map(|error| error.to_string());
    [as_table(Targets::Numbers), as_table(Targets::Classes), as_series]
        .into_iter()
        .flatten()
        .collect()
}
