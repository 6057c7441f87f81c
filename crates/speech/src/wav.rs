//! WAV files as others write them: of unknown length, or with chunks that are not padded.
//!
//! Only the format and the samples count, so only they are handed on; whatever stands in other
//! chunks, well formed or not, is passed over.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use symphonia::core::io::MediaSource;

/// Lengths from here on mean "as long as it lasts": what a program writes that cannot go back to
/// the header of a pipe (`0xFFFFFFFF` by ffmpeg, `0x7FFFFFFF` less a header by `SoX`, `0x80000000`
/// by arecord).
const UNKNOWN: u32 = 0x7FFF_0000;
/// Longest format that is handed on.
const MAX_FORMAT: u32 = 4096;

/// A WAV file of its format and its samples alone.
pub(crate) struct Wav {
    head: Vec<u8>,
    file: File,
    /// Offset of the samples in the file, and their bytes.
    start: u64,
    length: u64,
    position: u64,
}

impl Wav {
    /// `None` if the file is none, or one whose chunks are not found; it is then where it was.
    pub(crate) fn open(file: &mut File) -> io::Result<Option<Self>> {
        let found = Self::find(file);
        file.rewind()?;
        match found {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            found => found,
        }
    }

    fn find(file: &mut File) -> io::Result<Option<Self>> {
        let size = file.metadata()?.len();
        let mut first = [0; 12];
        file.read_exact(&mut first)?;
        if &first[..4] != b"RIFF" || &first[8..] != b"WAVE" {
            return Ok(None);
        }
        let mut kept = Vec::new();
        let mut at = first.len() as u64;
        loop {
            let (name, declared) = chunk(file, at)?;
            let body = at + 8;
            match &name {
                b"data" => {
                    let rest = size.saturating_sub(body);
                    let is_open = declared >= UNKNOWN && u64::from(declared) > rest;
                    let length = if is_open { rest } else { u64::from(declared) };
                    let Ok(shown) = u32::try_from(length) else { return Ok(None) };
                    kept.extend_from_slice(b"data");
                    kept.extend_from_slice(&shown.to_le_bytes());
                    let riff = shown.saturating_add(4 + kept.len() as u32);
                    let head = [&b"RIFF"[..], &riff.to_le_bytes(), b"WAVE", &kept].concat();
                    let file = file.try_clone()?;
                    let length = length.min(rest);
                    return Ok(Some(Self { head, file, start: body, length, position: 0 }));
                }
                b"fmt " | b"fact" if declared <= MAX_FORMAT => {
                    let mut bytes = vec![0; declared as usize];
                    file.read_exact(&mut bytes)?;
                    kept.extend_from_slice(&name);
                    kept.extend_from_slice(&declared.to_le_bytes());
                    kept.extend_from_slice(&bytes);
                    kept.extend_from_slice(&[0][..bytes.len() % 2]);
                }
                _ => {}
            }
            at = body + u64::from(declared);
            // A chunk of odd length is followed by a byte, which some programs leave out.
            if declared % 2 == 1 && !chunk(file, at).is_ok_and(|(name, _)| is_name(name)) {
                at += 1;
            }
        }
    }
}

/// Name and length of the chunk at a place.
fn chunk(file: &mut File, at: u64) -> io::Result<([u8; 4], u32)> {
    file.seek(SeekFrom::Start(at))?;
    let mut name = [0; 4];
    let mut length = [0; 4];
    file.read_exact(&mut name)?;
    file.read_exact(&mut length)?;
    Ok((name, u32::from_le_bytes(length)))
}

fn is_name(name: [u8; 4]) -> bool {
    name.iter().all(|&byte| byte.is_ascii_graphic() || byte == b' ')
}

impl Read for Wav {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let head = self.head.len() as u64;
        let read =
            if let Some(rest) = self.head.get(self.position as usize..).filter(|r| !r.is_empty()) {
                let n = rest.len().min(to.len());
                to[..n].copy_from_slice(&rest[..n]);
                n
            } else {
                let at = self.position - head;
                let left = self.length.saturating_sub(at).min(to.len() as u64) as usize;
                self.file.seek(SeekFrom::Start(self.start + at))?;
                self.file.read(&mut to[..left])?
            };
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for Wav {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let end = self.head.len() as u64 + self.length;
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::End(by) => end.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

impl MediaSource for Wav {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.head.len() as u64 + self.length)
    }
}
