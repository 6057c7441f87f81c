//! The pages of a column: unpacked here, within limits, because a damaged page may claim any size.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

/// Largest page, unpacked: 256 MiB. Writers make pages of one.
const LARGEST: u64 = 1 << 28;
/// Numbers of a column for each byte of its file; as npz files may not claim a thousandfold of their size.
const PER_BYTE: u64 = 256;

/// How pages are packed.
#[derive(Clone, Copy)]
enum Packing {
    Plain,
    Snappy,
    Zstd,
}

/// The pages of one part of a column.
pub(super) struct Pages {
    packed: SerializedPageReader<File>,
    packing: Packing,
    /// How many more numbers there may be.
    left: u64,
}

impl Pages {
    /// The pages that `part` of `file`, of so many bytes, describes, for `rows` rows.
    ///
    /// # Errors
    ///
    /// They lie outside of the file, or are packed in another way.
    pub(super) fn open(
        file: &Arc<File>,
        bytes: u64,
        part: &ColumnChunkMetaData,
        rows: usize,
    ) -> Result<Self> {
        let packing = match part.compression() {
            Compression::UNCOMPRESSED => Packing::Plain,
            Compression::SNAPPY => Packing::Snappy,
            Compression::ZSTD(_) => Packing::Zstd,
            other => return Err(wrong(format!("is packed by {other}, not by snappy or zstd"))),
        };
        let start = part.dictionary_page_offset().unwrap_or(part.data_page_offset());
        let end = u64::try_from(start).ok().zip(u64::try_from(part.compressed_size()).ok());
        if end.and_then(|(start, length)| start.checked_add(length)).is_none_or(|end| end > bytes) {
            return Err(wrong("lies outside of the file".to_owned()));
        }
        // The library hands out pages as they are stored where it believes that they are not packed.
        let plain = part.clone().into_builder().set_compression(Compression::UNCOMPRESSED);
        let packed = SerializedPageReader::new(file.clone(), &plain.build()?, rows, None)?;
        Ok(Self { packed, packing, left: bytes.saturating_mul(PER_BYTE) })
    }

    /// `page`, unpacked, if it claims no more than it may.
    fn usable(&mut self, mut page: Page) -> Result<Page> {
        let numbers = u64::from(page.num_values());
        self.left = self.left.checked_sub(numbers).ok_or_else(|| {
            wrong(format!("claims {numbers} numbers in a page, too many for the file"))
        })?;
        match &mut page {
            Page::DataPage { buf, .. } => *buf = self.unpack(buf)?.into(),
            Page::DataPageV2 {
                buf,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed,
                ..
            } => {
                // Where numbers begin and end is never packed.
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                if levels > buf.len() {
                    return Err(wrong("has a damaged page".to_owned()));
                }
                if *is_compressed {
                    let numbers = self.unpack(&buf[levels..])?;
                    *buf = [&buf[..levels], &numbers].concat().into();
                }
            }
            Page::DictionaryPage { buf, num_values, .. } => {
                *buf = self.unpack(buf)?.into();
                if u64::from(*num_values) > buf.len() as u64 {
                    let what =
                        format!("claims {num_values} different numbers in {} bytes", buf.len());
                    return Err(wrong(what));
                }
            }
        }
        Ok(page)
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
                if length as u64 > LARGEST.min(packed.len() as u64 * 64) {
                    return Err(fails(&format!("{length} bytes are too many")));
                }
                snap::raw::Decoder::new().decompress_vec(packed).map_err(|error| fails(&error))
            }
            Packing::Zstd => {
                let mut unpacked = Vec::new();
                let source = ruzstd::decoding::StreamingDecoder::new(packed);
                let source = source.map_err(|error| fails(&error))?;
                source
                    .take(LARGEST + 1)
                    .read_to_end(&mut unpacked)
                    .map_err(|error| fails(&error))?;
                if unpacked.len() as u64 > LARGEST {
                    return Err(fails(&format!("it has more than {LARGEST} bytes")));
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
        let page = self.packed.get_next_page()?;
        page.map(|page| self.usable(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.packed.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.packed.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
