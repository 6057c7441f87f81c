//! The pages of a column: unpacked here, within limits, because a damaged page may claim any size.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;

use crate::parquet::header::{Header, Kind};

/// Largest page, unpacked: 256 MiB. Writers make pages of one.
const MAX_PAGE_BYTES: u64 = 1 << 28;
/// Numbers of a column for each byte of its file; as npz files may not claim a thousandfold of
/// their size.
const PER_BYTE: u64 = 256;

/// Encodings of numbers in pages.
#[derive(Clone, Copy)]
enum Packing {
    Plain,
    Snappy,
    Zstd,
}

/// The pages of one part of a column.
pub(super) struct Pages {
    file: Arc<File>,
    packing: Packing,
    /// Bytes that were not read yet.
    place: Range<u64>,
    /// The first of them, if it was looked at.
    next: Option<Header>,
    /// Most numbers that may still follow.
    left: u64,
}

impl Pages {
    /// The pages that `part` of `file`, of so many bytes, describes.
    pub(super) fn open(file: &Arc<File>, bytes: u64, part: &ColumnChunkMetaData) -> Result<Self> {
        let packing = match part.compression() {
            Compression::UNCOMPRESSED => Packing::Plain,
            Compression::SNAPPY => Packing::Snappy,
            Compression::ZSTD(_) => Packing::Zstd,
            other => {
                return Err(wrong(format!(
                    "is compressed with {other}: only snappy and zstd are supported"
                )));
            }
        };
        let start = part.dictionary_page_offset().unwrap_or(part.data_page_offset());
        let place = u64::try_from(start).ok().zip(u64::try_from(part.compressed_size()).ok());
        let place = place
            .and_then(|(start, length)| Some(start..start.checked_add(length)?))
            .filter(|place| place.end <= bytes)
            .ok_or_else(|| wrong("lies outside of the file".to_owned()))?;
        let left = bytes.saturating_mul(PER_BYTE);
        Ok(Self { file: file.clone(), packing, place, next: None, left })
    }

    /// The next page that holds something, of which nothing but its header is read.
    fn header(&mut self) -> Result<Option<Header>> {
        while self.next.is_none() && !self.place.is_empty() {
            let header = Header::read(&self.file, self.place.clone())?
                .ok_or_else(|| wrong("has a damaged page".to_owned()))?;
            self.place.start += header.length;
            match header.kind {
                Kind::Index => self.place.start += header.size,
                _ => self.next = Some(header),
            }
        }
        Ok(self.next)
    }

    /// The bytes of a page whose header was read.
    fn bytes(&mut self, header: &Header) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(header.size)?];
        self.file.read_exact_at(&mut bytes, self.place.start)?;
        self.pass(header);
        Ok(bytes)
    }

    fn pass(&mut self, header: &Header) {
        (self.place.start, self.next) = (self.place.start + header.size, None);
    }

    /// The page, unpacked, if it claims no more than it may.
    fn page(&mut self, kind: Kind, bytes: &[u8]) -> Result<Page> {
        self.count(kind.values())?;
        Ok(match kind {
            Kind::Data { values, encoding, definitions, repetitions } => Page::DataPage {
                buf: self.unpack(bytes)?.into(),
                num_values: values,
                encoding,
                def_level_encoding: definitions,
                rep_level_encoding: repetitions,
                statistics: None,
            },
            Kind::DataV2 {
                values,
                nulls,
                rows,
                encoding,
                definition_bytes,
                repetition_bytes,
                is_packed,
            } => {
                // Where numbers begin and end is never packed.
                let levels = definition_bytes as usize + repetition_bytes as usize;
                let (levels, numbers) = bytes
                    .split_at_checked(levels)
                    .ok_or_else(|| wrong("has a damaged page".to_owned()))?;
                let numbers = if is_packed { self.unpack(numbers)? } else { numbers.to_vec() };
                Page::DataPageV2 {
                    buf: [levels, &numbers].concat().into(),
                    num_values: values,
                    encoding,
                    num_nulls: nulls,
                    num_rows: rows,
                    def_levels_byte_len: definition_bytes,
                    rep_levels_byte_len: repetition_bytes,
                    is_compressed: false,
                    statistics: None,
                }
            }
            Kind::Dictionary { values, encoding, is_sorted } => {
                let buf = self.unpack(bytes)?;
                if u64::from(values) > buf.len() as u64 {
                    let what = format!("claims {values} distinct values in {} bytes", buf.len());
                    return Err(wrong(what));
                }
                Page::DictionaryPage { buf: buf.into(), num_values: values, encoding, is_sorted }
            }
            Kind::Index => return Err(wrong("has a damaged page".to_owned())),
        })
    }

    fn count(&mut self, numbers: u32) -> Result<()> {
        self.left = self.left.checked_sub(u64::from(numbers)).ok_or_else(|| {
            wrong(format!("claims {numbers} numbers in a page, too many for the file"))
        })?;
        Ok(())
    }

    fn unpack(&self, packed: &[u8]) -> Result<Vec<u8>> {
        let fails = |error: &dyn std::fmt::Display| wrong(format!("cannot be unpacked: {error}"));
        match self.packing {
            Packing::Plain => Ok(packed.to_vec()),
            // No numbers are no bytes.
            _ if packed.is_empty() => Ok(Vec::new()),
            Packing::Snappy => {
                // Three bytes copy 64 at most.
                let length = snap::raw::decompress_len(packed).map_err(|error| fails(&error))?;
                if length as u64 > MAX_PAGE_BYTES.min(packed.len() as u64 * 64) {
                    return Err(fails(&format!("{length} bytes are too many")));
                }
                snap::raw::Decoder::new().decompress_vec(packed).map_err(|error| fails(&error))
            }
            Packing::Zstd => {
                let mut unpacked = Vec::new();
                let source = ruzstd::decoding::StreamingDecoder::new(packed);
                let source = source.map_err(|error| fails(&error))?;
                source
                    .take(MAX_PAGE_BYTES + 1)
                    .read_to_end(&mut unpacked)
                    .map_err(|error| fails(&error))?;
                if unpacked.len() as u64 > MAX_PAGE_BYTES {
                    return Err(fails(&format!("it has more than {MAX_PAGE_BYTES} bytes")));
                }
                Ok(unpacked)
            }
        }
    }
}

fn wrong(what: String) -> ParquetError {
    ParquetError::General(what)
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(header) = self.header()? else { return Ok(None) };
        let bytes = self.bytes(&header)?;
        self.page(header.kind, &bytes).map(Some)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        let described = |header: Header| {
            let (rows, levels, is_dict) = match header.kind {
                Kind::Data { values, .. } => (None, Some(values), false),
                Kind::DataV2 { values, rows, .. } => (Some(rows), Some(values), false),
                Kind::Dictionary { .. } | Kind::Index => (None, None, true),
            };
            let [num_rows, num_levels] = [rows, levels].map(|n| n.map(|n| n as usize));
            PageMetadata { num_rows, num_levels, is_dict }
        };
        Ok(self.header()?.map(described))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some(header) = self.header()? {
            self.pass(&header);
        }
        Ok(())
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
