//! Chunks of a PNG that are read, or left out, before a library decodes it.

use std::borrow::Cow;
use std::io::Read;

/// True if a PNG has more than 8 bits; its other chunks are not read.
pub(super) fn depth_of_png(mut file: impl Read) -> Option<bool> {
    /// Offset of the bit depth, in the first chunk.
    const DEPTH: usize = 24;
    let mut head = [0; DEPTH + 1];
    file.read_exact(&mut head).ok()?;
    Some(head[DEPTH] > 8)
}

/// A PNG without its colour profile, which no pixel needs, and which the library would inflate: up
/// to a quarter of a GiB from 256 KiB, for each picture of a pixel.
pub(super) fn without_profile(png: &[u8]) -> Cow<'_, [u8]> {
    const SIGNATURE: usize = 8;
    /// A length and a type before the data of a chunk, and a checksum behind it.
    const AROUND: usize = 12;
    let mut kept = Vec::new();
    let mut from = 0;
    let mut at = SIGNATURE;
    while let Some([a, b, c, d, kind @ ..]) = png.get(at..at + 8) {
        let end = (u32::from_be_bytes([*a, *b, *c, *d]) as usize).saturating_add(at + AROUND);
        match kind {
            b"iCCP" => {
                kept.extend_from_slice(&png[from..at]);
                from = end.min(png.len());
            }
            b"IDAT" => break,
            _ => {}
        }
        at = end;
    }
    if from == 0 {
        return png.into();
    }
    kept.extend_from_slice(&png[from..]);
    kept.into()
}
