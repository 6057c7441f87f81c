//! Reads a whole file of the user's, safely: never blocks on a FIFO, never maps memory that may
//! shrink; panics of decoders, which some damaged files cause, are errors.

use std::any::Any;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::Error;
use crate::error::NotDownloaded;
use crate::packed::{GZIP, Packing, ZSTD};

/// Largest encoded file that is read: 1 GiB.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Longest line of a text: 1 MiB.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Opens a regular file. A FIFO, socket or device is an error at once.
pub fn open(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer that may never come.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() < MAX_POINTER_BYTES {
        let mut first = [0; LFS_POINTER.len()];
        if file.read_exact_at(&mut first, 0).is_ok() && first == *LFS_POINTER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, NotDownloaded));
        }
    }
    Ok(file)
}

/// Opens a regular file that messages call `what` and that should hold `expected`, and says its
/// length in bytes.
pub(crate) fn open_sized(
    path: &Path,
    what: &'static str,
    expected: &'static str,
) -> Result<(File, u64), Error> {
    let failed = Error::reading(what, path, expected);
    let file = open(path).map_err(&failed)?;
    let bytes = file.metadata().map_err(&failed)?.len();
    Ok((file, bytes))
}

/// Describes a `value` that is not finite, in `row` of a column or array, counted from 0.
pub(crate) fn not_finite(value: impl Display, row: usize) -> String {
    format!("holds {value} in row {row}, not a finite 32-bit number")
}

/// Beginning of the pointer that git-lfs leaves in place of a large file.
const LFS_POINTER: &[u8; 42] = b"version https://git-lfs.github.com/spec/v1";
/// Longest file of these.
const MAX_POINTER_BYTES: u64 = 1024;

/// The bytes of a text without the byte order mark that editors of Windows put before it.
pub(crate) fn without_mark(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        drop(bytes.drain(..3));
    }
    bytes
}

/// The file's bytes. A device error (EIO) is tried once more.
pub fn whole(path: &Path) -> io::Result<Vec<u8>> {
    match once(path) {
        Err(error) if error.raw_os_error() == Some(libc::EIO) => once(path),
        result => result,
    }
}

/// A text of which no line is longer than 1 MiB: a reader of lines needs no more memory.
fn of_short_lines(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    match bytes.split(|&byte| byte == b'\n').position(|line| line.len() > MAX_LINE_BYTES) {
        None => Ok(bytes),
        Some(before) => {
            let message = format!("line {} has more than {MAX_LINE_BYTES} bytes", before + 1);
            Err(io::Error::new(io::ErrorKind::InvalidData, message))
        }
    }
}

/// The bytes of a table, as of [`text`], of which no line is longer than 1 MiB.
pub fn table(what: &'static str, path: &Path, expected: &'static str) -> Result<Vec<u8>, Error> {
    let bytes = text(what, path, expected)?;
    of_short_lines(bytes).map_err(Error::reading(what, path, expected))
}

/// The bytes of a text, unpacked if its name ends in `.gz` or `.zst`, and without a byte order
/// mark. Messages call the file `what`.
pub(crate) fn text(
    what: &'static str,
    path: &Path,
    expected: &'static str,
) -> Result<Vec<u8>, Error> {
    let mut bytes = whole(path).map_err(Error::reading(what, path, expected))?;
    if let Some(packing) = Packing::of_name(path).filter(|packing| packing.is_of(&bytes)) {
        let contents = unpacked(packing, &bytes, MAX_FILE_BYTES);
        bytes = contents.map_err(Error::reading(what, path, expected))?;
    }
    if let Some((what, help)) = other_form(&bytes) {
        let path = path.to_owned();
        let what = what.to_owned();
        return Err(Error::WithHelp { path, what, help: help.to_owned() });
    }
    Ok(without_mark(bytes))
}

/// The contents of a packed file, at most `limit` bytes.
fn unpacked(packing: Packing, bytes: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    let mut reader = packing.reader(bytes).take(limit + 1);
    let read = caught(|| Ok(reader.read_to_end(&mut contents)));
    read.map_err(|panic| io::Error::new(io::ErrorKind::InvalidData, panic))??;
    drop(reader);
    if contents.len() as u64 > limit {
        let message = format!("it unpacks to more than the {limit} bytes that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(contents)
}

/// The format of a file that is no table of text, and a command that converts it to one.
fn other_form(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const UNPACK: &str = "unpack it, or pack it with gzip (`.gz`) or zstd (`.zst`)";
    const FORMS: [(&[u8], &str, &str); 12] = [
        (
            b"version https://git-lfs.github.com/spec/",
            "this is a pointer of git-lfs, not the file itself",
            "`git lfs pull` fetches the file",
        ),
        (
            GZIP,
            "this is packed by gzip, which its name does not say",
            "let its name end in `.gz`, as in `table.csv.gz`, or unpack it",
        ),
        (
            b"PK\x03\x04",
            "this is a workbook of Excel or another zip archive, not a table of text",
            "save the sheet as CSV (UTF-8); in Python, \
             `pandas.read_excel(FILE).to_csv(\"table.csv\", index=False)`",
        ),
        (
            &[0xd0, 0xcf, 0x11, 0xe0],
            "this is a workbook of Excel, not a table of text",
            "save the sheet as CSV (UTF-8); in Python, \
             `pandas.read_excel(FILE).to_csv(\"table.csv\", index=False)`",
        ),
        (
            b"PAR1\x15",
            "this is a parquet file, not a table of text",
            "`data.name = \"jsonl\"` reads it as it is, with `data.inputs` and `data.target`",
        ),
        (
            b"ARROW1\0",
            "this is a file of Arrow (Feather), not a table of text",
            "in Python, `pandas.read_feather(FILE).to_csv(\"table.csv\", index=False)`",
        ),
        (
            b"SQLite format 3",
            "this is a database of SQLite, not a table of text",
            "in sqlite3, `.mode csv` and `.output table.csv` before a query write one",
        ),
        (b"BZh91AY", "this is packed by bzip2", UNPACK),
        (&[0xfd, b'7', b'z', b'X', b'Z', 0], "this is packed by xz", UNPACK),
        (
            ZSTD,
            "this is packed by zstd, which its name does not say",
            "let its name end in `.zst`, as in `table.csv.zst`, or unpack it",
        ),
        (&[0xff, 0xfe], "this is text in UTF-16", "save it as UTF-8"),
        (&[0xfe, 0xff], "this is text in UTF-16", "save it as UTF-8"),
    ];
    let form = FORMS.into_iter().find(|(first, ..)| bytes.starts_with(first));
    form.map(|(_, what, help)| (what, help))
}

fn once(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > MAX_FILE_BYTES {
        let message = format!("{length} bytes are more than the {MAX_FILE_BYTES} that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // The file may grow while it is read.
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Runs `work`, which calls a library, and turns a panic into an error.
pub fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panic_message(&*panic)))
}

/// The message of a caught panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;
    use crate::user_error::UserError;

    #[test]
    fn a_table_that_is_no_text_is_called_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            crate::files::write_atomic(&path, bytes).unwrap();
            table("the table", &path, "a table")
        };
        let check = |bytes: &[u8], what: &str, help: &str| {
            let error = read("x.csv", bytes).unwrap_err();
            assert!(error.to_string().ends_with(what), "{error}");
            assert!(error.help().unwrap().contains(help), "{:?}", error.help());
        };
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        check(pointer, "`: it is a git-lfs pointer, not the file itself", "git lfs pull");
        check(b"PAR1\x15", "this is a parquet file, not a table of text", "jsonl");
        check(b"PK\x03\x04\x14", "zip archive, not a table of text", "read_excel");
        check(&[0xff, 0xfe, b'a', 0], "this is text in UTF-16", "UTF-8");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, b"\xEF\xBB\xBFa,y\n1,2\n").unwrap();
        let packed = packed.finish().unwrap();
        check(&packed, "packed by gzip, which its name does not say", "`.gz`");
        assert_eq!(read("x.csv.gz", &packed).unwrap(), b"a,y\n1,2\n");
        assert_eq!(read("y.csv.gz", b"a,y\n").unwrap(), b"a,y\n", "its name is wrong");
        let cut = read("z.csv.gz", &packed[..packed.len() - 9]).unwrap_err();
        assert!(cut.to_string().contains("z.csv.gz`"), "{cut}");
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let packed = ruzstd::encoding::compress_to_vec(&b"\xEF\xBB\xBFa,y\n1,2\n"[..], level);
        check(&packed, "packed by zstd, which its name does not say", "`.zst`");
        assert_eq!(read("x.csv.zst", &packed).unwrap(), b"a,y\n1,2\n");
        assert_eq!(read("y.csv.zst", b"a,y\n").unwrap(), b"a,y\n", "its name is wrong");
        let cut = read("z.csv.zst", &packed[..packed.len() - 5]).unwrap_err();
        assert!(cut.to_string().contains("z.csv.zst`"), "{cut}");
        let gzip = read("x.csv.zst", GZIP).unwrap_err();
        assert!(gzip.to_string().contains("packed by gzip"), "{gzip}");
        check(b"BZh91AY", "this is packed by bzip2", "`.zst`");
    }

    #[test]
    fn a_small_file_that_unpacks_to_too_much_is_refused() {
        const BLOCK: usize = 128 << 10;
        // Blocks of one byte that is repeated, none of them the last.
        let block = [&(((BLOCK as u32) << 3) | 0b010).to_le_bytes()[..3], b"x"].concat();
        let bomb = [ZSTD, &[0x00, 0x58], &block.repeat(4096)].concat();
        assert!(bomb.len() < 20_000, "{}", bomb.len());
        let gzip = {
            let level = flate2::Compression::best();
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), level);
            std::io::Write::write_all(&mut packed, &vec![b'x'; 4 << 20]).unwrap();
            packed.finish().unwrap()
        };
        for (packing, bytes) in [(Packing::Zstd, bomb), (Packing::Gzip, gzip)] {
            let error = unpacked(packing, &bytes, 2 << 20).unwrap_err();
            let expected = "it unpacks to more than the 2097152 bytes that are read";
            assert_eq!(error.to_string(), expected, "{packing:?}");
        }
    }

    #[test]
    fn a_fifo_or_device_is_an_error_and_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("pipe.jpg");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        assert!(whole(&fifo).unwrap_err().to_string().contains("not a regular file"));
        assert_refused(whole(Path::new("/dev/zero")), "not a regular file");
        assert_refused(whole(dir.path()), "not a regular file");
    }

    #[test]
    fn what_git_lfs_left_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:1f\nsize 9085657\n";
        crate::files::write_atomic(&path, pointer.as_bytes()).unwrap();
        let error =
            Error::reading("the tokenizer", &path, "a tokenizer.json")(whole(&path).unwrap_err());
        assert!(error.help().unwrap().starts_with("run `git lfs pull`"), "{error}");
        crate::files::write_atomic(&path, b"version 1").unwrap();
        assert_eq!(whole(&path).unwrap(), b"version 1");
    }
}
