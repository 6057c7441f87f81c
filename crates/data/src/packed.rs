//! A file that is packed by gzip or zstd -> its contents, as they are read.

use std::error::Error as _;
use std::io::{self, BufRead, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Gzip,
    Zstd,
}

/// The first bytes of a file that is packed by gzip.
pub(crate) const GZIP: &[u8] = &[0x1f, 0x8b];
/// The first bytes of one that is packed by zstd.
pub(crate) const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

impl Packing {
    /// What the ending of a name says.
    pub(crate) fn of_name(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_ascii_lowercase();
        match ending.to_str()? {
            "gz" => Some(Self::Gzip),
            "zst" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// True if a file that begins with these bytes is packed so.
    pub(crate) fn is_of(self, bytes: &[u8]) -> bool {
        match self {
            Self::Gzip => bytes.starts_with(GZIP),
            Self::Zstd => bytes.starts_with(ZSTD) || is_skippable(bytes),
        }
    }

    /// The contents of `source`, of which several parts may follow each other. How large they are
    /// is the caller's to limit.
    pub(crate) fn reader<'a>(self, source: impl BufRead + 'a) -> Box<dyn Read + 'a> {
        match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(source)),
            Self::Zstd => Box::new(Frames { source, decoder: FrameDecoder::new(), is_open: false }),
        }
    }
}

/// True of a frame without contents, with which `pzstd` begins its files (RFC 8878, 3.1.2).
fn is_skippable(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The frames of a file packed by zstd, one after the other, each compared with the checksum that it
/// carries.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    /// True within a frame.
    is_open: bool,
}

impl<R: BufRead> Frames<R> {
    /// Begins the next frame with contents. Returns false where the file ends.
    fn open(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.is_open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut rest = (&mut self.source).take(length.into());
                    if io::copy(&mut rest, &mut io::sink())? < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(in_words(error)),
            }
        }
        Ok(false)
    }

    fn close(&mut self) -> io::Result<()> {
        self.is_open = false;
        let (written, found) =
            (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        if written.is_some() && written != found {
            let what = "the checksum of its contents is another than the one in it";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.is_open || self.open()? {
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(in_words)?;
            }
            let n = self.decoder.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            self.close()?;
        }
        Ok(0)
    }
}

/// A frame that cannot be read; one that is cut off is told by its kind.
fn in_words(error: FrameDecoderError) -> io::Error {
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_kind = inner.downcast_ref::<io::Error>().map(io::Error::kind);
        if inner_kind == Some(io::ErrorKind::UnexpectedEof) {
            return io::ErrorKind::UnexpectedEof.into();
        }
        cause = inner.source();
    }
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::skipped;

    /// `a,y` and `1,2` as lines, packed by `zstd` 1.5.
    const SMALL: [u8; 21] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x41, 0x00, 0x00, b'a', b',', b'y', b'\n', b'1', b',',
        b'2', b'\n', 0x5d, 0x44, 0xbe, 0x86,
    ];
    const CONTENTS: &[u8] = b"a,y\n1,2\n";

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut contents = Vec::new();
        Packing::Zstd.reader(bytes).read_to_end(&mut contents).map(|_| contents)
    }

    #[test]
    fn endings_and_first_bytes_tell_how_a_file_is_packed() {
        let of = |name: &str| Packing::of_name(Path::new(name));
        assert_eq!(of("a/x.csv.gz"), Some(Packing::Gzip));
        assert_eq!(of("x.jsonl.ZST"), Some(Packing::Zstd));
        assert_eq!([of("x.csv"), of("zst"), of("x.zstd")], [None; 3]);
        assert!(Packing::Zstd.is_of(&SMALL) && Packing::Zstd.is_of(&[0x50, 0x2a, 0x4d, 0x18]));
        assert!(!Packing::Zstd.is_of(GZIP) && !Packing::Gzip.is_of(&SMALL));
        assert!(!Packing::Zstd.is_of(CONTENTS) && !Packing::Zstd.is_of(b""));
    }

    #[test]
    fn all_frames_of_a_file_are_read_and_those_without_contents_are_skipped() {
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let file = [&skipped[..], &SMALL, &skipped, &SMALL, &skipped].concat();
        assert_eq!(unpacked(&file).unwrap(), CONTENTS.repeat(2));
        assert_eq!(unpacked(b"").unwrap(), b"");
        let cut = unpacked(&file[..file.len() - 1]).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
    }

    #[test]
    fn a_frame_that_is_cut_off_anywhere_is_an_error() {
        for length in 1..SMALL.len() {
            let error = unpacked(&SMALL[..length]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}: {error}");
        }
    }

    #[test]
    fn a_bit_that_turned_is_an_error_or_changes_nothing() {
        let mut refused = 0;
        for bit in 0..8 * SMALL.len() {
            let mut bytes = SMALL;
            bytes[bit / 8] ^= 1 << (bit % 8);
            match unpacked(&bytes) {
                // The size of the window may be another.
                Ok(contents) => assert_eq!(contents, CONTENTS, "bit {bit}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 150, "{refused}");
        let mut bytes = SMALL;
        bytes[9] = b'b';
        assert!(unpacked(&bytes).unwrap_err().to_string().contains("checksum"));
    }

    /// What a program makes of this input.
    fn packed_by(words: &[&str], input: &[u8]) -> Option<Vec<u8>> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            skipped::skipped(&format!("`{}`", words[0]));
            return None;
        };
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writing = std::thread::spawn(move || stdin.write_all(&input).unwrap());
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        assert!(output.status.success(), "{words:?}");
        Some(output.stdout)
    }

    #[test]
    fn what_the_programs_of_zstd_pack_is_unpacked() {
        let mut text = Vec::new();
        for row in 0..60_000_u32 {
            writeln!(text, "{row},{},{}", row.wrapping_mul(2_654_435_761), row % 7).unwrap();
        }
        for words in [
            &["zstd", "-q", "-c", "-1"][..],
            &["zstd", "-q", "-c", "-19", "--long=27"],
            &["zstd", "-q", "-c", "--no-check"],
            &["pzstd", "-q", "-c", "-"],
        ] {
            let Some(packed) = packed_by(words, &text) else { continue };
            assert!(Packing::Zstd.is_of(&packed) && packed.len() < text.len(), "{words:?}");
            assert!(unpacked(&packed).unwrap() == text, "{words:?}");
            let cut = unpacked(&packed[..packed.len() / 2]);
            assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{words:?}");
        }
    }
}
