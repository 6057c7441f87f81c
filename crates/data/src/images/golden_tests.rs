//! Small files of every kind that an image folder may hold, against the pixels that Pillow reads
//! from them (`tests/golden/images.py`).

use std::path::Path;

use flate2::Crc;

use crate::images::decode::{DecodeOptions, Unreadable, decode};
use crate::images::orientation::{Exif, is_turned};
use crate::transform::{Area, Decoded, PixelDtype};

/// (file, "37x29", CRC-32 of the RGB pixels) for each file; "refused" and no sum where Pillow reads
/// none.
fn sums() -> Vec<(String, String, String)> {
    let text = include_str!("../../../../tests/golden/images/SUMS.tsv");
    let line = |line: &str| {
        let mut cells = line.split('\t').map(str::to_owned);
        let mut cell = || cells.next().unwrap_or_default();
        (cell(), cell(), cell())
    };
    text.lines().map(line).collect()
}

fn read(file: &str) -> Result<Decoded, Unreadable> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/images");
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
    let found: Vec<_> = sums().into_iter().map(|(file, ..)| summed(file)).collect();
    assert!(found.len() > 40);
    assert_eq!(found, sums());
}

#[test]
fn photos_are_turned_as_pillow_turns_them_where_that_is_asked_for() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/images");
    let text = include_str!("../../../../tests/golden/images/UPRIGHT.tsv");
    let options = DecodeOptions { exif: Exif::Apply, ..DecodeOptions::default() };
    for line in text.lines() {
        let (file, sum) = line.split_once('\t').unwrap();
        let image = decode(std::fs::read(folder.join(file)).unwrap(), options, Area::whole);
        let image = image.unwrap();
        let mut crc = Crc::new();
        crc.update(&image.pixels.data);
        let (height, width) = image.size;
        assert_eq!(format!("{width}x{height}\t{:08x}", crc.sum()), sum, "{file}");
        let is_tiff = Path::new(file).extension().is_some_and(|kind| kind == "tiff");
        assert_eq!(is_turned(&folder.join(file)), !is_tiff, "{file}");
    }
    assert_eq!(text.lines().count(), 6);
}
