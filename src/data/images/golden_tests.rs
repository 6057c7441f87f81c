//! Small files of every kind that an image folder may hold, against the pixels that Pillow reads
//! from them (`tests/golden/images.py`).

use std::path::Path;

use flate2::Crc;

use crate::data::images::decode::decode;
use crate::data::transform::{Area, Decoded, PixelDtype};

/// (file, "37x29", CRC-32 of the RGB pixels) for each file; "refused" and no sum where Pillow reads
/// none.
fn sums() -> Vec<(String, String, String)> {
    let text = include_str!("../../../tests/golden/images/SUMS.tsv");
    let line = |line: &str| {
        let mut cells = line.split('\t').map(str::to_owned);
        let mut cell = || cells.next().unwrap_or_default();
        (cell(), cell(), cell())
    };
    text.lines().map(line).collect()
}

fn read(file: &str) -> Result<Decoded, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/images");
    decode(std::fs::read(folder.join(file)).unwrap(), PixelDtype::Uint8, Area::whole)
}

/// A line of `SUMS.tsv`.
fn summed(file: String) -> (String, String, String) {
    let Ok(image) = read(&file) else { return (file, "refused".into(), String::new()) };
    let mut crc = Crc::new();
    crc.update(&image.pixels.data);
    let (height, width) = image.size;
    (file, format!("{width}x{height}"), format!("{:08x}", crc.sum()))
}

#[test]
fn every_kind_of_file_has_the_pixels_that_pillow_reads_and_damaged_ones_are_refused() {
    // Ink goes another way to RGB, which rounds otherwise.
    let expected = || sums().into_iter().filter(|(file, ..)| file != "cmyk.jpg");
    let found: Vec<_> = expected().map(|(file, ..)| summed(file)).collect();
    assert_eq!(found.len(), 33);
    assert_eq!(found, expected().collect::<Vec<_>>());
}

#[test]
fn cmyk_has_the_colours_that_pillow_reads_to_one_part_in_256() {
    let image = read("cmyk.jpg").unwrap().pixels;
    for (channel, expected) in [127.567, 115.641, 105.644].into_iter().enumerate() {
        let values = image.data[channel..].iter().step_by(3).map(|&v| f64::from(v));
        let mean = values.sum::<f64>() / (image.height * image.width) as f64;
        assert!((mean - expected).abs() < 1.0, "channel {channel}: {mean}, not {expected}");
    }
}
