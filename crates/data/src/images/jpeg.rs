//! JPEG files, decoded with libjpeg-turbo's arithmetic: the pixels that Pillow and torchvision see,
//! bit for bit.
//!
//! Only what a crop needs is decoded: columns beside it are left out, and rows below it are not
//! even read, because the header is made to announce a lower image. Both keep a margin, since
//! chroma is interpolated between neighbours; so the kept pixels are exactly those of a whole
//! decode.

use libjpeg_turbo_rs::{Decoder, PixelFormat};

use crate::transform::{Area, Decoded, Pixels, give_buffer, take_buffer};

/// Columns beside a crop that its interpolated chroma may depend on: one sample, which covers at
/// most 4.
const MARGIN: usize = 4;

/// Frames of Huffman codes: baseline, extended, progressive.
const HUFFMAN_FRAMES: [u8; 3] = [0xC0, 0xC1, PROGRESSIVE];
const PROGRESSIVE: u8 = 0xC2;
const END_OF_IMAGE: u8 = 0xD9;
const START_OF_SCAN: u8 = 0xDA;

/// The part of a JPEG before its first pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// (height, width)
    pub(super) size: (usize, usize),
    /// Bits of a value.
    precision: u8,
    /// 1 (grey), 3 (colours) or 4 (CMYK).
    components: u8,
    /// Marker of the frame, which says how pixels are coded.
    frame: u8,
    /// True if each scan goes through all components from top to bottom.
    is_interleaved: bool,
    /// Rows of pixels that are coded together.
    rows_per_unit: usize,
    /// Place of the height's two bytes.
    height_at: usize,
    /// Place of the first coded pixels.
    data_at: usize,
}

impl Header {
    /// Reads the segments up to the first coded pixels; `None` if the bytes end before.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut frame = None;
        let mut at = 2;
        loop {
            let (marker, start) = next_marker(bytes, at)?;
            let length: [u8; 2] = bytes.get(start..start + 2)?.try_into().ok()?;
            let end = start + usize::from(u16::from_be_bytes(length)).max(2);
            let body = bytes.get(start + 2..end)?;
            match marker {
                // Tables, reserved codes and markers without a body.
                0xC4 | 0xC8 | 0xCC => {}
                0xC0..=0xCF => frame = Some(Self::of_frame(marker, start + 2, body)?),
                START_OF_SCAN => {
                    let is_interleaved = |header: &Self| body.first() == Some(&header.components);
                    return frame.map(|header| Self {
                        is_interleaved: is_interleaved(&header),
                        data_at: end,
                        ..header
                    });
                }
                _ => {}
            }
            at = end;
        }
    }

    fn of_frame(frame: u8, at: usize, body: &[u8]) -> Option<Self> {
        let &[precision, h1, h0, w1, w0, components, ..] = body else { return None };
        let sampling = body[6..].chunks_exact(3).map(|component| usize::from(component[1] & 0xF));
        let side = |high, low| usize::from(u16::from_be_bytes([high, low]));
        Some(Self {
            size: (side(h1, h0), side(w1, w0)),
            precision,
            components,
            frame,
            is_interleaved: false,
            rows_per_unit: 8 * sampling.max().unwrap_or(1).max(1),
            height_at: at + 1,
            data_at: 0,
        })
    }

    /// True if [`decode`] reads it: 8 bits, grey or three colours, Huffman codes. Others are rare.
    pub(super) fn is_common(&self) -> bool {
        self.is_plain() && matches!(self.components, 1 | 3)
    }

    /// True if [`decode_cmyk`] reads it: four inks.
    pub(super) fn has_inks(&self) -> bool {
        self.is_plain() && self.components == 4
    }

    fn is_plain(&self) -> bool {
        self.precision == 8 && HUFFMAN_FRAMES.contains(&self.frame)
    }

    /// True if the file reaches its end-of-image marker.
    ///
    /// The decoder fills missing rows with grey, so a truncated file would train as a half grey
    /// picture.
    pub(super) fn is_complete(&self, bytes: &[u8]) -> bool {
        // From the end, where it is: coded pixels hold no marker.
        bytes[self.data_at..].windows(2).rev().any(|pair| pair == [0xFF, END_OF_IMAGE])
    }

    /// True if the coded pixels of the upper rows are those of an image without the lower ones.
    fn is_cut_anywhere(&self) -> bool {
        self.is_interleaved && self.frame != PROGRESSIVE
    }
}

/// Decodes at least the rows and columns of `area` to RGB.
pub(super) fn decode(mut bytes: Vec<u8>, header: &Header, area: Area) -> Result<Decoded, String> {
    let failed = |error: libjpeg_turbo_rs::JpegError| error.to_string();
    let (height, width) = header.size;
    if header.is_cut_anywhere() {
        let units = (area.top + area.height).div_ceil(header.rows_per_unit) + 1;
        let rows = (units * header.rows_per_unit).min(height) as u16;
        bytes[header.height_at..header.height_at + 2].copy_from_slice(&rows.to_be_bytes());
    }
    let mut decoder = Decoder::new(&bytes).map_err(failed)?;
    decoder.set_output_format(PixelFormat::Rgb);
    // As libjpeg, and so Pillow and torchvision: a wrong code spoils a region, and is no error.
    decoder.set_lenient(true);
    let right = (area.left + area.width + MARGIN).min(width);
    let left = area.left.saturating_sub(MARGIN);
    if (left, right) != (0, width) {
        decoder.set_crop(left, right - left);
    }
    let mut data = take_buffer(decoder.output_buffer_size().map_err(failed)?);
    let found = decoder.decode_image_into(&mut data).map_err(failed)?;
    let pixels = Pixels::new(3, [found.height, found.width], data);
    // The decoder begins at a unit, at or left of what was asked.
    let decoded = right.checked_sub(found.width).map(|left| Decoded {
        pixels,
        top: 0,
        left,
        size: header.size,
    });
    decoded.filter(|decoded| decoded.holds(area)).ok_or_else(|| "its frames differ in size".into())
}

/// The EXIF data, from their own header on; `None` if there are none before the first pixels.
pub(super) fn exif(bytes: &[u8]) -> Option<&[u8]> {
    const APP1: u8 = 0xE1;
    let mut at = 2;
    loop {
        let (marker, start) = next_marker(bytes, at)?;
        let length: [u8; 2] = bytes.get(start..start + 2)?.try_into().ok()?;
        let end = start + usize::from(u16::from_be_bytes(length)).max(2);
        match marker {
            START_OF_SCAN => return None,
            APP1 => {
                let body = bytes.get(start + 2..end.min(bytes.len()))?;
                if let Some(exif) = body.strip_prefix(b"Exif\0\0") {
                    return Some(exif);
                }
            }
            _ => {}
        }
        at = end;
    }
}

/// Decodes an image of cyan, magenta, yellow and black, or of such whose colours are coded apart
/// from their brightness, to RGB, as Pillow: by Adobe's convention all four are stored inverted.
pub(super) fn decode_cmyk(bytes: &[u8], header: &Header) -> Result<Decoded, String> {
    let failed = |error: libjpeg_turbo_rs::JpegError| error.to_string();
    let mut decoder = Decoder::new(bytes).map_err(failed)?;
    decoder.set_output_format(PixelFormat::Cmyk);
    decoder.set_lenient(true);
    let mut inks = take_buffer(decoder.output_buffer_size().map_err(failed)?);
    let found = decoder.decode_image_into(&mut inks).map_err(failed)?;
    if (found.height, found.width) != header.size {
        return Err("its frames differ in size".to_owned());
    }
    let inks_of = inks.as_chunks::<4>().0.iter().map(|inks| inks.map(|ink| !ink));
    let data = inks_of.flat_map(rgb_of_inks).collect();
    give_buffer(inks);
    Ok(Decoded::whole(Pixels::new(3, header.size.into(), data)))
}

/// Red, green and blue of cyan, magenta, yellow and black, rounded as Pillow's `cmyk2rgb`.
pub(super) fn rgb_of_inks([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    let white = u32::from(255 - k);
    [c, m, y].map(|ink| {
        let product = u32::from(ink) * white + 128;
        (white - (((product >> 8) + product) >> 8).min(white)) as u8
    })
}

/// The next `FF xx` at or after `at` that begins a segment: `xx`, and the place after it.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += bytes.get(at..)?.iter().position(|&byte| byte == 0xFF)?;
        match *bytes.get(at + 1)? {
            // A second FF may be the marker's own; the others stand alone.
            0xFF => at += 1,
            0x00 | 0x01 | 0xD0..=0xD8 => at += 2,
            marker => return Some((marker, at + 2)),
        }
    }
}

#[cfg(test)]
mod tests {

    use libjpeg_turbo_rs::{Encoder, Subsampling};

    use super::*;
    use crate::rng::{Key, Purpose};
    use crate::skipped::shared;
    use crate::transform::golden::{checksum, picture};

    const SUBSAMPLINGS: [Subsampling; 6] = [
        Subsampling::S444,
        Subsampling::S422,
        Subsampling::S420,
        Subsampling::S440,
        Subsampling::S411,
        Subsampling::S441,
    ];

    fn decoded(bytes: &[u8], area: impl FnOnce((usize, usize)) -> Area) -> Decoded {
        let header = Header::read(bytes).unwrap();
        decode(bytes.to_vec(), &header, area(header.size)).unwrap()
    }

    /// The pixels of `area`.
    fn kept(image: &Decoded, area: Area) -> Vec<u8> {
        let row = |row| image.pixels.row(row - image.top, area.left - image.left, area.width);
        (area.top..area.top + area.height).flat_map(row).copied().collect()
    }

    #[test]
    fn of_frames_that_differ_in_size_no_other_pixels_are_given_than_those_asked_for() {
        let pixels = picture(3, 40, 50).data;
        let bytes = Encoder::new(&pixels, 50, 40, PixelFormat::Rgb).encode().unwrap();
        let at = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
        let mut refused = 0;
        for size in [(8, 9), (80, 90), (8, 90), (80, 9)] {
            // Another frame behind the first.
            let mut frame = bytes[at..at + 19].to_vec();
            frame[5..9].copy_from_slice(&[0, size.0 as u8, 0, size.1 as u8]);
            let bytes = [&bytes[..at + 19], &frame, &bytes[at + 19..]].concat();
            let header = Header::read(&bytes).unwrap();
            assert_eq!(header.size, size);
            for (top, left) in [(0, 0), (2, 3)] {
                let area = Area { top, left, height: size.0 - 2 * top, width: size.1 - 2 * left };
                match decode(bytes.clone(), &header, area) {
                    Ok(decoded) => assert!(decoded.holds(area), "{size:?}"),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > 0);
    }

    #[test]
    fn an_area_has_the_pixels_of_a_whole_decode() {
        let mut random = Key::new(1, Purpose::Generate, 0, 0).stream();
        for (height, width) in [(1, 1), (9, 50), (67, 49), (130, 171)] {
            let pixels = picture(3, height, width).data;
            for subsampling in SUBSAMPLINGS {
                let encoder = Encoder::new(&pixels, width, height, PixelFormat::Rgb);
                let encoder = encoder.quality(80).subsampling(subsampling);
                let plain = encoder.encode().unwrap();
                let progressive = encoder.progressive(true).encode().unwrap();
                let encoder = Encoder::new(&pixels, width, height, PixelFormat::Rgb);
                let restarting =
                    encoder.subsampling(subsampling).restart_blocks(2).encode().unwrap();
                for bytes in [plain, progressive, restarting] {
                    let whole = decoded(&bytes, Area::whole);
                    assert_eq!((whole.pixels.height, whole.pixels.width), (height, width));
                    for _ in 0..20 {
                        let mut part = |n: usize| {
                            let start = random.below(n as u64) as usize;
                            (start, 1 + random.below((n - start) as u64) as usize)
                        };
                        let ((top, height), (left, width)) = (part(height), part(width));
                        let area = Area { top, left, height, width };
                        let found = decoded(&bytes, |_| area);
                        assert_eq!(
                            kept(&found, area),
                            kept(&whole, area),
                            "{subsampling:?} {area:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_lies_below_an_area_is_not_read() {
        let (height, width) = (200, 64);
        let pixels = picture(3, height, width).data;
        let bytes = Encoder::new(&pixels, width, height, PixelFormat::Rgb).encode().unwrap();
        let area = Area { top: 3, left: 5, height: 20, width: 30 };
        let found = decoded(&bytes, |_| area);
        assert!(found.pixels.height < 60, "{} rows", found.pixels.height);
        assert_eq!(found.size, (height, width));
        let mut damaged = bytes.clone();
        let below = bytes.len() - 200;
        damaged[below..below + 100].fill(0);
        assert_eq!(decoded(&damaged, |_| area), found);
        assert_ne!(decoded(&damaged, Area::whole), decoded(&bytes, Area::whole));
    }

    #[test]
    fn pixels_are_those_of_pillow() {
        // Pillow 13.0.0 with libjpeg-turbo 3.2.0:
        // `checksum(numpy.asarray(image.convert("RGB")).ravel())`.
        let sums = [
            ("Landscape_1.jpg", 2_910_962_154),
            ("cat.jpg", 151_063_787),
            ("extraneous-data.jpg", 26_987_186),
            ("flower.jpg", 1_500_900_934),
            ("grayscale_16x24_sampling2x2.jpg", 78_156_333),
            ("hopper.jpg", 4_166_108_255),
            ("hopper_16bit_qtables.jpg", 3_933_874_838),
            ("hopper_gray.jpg", 986_771_250),
            ("invalid-exif.jpg", 3_591_694_163),
            ("jpeg_ff00_header.jpg", 2_575_440_394),
            ("jpg-progressive.jpg", 433_912_671),
            ("jpg-size-17x17.jpg", 34_430_562),
            ("jpg-size-1x1.jpg", 498),
            ("junk_jpeg_header.jpg", 597_843_151),
            ("partial_progressive.jpg", 141_011),
            ("pil_sample_rgb.jpg", 68_488_837),
            ("progressive3.jpg", 3_751_873_236),
            ("restarts.jpg", 492_164_635),
            ("rgb.jpg", 3_853_209_470),
            ("truncated_app14.jpg", 68_488_837),
        ];
        let Some(folder) = shared("data/odd-images/decodable") else { return };
        let found = sums.map(|(file, _)| {
            let bytes = std::fs::read(folder.join(file)).unwrap();
            (file, checksum(&decoded(&bytes, Area::whole).pixels.data))
        });
        assert_eq!(found, sums);
    }
}
