//! The file `run-ID.wandb`: a header of W&B's, then records in the log format of `leveldb`.
//!
//! The file is divided into blocks of 32 KiB. A record is one chunk, or a first one, middle ones
//! and a last one where it crosses the end of a block. A chunk is the CRC-32 of its type and data,
//! the length of its data, its type and its data, little-endian; `leveldb` itself has CRC-32C
//! there. A rest of a block that is too short for a chunk is zeros.

use crc::{CRC_32_ISO_HDLC, Crc};

/// `:W&B`, 0xBEE1, and version 0.
pub(super) const HEADER: [u8; 7] = *b":W&B\xe1\xbe\0";
const BLOCK: usize = 32 * 1024;
/// Bytes of a chunk before its data.
const CHUNK_HEADER: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Divides records into chunks.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Length of the file.
    length: usize,
}

impl Chunks {
    /// For a file that has its header and nothing else.
    pub(super) fn new() -> Self {
        Self { length: HEADER.len() }
    }

    /// Appends the chunks of a record to `bytes`, which are to be appended to the file.
    pub(super) fn push(&mut self, mut record: &[u8], bytes: &mut Vec<u8>) {
        let mut is_first = true;
        loop {
            let mut room = BLOCK - self.length % BLOCK;
            if room < CHUNK_HEADER {
                bytes.resize(bytes.len() + room, 0);
                self.length += room;
                room = BLOCK;
            }
            let (data, rest) = record.split_at(record.len().min(room - CHUNK_HEADER));
            let kind = match (is_first, rest.is_empty()) {
                (true, true) => FULL,
                (true, false) => FIRST,
                (false, false) => MIDDLE,
                (false, true) => LAST,
            };
            bytes.extend_from_slice(&checksum(kind, data).to_le_bytes());
            bytes.extend_from_slice(&(data.len() as u16).to_le_bytes());
            bytes.push(kind);
            bytes.extend_from_slice(data);
            self.length += CHUNK_HEADER + data.len();
            if rest.is_empty() {
                return;
            }
            (record, is_first) = (rest, false);
        }
    }
}

/// The whole records of a file, up to the first that a killed process or a full disk has left
/// unfinished, or a power loss has damaged.
pub(super) fn records(file: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let mut begun: Option<Vec<u8>> = None;
    let mut at = HEADER.len();
    if !file.starts_with(&HEADER) {
        return records;
    }
    loop {
        let room = BLOCK - at % BLOCK;
        if room < CHUNK_HEADER {
            at += room;
        }
        let Some((kind, data)) = chunk(file, at) else { return records };
        at += CHUNK_HEADER + data.len();
        let record = match (kind, begun.take()) {
            (FULL | FIRST, None) => data.to_vec(),
            (MIDDLE | LAST, Some(begun)) => [&begun, data].concat(),
            _ => return records,
        };
        if matches!(kind, FULL | LAST) {
            records.push(record);
        } else {
            begun = Some(record);
        }
    }
}

/// Type and data of the chunk at an offset, if it is there and whole.
fn chunk(file: &[u8], at: usize) -> Option<(u8, &[u8])> {
    let (header, rest) = file.get(at..)?.split_first_chunk::<CHUNK_HEADER>()?;
    let [a, b, c, d, low, high, kind] = *header;
    let data = rest.get(..usize::from(u16::from_le_bytes([low, high])))?;
    (u32::from_le_bytes([a, b, c, d]) == checksum(kind, data)).then_some((kind, data))
}

fn checksum(kind: u8, data: &[u8]) -> u32 {
    static CRC_32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
    let mut digest = CRC_32.digest();
    digest.update(&[kind]);
    digest.update(data);
    digest.finalize()
}
