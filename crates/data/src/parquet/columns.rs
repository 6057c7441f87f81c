//! The columns of a parquet file by the kinds of their values, and these one row group at a time: a
//! file of images may be larger than the memory.

use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;

use crate::error::Error;
use crate::parquet::table::{MOST_REPEATED, Table, append_bytes, append_nullable, words};
use crate::read::caught;

/// Kinds of values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Encoded images, as `datasets` writes them: structs `{bytes, path}`.
    Images,
    /// Bytes.
    Bytes,
    /// Whole numbers.
    Integers,
    /// Text.
    Words,
    /// Anything else.
    Other,
}

/// A column, or a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub kind: ColumnKind,
    /// Position of its values among the columns of the file.
    leaf: usize,
}

impl Table<'_> {
    /// The columns in their order, a struct as one.
    pub fn columns(&self) -> Vec<Column> {
        let mut found: Vec<Column> = Vec::new();
        let leaves = self.metadata.file_metadata().schema_descr().columns();
        for (leaf, column) in leaves.iter().enumerate() {
            let (name, kind) = match column.path().parts() {
                [name] => (name, plain_kind(column)),
                [name, field] if field == "bytes" && is_bytes(column) => (name, ColumnKind::Images),
                [name, ..] => (name, ColumnKind::Other),
                [] => continue,
            };
            match found.last_mut().filter(|last| last.name == *name) {
                None => found.push(Column { name: name.clone(), kind, leaf }),
                Some(last) if kind == ColumnKind::Images => (last.kind, last.leaf) = (kind, leaf),
                Some(_) => {}
            }
        }
        found
    }

    /// Number of row groups.
    pub fn groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    /// Nulls of `column` in a row group, where the file counts them.
    pub fn nulls(&self, column: &Column, group: usize) -> Option<u64> {
        let part = self.metadata.row_group(group).columns().get(column.leaf)?;
        part.statistics()?.null_count_opt()
    }

    /// Packed bytes of `column` in all rows.
    pub fn packed_bytes(&self, column: &Column) -> u64 {
        let groups = self.metadata.row_groups().iter();
        let parts = groups.filter_map(|group| group.columns().get(column.leaf));
        let sizes = parts.map(|part| part.compressed_size().max(0) as u64);
        sizes.fold(0, u64::saturating_add)
    }

    /// The text that the file has for `key`, beside its columns.
    pub fn key_value(&self, key: &str) -> Option<&str> {
        let pairs = self.metadata.file_metadata().key_value_metadata()?;
        pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
    }

    /// Most bytes of all rows of a column: a few distinct values may stand for very many.
    pub fn most_bytes(&self) -> u64 {
        self.bytes.saturating_mul(MOST_REPEATED)
    }

    /// The bytes of each row of a row group, or of its image, as long as so many are `left`; `None`
    /// where they are null.
    pub fn bytes_in(
        &self,
        column: &Column,
        group: usize,
        left: &mut u64,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.read_in(column, group, |reader, descriptor, rows| {
            append_bytes(reader, descriptor, rows, left)
        })
    }

    /// The number in each row of a row group; `None` where it is null.
    pub fn integers_in(&self, column: &Column, group: usize) -> Result<Vec<Option<i64>>, Error> {
        self.read_in(column, group, |reader, descriptor, rows| match reader {
            ColumnReader::Int32ColumnReader(from) => {
                append_nullable(from, descriptor, rows, |&value| Ok(i64::from(value)))
            }
            ColumnReader::Int64ColumnReader(from) => {
                append_nullable(from, descriptor, rows, |&value| Ok(value))
            }
            _ => {
                let what = format!("holds {}, not whole numbers", descriptor.physical_type());
                Err(ParquetError::General(what))
            }
        })
    }

    fn read_in<T>(
        &self,
        column: &Column,
        group: usize,
        append: impl FnOnce(ColumnReader, &ColumnDescriptor, &mut Vec<T>) -> Result<(), ParquetError>,
    ) -> Result<Vec<T>, Error> {
        let mut rows = Vec::new();
        let group = self.metadata.row_group(group);
        caught(|| self.read_group(column.leaf, group, &mut rows, append).map_err(words))
            .map_err(|what| self.format(format!("column `{}` {what}", column.name)))?;
        Ok(rows)
    }
}

/// Kind of a column that is no struct.
fn plain_kind(column: &ColumnDescriptor) -> ColumnKind {
    if column.max_rep_level() > 0 {
        return ColumnKind::Other;
    }
    match (column.physical_type(), column.logical_type_ref()) {
        (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)) => ColumnKind::Words,
        (PhysicalType::BYTE_ARRAY, None) => match column.converted_type() {
            ConvertedType::UTF8 => ColumnKind::Words,
            ConvertedType::NONE => ColumnKind::Bytes,
            _ => ColumnKind::Other,
        },
        (PhysicalType::INT32 | PhysicalType::INT64, Some(LogicalType::Integer(_))) => {
            ColumnKind::Integers
        }
        (PhysicalType::INT32 | PhysicalType::INT64, None) => match column.converted_type() {
            ConvertedType::DATE
            | ConvertedType::DECIMAL
            | ConvertedType::TIME_MILLIS
            | ConvertedType::TIME_MICROS
            | ConvertedType::TIMESTAMP_MILLIS
            | ConvertedType::TIMESTAMP_MICROS => ColumnKind::Other,
            _ => ColumnKind::Integers,
        },
        _ => ColumnKind::Other,
    }
}

fn is_bytes(column: &ColumnDescriptor) -> bool {
    column.max_rep_level() == 0 && column.physical_type() == PhysicalType::BYTE_ARRAY
}
