//! Bytes of an image file -> RGB pixels, by content and not by the name's ending.
//!
//! As `PIL.Image.open(..).convert("RGB")`: grey and palette are expanded, alpha is dropped (not
//! blended), CMYK and YCCK become RGB, an animation gives its first picture, the orientation of
//! EXIF is applied if that is asked for, and always in a TIFF. 16-bit colour, and 16-bit grey with
//! alpha, keep their high byte; 16-bit grey alone is clipped at 255, as Pillow's modes `I;16` and
//! `I` are, which makes white of whatever is brighter. Asked for 16 bits, values are what they are,
//! as `torchvision.io.decode_image` reads them, and those of 8 bits are spread over the same range
//! (v * 257).

use std::io::Cursor;
use std::path::Path;

use image::{
    DynamicImage, ExtendedColorType, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits,
};
use tiff::decoder::{Decoder as TiffDecoder, DecodingResult, Limits as TiffLimits};

use crate::error::SampleError;
use crate::images::jpeg;
use crate::images::orientation::{Exif, Orientation};
use crate::images::png::{depth_of_png, without_profile};
use crate::read::caught;
use crate::transform::{Area, Decoded, PixelDtype, Pixels};

/// Most pixels of an image: 64 Mpx.
const MAX_PIXELS: u64 = 64 << 20;
/// Most memory that decoding may take: 256 MiB.
const MAX_BYTES: u64 = 256 << 20;

/// Why an image cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// The bytes are no image.
    #[error("{0}")]
    Damaged(String),
    /// They may be one, but would take too much memory.
    #[error("{0}")]
    TooLarge(String),
}

impl From<String> for Unreadable {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

impl Unreadable {
    /// The error of the file at `path`.
    pub(crate) fn of(self, path: &Path) -> SampleError {
        let path = path.to_owned();
        match self {
            Self::Damaged(reason) => SampleError::Decode { path, reason },
            Self::TooLarge(reason) => SampleError::TooLarge { path, reason },
        }
    }
}

/// Options for decoding image files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodeOptions {
    pub(crate) dtype: PixelDtype,
    pub(crate) exif: Exif,
}

impl From<PixelDtype> for DecodeOptions {
    fn from(dtype: PixelDtype) -> Self {
        Self { dtype, ..Self::default() }
    }
}

/// Decodes an image to RGB of 8 bits, or as much of it as `needed` says for an image of (height,
/// width).
///
/// # Errors
///
/// The bytes are no image, or a too large one: a message without a path.
pub fn decode_image(
    bytes: Vec<u8>,
    needed: impl FnOnce((usize, usize)) -> Area,
) -> Result<Decoded, String> {
    decode(bytes, DecodeOptions::default(), needed).map_err(|why| why.to_string())
}

/// Decodes an image to RGB as `options` say, or as much of it as `needed` says for an image of
/// (height, width).
pub(crate) fn decode(
    bytes: Vec<u8>,
    options: impl Into<DecodeOptions>,
    needed: impl FnOnce((usize, usize)) -> Area,
) -> Result<Decoded, Unreadable> {
    let DecodeOptions { dtype, exif } = options.into();
    if bytes.is_empty() {
        return Err("the file is empty".to_owned().into());
    }
    let format =
        image::guess_format(&bytes).map_err(|_| "not in a known image format".to_owned())?;
    if format == ImageFormat::Jpeg {
        let orientation = match exif {
            Exif::Ignore => Orientation::default(),
            Exif::Apply => Orientation::of_jpeg(&bytes),
        };
        let needed = |size| orientation.stored(needed(orientation.turned(size)), size);
        let decoded = decode_jpeg(bytes, needed)?;
        let decoded = if dtype == PixelDtype::Uint16 { spread(decoded) } else { decoded };
        return Ok(orientation.apply(decoded));
    }
    let (image, orientation) = decode_whole(&bytes, format)?;
    let pixels = match (dtype, image) {
        (PixelDtype::Uint8, FullImage::Inks(pixels)) => pixels,
        (PixelDtype::Uint8, FullImage::Image(image)) => to_rgb(image),
        (PixelDtype::Uint16, FullImage::Image(image)) => to_uint16(image),
        (PixelDtype::Uint16, FullImage::Inks(pixels)) => spread(Decoded::whole(pixels)).pixels,
    };
    // Pillow turns a TIFF itself.
    let is_applied = exif == Exif::Apply || format == ImageFormat::Tiff;
    let orientation = if is_applied { orientation } else { Orientation::default() };
    Ok(orientation.apply(Decoded::whole(pixels)))
}

/// An image that was decoded as a whole.
enum FullImage {
    Image(DynamicImage),
    /// RGB of inks, as Pillow rounds it.
    Inks(Pixels),
}

/// True if the pixels of an image file have more than 8 bits, by its header.
pub fn has_more_than_8_bits(path: &Path) -> bool {
    let header = || {
        let reader = ImageReader::open(path).ok()?.with_guessed_format().ok()?;
        if reader.format() == Some(ImageFormat::Png) {
            return depth_of_png(reader.into_inner());
        }
        let color = caught(|| reader.into_decoder().map_err(|error| error.to_string())).ok()?;
        Some(color.color_type().bytes_per_pixel() > color.color_type().channel_count())
    };
    header().unwrap_or(false)
}

fn to_uint16(image: DynamicImage) -> Pixels {
    let size = [image.height() as usize, image.width() as usize];
    Pixels::of_uint16(3, size, image.into_rgb16().as_raw())
}

/// 8 bits over the range of 16.
fn spread(decoded: Decoded) -> Decoded {
    let pixels = decoded.pixels;
    let values: Vec<u16> = pixels.data.iter().map(|&value| u16::from(value) * 257).collect();
    let pixels = Pixels::of_uint16(pixels.channels, [pixels.height, pixels.width], &values);
    Decoded { pixels, ..decoded }
}

fn decode_jpeg(
    bytes: Vec<u8>,
    needed: impl FnOnce((usize, usize)) -> Area,
) -> Result<Decoded, Unreadable> {
    let header = jpeg::Header::read(&bytes).filter(|header| header.is_complete(&bytes));
    let Some(header) = header else {
        return Err("the JPEG is truncated: its end marker is missing".to_owned().into());
    };
    let (height, width) = header.size;
    let check = |channels| check_size(width as u32, height as u32, channels * height * width);
    if header.has_inks() {
        check(4)?;
        // The decoder fails on some files of four components that are whole.
        if let Ok(decoded) = caught(|| jpeg::decode_cmyk(&bytes, &header)) {
            return Ok(decoded);
        }
    }
    if !header.is_common() {
        return match decode_whole(&bytes, ImageFormat::Jpeg)?.0 {
            FullImage::Image(image) => Ok(Decoded::whole(to_rgb(image))),
            FullImage::Inks(pixels) => Ok(Decoded::whole(pixels)),
        };
    }
    check(3)?;
    Ok(jpeg::decode(bytes, &header, needed(header.size))?)
}

/// The image, and how it lies.
fn decode_whole(bytes: &[u8], format: ImageFormat) -> Result<(FullImage, Orientation), Unreadable> {
    let needed = if format == ImageFormat::Png { without_profile(bytes) } else { bytes.into() };
    let mut reader = ImageReader::with_format(Cursor::new(&*needed), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| reason(&error))?;
    let (width, height) = decoder.dimensions();
    check_size(width, height, decoder.total_bytes() as usize)?;
    let orientation = Orientation::of_decoder(&mut decoder);
    let inks = [ExtendedColorType::Cmyk8, ExtendedColorType::Cmyk16];
    if format == ImageFormat::Tiff && inks.contains(&decoder.original_color_type()) {
        return Ok((FullImage::Inks(caught(|| decode_inks(bytes))?), orientation));
    }
    let image = || DynamicImage::from_decoder(decoder).map_err(|error| reason(&error));
    let image = caught(image)?;
    let is_grey = format == ImageFormat::Png && has_only_grey(bytes);
    let image = match image {
        DynamicImage::ImageLumaA16(_) if is_grey => DynamicImage::ImageLuma16(image.into_luma16()),
        other => other,
    };
    Ok((FullImage::Image(image), orientation))
}

/// A TIFF of cyan, magenta, yellow and black, of whose 16 bits the high byte counts.
fn decode_inks(bytes: &[u8]) -> Result<Pixels, String> {
    let failed = |error: tiff::TiffError| error.to_string();
    let mut limits = TiffLimits::default();
    limits.decoding_buffer_size = MAX_BYTES as usize;
    let decoder = TiffDecoder::new(Cursor::new(bytes)).map_err(failed)?;
    let mut decoder = decoder.with_limits(limits);
    let (width, height) = decoder.dimensions().map_err(failed)?;
    let inks = match decoder.read_image().map_err(failed)? {
        DecodingResult::U8(inks) => inks,
        DecodingResult::U16(inks) => inks.into_iter().map(|ink| (ink >> 8) as u8).collect(),
        _ => return Err("its inks have neither 8 nor 16 bits".to_owned()),
    };
    let size = [height as usize, width as usize];
    if inks.len() != 4 * size[0] * size[1] {
        return Err("its inks lie apart, which is not supported".to_owned());
    }
    let data = inks.as_chunks::<4>().0.iter().flat_map(|&inks| jpeg::rgb_of_inks(inks)).collect();
    Ok(Pixels::new(3, size, data))
}

/// Why an image cannot be decoded, without what the library shows for its own programmers.
fn reason(error: &ImageError) -> String {
    in_words(error.to_string())
}

/// "the PNG is damaged (CRC error)": as much of the library's text as comes before its numbers.
fn in_words(text: String) -> String {
    let Some((before, _)) = text.split_once("ChunkType {") else { return text };
    let what = before.strip_prefix("Format error decoding Png: ").unwrap_or(before);
    match what.split_once(':') {
        Some((what, _)) => format!("the PNG is damaged ({what})"),
        None => "the PNG is damaged".to_owned(),
    }
}

/// True if a PNG has no channel but grey, by the colour type of its header. The library adds a
/// second one for a value that counts as transparent.
fn has_only_grey(png: &[u8]) -> bool {
    const COLOUR_TYPE: usize = 25;
    png.get(COLOUR_TYPE) == Some(&0)
}

fn check_size(width: u32, height: u32, bytes: usize) -> Result<(), Unreadable> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 {
        return Err("the image has no pixels".to_owned().into());
    }
    if pixels > MAX_PIXELS || bytes as u64 > MAX_BYTES {
        let limits = "the limits are 64 Mpx and 256 MiB";
        let what = format!("{width}x{height} pixels ({bytes} bytes) are too many; {limits}");
        return Err(Unreadable::TooLarge(what));
    }
    Ok(())
}

fn to_rgb(image: DynamicImage) -> Pixels {
    let width = image.width() as usize;
    let height = image.height() as usize;
    let high = |v: u16| (v >> 8) as u8;
    // The library rounds 16-bit values; Pillow keeps the high byte, and clips where there is only
    // grey.
    let data = match image {
        DynamicImage::ImageLuma16(buffer) => {
            buffer.into_raw().into_iter().flat_map(|v| [v.min(255) as u8; 3]).collect()
        }
        DynamicImage::ImageLumaA16(buffer) => {
            buffer.into_raw().chunks_exact(2).flat_map(|p| [high(p[0]); 3]).collect()
        }
        DynamicImage::ImageRgb16(buffer) => buffer.into_raw().into_iter().map(high).collect(),
        DynamicImage::ImageRgba16(buffer) => buffer
            .into_raw()
            .chunks_exact(4)
            .flat_map(|p| [high(p[0]), high(p[1]), high(p[2])])
            .collect(),
        other => other.into_rgb8().into_raw(),
    };
    Pixels::new(3, [height, width], data)
}

#[cfg(test)]
mod tests {
    use flate2::Crc;

    use super::*;
    use crate::images::orientation::is_turned;
    use crate::skipped::shared;

    const ODD_IMAGES: &str = "data/odd-images";

    #[test]
    fn what_the_library_says_of_a_png_is_cut_short() {
        let text = "Format error decoding Png: CRC error: expected 0x1 have 0x2 while decoding \
                    ChunkType { type: IDAT, critical: true } chunk.";
        assert_eq!(in_words(text.to_owned()), "the PNG is damaged (CRC error)");
        let text = "Format error decoding Png: Chunk ChunkType { type: IDAT } is invalid";
        assert_eq!(in_words(text.to_owned()), "the PNG is damaged");
        assert_eq!(in_words("unexpected end of file".to_owned()), "unexpected end of file");
    }

    fn decode(bytes: &[u8]) -> Result<Pixels, Unreadable> {
        let part = super::decode(bytes.to_vec(), PixelDtype::Uint8, Area::whole)?;
        assert_eq!((part.top, part.left), (0, 0));
        assert_eq!(part.size, (part.pixels.height, part.pixels.width));
        Ok(part.pixels)
    }

    /// Mean of each channel.
    fn means(image: &Pixels) -> [f64; 3] {
        let n = (image.height * image.width) as f64;
        [0, 1, 2].map(|c| image.data[c..].iter().step_by(3).map(|&v| f64::from(v)).sum::<f64>() / n)
    }

    /// (file, mean RGB as Pillow sees it) for each line of the manifest under `folder`.
    fn manifest(folder: &str) -> Option<Vec<(String, Vec<f64>)>> {
        let text = std::fs::read_to_string(shared(ODD_IMAGES)?.join("MANIFEST.tsv")).unwrap();
        let lines = text.lines().skip(1).map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            let mean = cells[6].split_whitespace().map(|v| v.parse().unwrap()).collect();
            (cells[0].to_owned(), mean)
        });
        Some(lines.filter(|(file, _)| file.starts_with(folder)).collect())
    }

    fn read(file: &str) -> Vec<u8> {
        std::fs::read(shared(ODD_IMAGES).unwrap().join(file)).unwrap()
    }

    /// Files that this decoder and Pillow decode differently, and why.
    const EXCEPTIONS: [(&str, &str); 3] = [
        ("decodable/broken_data_stream.png", "a checksum is wrong, which Pillow does not look at"),
        ("decodable/truncated_app14.jpg", "a marker is cut short, which Pillow passes over"),
        ("other-formats/hopper.gif", "GIF is not among the endings of an image folder"),
    ];

    #[test]
    fn difficult_images_decode_to_what_pillow_sees() {
        let files = ["decodable/", "other-formats/"].into_iter().filter_map(manifest).flatten();
        let mut differing = Vec::new();
        for (file, expected) in files {
            let found = decode(&read(&file)).map(|image| means(&image));
            let is_close = found
                .as_ref()
                .is_ok_and(|found| found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1.0));
            if !is_close {
                differing.push((file, expected, found));
            }
        }
        differing.retain(|(file, _, _)| EXCEPTIONS.iter().all(|(name, _)| name != file));
        assert!(differing.is_empty(), "{differing:#?}");
    }

    #[test]
    fn broken_images_are_errors_and_never_panics() {
        // Pillow refuses these two for their text chunk and for their compression byte; the pixels
        // are whole.
        let whole = ["broken/png_decompression_dos.png", "broken/unknown_compression_method.png"];
        for (file, _) in manifest("broken/").into_iter().flatten() {
            let found = decode(&read(&file));
            assert_eq!(found.is_ok(), whole.contains(&file.as_str()), "{file}: {:?}", found.err());
        }
    }

    /// A picture with detail, 20 x 12.
    fn encoded(format: ImageFormat) -> Vec<u8> {
        let pixel = |x: u32, y: u32| image::Rgb([(x * 11) as u8, (y * 19) as u8, (x * y) as u8]);
        let image = image::RgbImage::from_fn(20, 12, pixel);
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    /// A PNG of a picture with this chunk behind its header.
    fn png_with(kind: [u8; 4], data: &[u8]) -> Vec<u8> {
        let png = encoded(ImageFormat::Png);
        let body = [&kind[..], data].concat();
        let mut checksum = flate2::Crc::new();
        checksum.update(&body);
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        let chunk = [&length[..], &body, &checksum.sum().to_be_bytes()].concat();
        // The signature, and the header of 13 bytes.
        let (head, rest) = png.split_at(8 + 12 + 13);
        [head, &chunk, rest].concat()
    }

    #[test]
    fn a_colour_profile_is_not_inflated() {
        use std::io::Write;
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        let mib = vec![0; 1 << 20];
        (0..200).for_each(|_| zlib.write_all(&mib).unwrap());
        let profile = [b"icc\0\0", &zlib.finish().unwrap()[..]].concat();
        let png = png_with(*b"iCCP", &profile);
        assert!(png.len() < 256 << 10, "{}", png.len());
        let stripped = without_profile(&png);
        assert!(*stripped == *encoded(ImageFormat::Png));
        assert_eq!(decode(&png).unwrap().data, decode(&encoded(ImageFormat::Png)).unwrap().data);
        let (head, rest) = png.split_at(8 + 12 + 13);
        let two = [head, &rest[..12 + profile.len()], rest].concat();
        assert!(*without_profile(&two) == *encoded(ImageFormat::Png));

        let text = png_with(*b"tEXt", b"a\0b");
        assert!(*without_profile(&text) == *text, "others stay");
        for length in 0..text.len() {
            assert!(*without_profile(&text[..length]) == text[..length]);
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.png");
        crate::files::write_atomic(&file, &png).unwrap();
        assert!(!has_more_than_8_bits(&file));
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error() {
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
            let bytes = encoded(format);
            let whole = decode(&bytes).unwrap();
            assert_eq!((whole.channels, whole.height, whole.width), (3, 12, 20));
            // What no pixel needs: a PNG ends with an empty chunk of 12 bytes, a WebP with a byte
            // that makes its length even.
            let spare = match format {
                ImageFormat::Png => 12,
                ImageFormat::WebP => 1,
                _ => 0,
            };
            let needed = bytes.len() - spare;
            for length in 0..needed {
                assert!(decode(&bytes[..length]).is_err(), "{format:?} cut at {length}");
            }
        }
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let key = crate::rng::Key::new(1, crate::rng::Purpose::Generate, 0, 0);
        let mut random = key.stream();
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
            let bytes = encoded(format);
            for _ in 0..300 {
                let mut damaged = bytes.clone();
                let place = random.below(damaged.len() as u64) as usize;
                damaged[place] ^= 1 << random.below(8);
                if let Ok(image) = decode(&damaged) {
                    assert_eq!(image.data.len(), 3 * image.height * image.width);
                }
            }
        }
    }

    /// Pillow opens both as `I;16`, whose `convert("RGB")` is `min(v, 255)` for each channel.
    #[test]
    fn grey_of_sixteen_bits_is_clipped_as_by_pillow() {
        let values = [0u16, 1, 200, 255, 256, 0x80FF, u16::MAX, 254];
        let expected = [0u8, 1, 200, 255, 255, 255, 255, 254].map(|v| [v; 3]).concat();
        let image = image::ImageBuffer::<image::Luma<u16>, _>::from_raw(4, 2, values.to_vec());
        let image = DynamicImage::ImageLuma16(image.unwrap());
        for format in [ImageFormat::Png, ImageFormat::Tiff] {
            let mut bytes = Cursor::new(Vec::new());
            image.write_to(&mut bytes, format).unwrap();
            assert_eq!(decode(&bytes.into_inner()).unwrap().data, expected, "{format:?}");
        }
    }

    #[test]
    fn alpha_is_dropped_and_grey_and_sixteen_bits_become_rgb() {
        let png = |image: DynamicImage| {
            let mut bytes = Cursor::new(Vec::new());
            image.write_to(&mut bytes, ImageFormat::Png).unwrap();
            decode(&bytes.into_inner()).unwrap().data
        };
        let rgba = image::RgbaImage::from_pixel(1, 1, image::Rgba([10, 20, 30, 0]));
        assert_eq!(png(rgba.into()), [10, 20, 30]);
        let grey = image::GrayImage::from_pixel(1, 1, image::Luma([7]));
        assert_eq!(png(grey.into()), [7, 7, 7]);
        let deep = image::ImageBuffer::from_pixel(1, 1, image::Rgb([0x12FF_u16, 0xFFFF, 0x00FF]));
        assert_eq!(png(DynamicImage::ImageRgb16(deep)), [0x12, 0xFF, 0]);
        let deep = image::ImageBuffer::from_pixel(1, 1, image::LumaA([0x80FF_u16, 0xFFFF]));
        assert_eq!(png(DynamicImage::ImageLumaA16(deep)), [0x80; 3]);
    }

    /// Small files of every kind that an image folder may hold, as Pillow reads them
    /// (`tests/golden/images.py`): (file, "37x29", CRC-32 of the RGB pixels) for each file;
    /// "refused" and no sum where Pillow reads none.
    fn sums() -> Vec<(String, String, String)> {
        let text = include_str!("../../../../tests/golden/images/SUMS.tsv");
        let line = |line: &str| {
            let mut cells = line.split('\t').map(str::to_owned);
            let mut cell = || cells.next().unwrap_or_default();
            (cell(), cell(), cell())
        };
        text.lines().map(line).collect()
    }

    fn golden(file: &str) -> Result<Decoded, Unreadable> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/images");
        super::decode(std::fs::read(folder.join(file)).unwrap(), PixelDtype::Uint8, Area::whole)
    }

    /// A line of `SUMS.tsv`.
    fn summed(file: String) -> (String, String, String) {
        let Ok(image) = golden(&file) else { return (file, "refused".into(), String::new()) };
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
            let image =
                super::decode(std::fs::read(folder.join(file)).unwrap(), options, Area::whole);
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
}
