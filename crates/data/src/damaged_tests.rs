//! Images and tables that are damaged: each is read, or refused in words, and within its limits of
//! memory.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat, RgbImage};
use test_support::assert_refused;

use crate::Instructions;
use crate::images::decode::decode;
use crate::mutated;
use crate::plan::{SplitPlan, Targets};
use crate::read;
use crate::sources::tables::csv;
use crate::sources::text::instructions;
use crate::tokenizer::{self, Tokenizer};
use crate::transform::{Area, PixelDtype};

/// A small picture in each format that is read.
fn pictures() -> Vec<Vec<u8>> {
    let picture =
        RgbImage::from_fn(19, 13, |x, y| image::Rgb([(x * 13) as u8, (y * 19) as u8, 77]));
    let formats = [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::Bmp,
        ImageFormat::WebP,
        ImageFormat::Pnm,
    ];
    let kinds = [
        DynamicImage::ImageRgb8(picture.clone()),
        DynamicImage::ImageLuma8(DynamicImage::ImageRgb8(picture).to_luma8()),
    ];
    let encoded = |kind: &DynamicImage, format| {
        let mut bytes = Cursor::new(Vec::new());
        kind.write_to(&mut bytes, format).ok().map(|()| bytes.into_inner())
    };
    formats
        .iter()
        .flat_map(|&format| kinds.iter().filter_map(move |kind| encoded(kind, format)))
        .collect()
}

#[test]
fn a_damaged_image_is_decoded_or_refused_and_no_decoder_panics() {
    let (mut decoded, mut refused) = (0, 0);
    for bytes in mutated::inputs(&pictures(), 3000, 43) {
        match decode(bytes, PixelDtype::Uint8, Area::whole) {
            Ok(part) => {
                decoded += 1;
                let (height, width) = part.size;
                assert!(height * width <= 64 << 20);
            }
            Err(why) => {
                refused += 1;
                assert!(!why.to_string().is_empty());
            }
        }
    }
    assert!(decoded > 100 && refused > 500, "{decoded} decoded, {refused} refused");
}

/// A PNG whose header claims so many pixels, and holds none.
fn bomb(width: u32, height: u32) -> Vec<u8> {
    let mut header = b"IHDR".to_vec();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    let mut crc = flate2::Crc::new();
    crc.update(&header);
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    bytes.extend(header);
    bytes.extend(crc.sum().to_be_bytes());
    // The pixels begin, and are never read.
    bytes.extend(b"\0\0\x10\0IDAT\x78\x9c");
    bytes
}

#[test]
fn an_image_that_claims_too_many_pixels_is_refused_before_it_is_decoded() {
    for (width, height) in
        [(1 << 13, (1 << 13) + 1), (60_000, 60_000), (u32::MAX >> 1, 1), (1 << 30, 4)]
    {
        let refused = decode(bomb(width, height), PixelDtype::Uint8, Area::whole).map(drop);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("too many") || refused.contains("imit"),
            "{width}x{height}: {refused}"
        );
    }
}

#[test]
fn a_damaged_table_is_read_or_refused_with_its_name() {
    let tables =
        [b"a,y,b\n1,2,3\n4,5,6\n7,8e-3,-9\n".to_vec(), b"\xef\xbb\xbfa,y\r\n\"1\",2\r\n".to_vec()];
    let folder = tempfile::tempdir().unwrap();
    let (train, val) = (folder.path().join("train.csv"), folder.path().join("val.csv"));
    crate::files::write_atomic(&val, &tables[0]).unwrap();
    let (mut counted, mut refused) = (0, 0);
    for bytes in mutated::inputs(&tables, 1500, 52) {
        crate::files::write_atomic(&train, &bytes).unwrap();
        match csv::open(&train, &val, "y", Targets::Numbers) {
            Ok(_) => counted += 1,
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("train.csv"), "{error}");
            }
        }
    }
    assert!(counted > 20 && refused > 300, "{counted} counted, {refused} refused");
}

#[test]
fn a_damaged_tokenizer_or_list_of_instructions_is_used_or_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = tokenizer::tests::write(folder.path());
    let original = std::fs::read(&path).unwrap();
    let (mut used, mut refused) = (0, 0);
    for bytes in mutated::inputs(std::slice::from_ref(&original), 1500, 61) {
        crate::files::write_atomic(&path, &bytes).unwrap();
        match Tokenizer::open(&path) {
            Ok(found) => {
                used += 1;
                assert!(found.vocabulary().len() <= 1 << 20);
                if let Ok(tokens) = found.encode("the cat", true) {
                    found.decode(&tokens);
                }
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("tokenizer.json"), "{error}");
            }
        }
    }
    assert!(used > 10 && refused > 500, "{used} used, {refused} refused");
    crate::files::write_atomic(&path, &original).unwrap();
    let file = folder.path().join("alpaca.json");
    let entries = br#"[{"instruction": "the", "input": "", "output": "cat"},
        {"instruction": "that", "input": "cat", "output": "the"}]"#;
    for bytes in mutated::inputs(&[entries.to_vec()], 500, 62) {
        crate::files::write_atomic(&file, &bytes).unwrap();
        let source = Instructions {
            file: file.clone(),
            tokenizer: path.clone(),
            seq_len: 16,
            val_ratio: 0.5,
            packing: false,
            mask_prompt: true,
            eos_token: None,
            sample_tokens: None,
        };
        match instructions::open(&source, &SplitPlan::NONE) {
            Ok(splits) => {
                if let Err(error) = splits.train.load(0, None, &mut Vec::new()) {
                    assert!(error.to_string().contains("alpaca.json"), "{error}");
                }
            }
            Err(error) => assert!(error.to_string().contains("alpaca.json"), "{error}"),
        }
    }
}

#[test]
fn a_line_that_does_not_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.csv");
    let mut text = b"a,y\n1,".to_vec();
    text.resize(text.len() + (1 << 20), b'2');
    crate::files::write_atomic(&path, &text).unwrap();
    let error = read::table("the table", &path, "a table").unwrap_err().to_string();
    assert!(error.ends_with("train.csv`: line 2 has more than 1048576 bytes"), "{error}");
    assert_refused(
        csv::open(&path, &path, "y", Targets::Numbers),
        "line 2 has more than 1048576 bytes",
    );
}
