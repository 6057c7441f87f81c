//! One parquet file: numbers, or lists of numbers, by the name of their column.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::schema::types::ColumnDescriptor;

use crate::error::Error;
use crate::parquet::footer;
use crate::parquet::pages::Pages;
use crate::read::{caught, not_finite, open_sized};

/// Rows that are read together.
const ROWS: usize = 4096;

/// Largest ratio of the bytes read from a file to its size.
pub(super) const MOST_REPEATED: u64 = 64;

/// The numbers of each row.
pub type Rows = Vec<Vec<f64>>;

/// An open file, of whose columns nothing is read yet.
pub struct Table<'a> {
    path: &'a Path,
    pub(super) bytes: u64,
    pub(super) file: Arc<File>,
    pub(super) metadata: ParquetMetaData,
}

impl<'a> Table<'a> {
    /// Opens the file at `path`, which messages call `what` and which should hold `expected`.
    pub fn open(path: &'a Path, what: &'static str, expected: &'static str) -> Result<Self, Error> {
        let (mut file, bytes) = open_sized(path, what, expected)?;
        let metadata = footer::check(&mut file).and_then(|()| {
            caught(|| ParquetMetaDataReader::new().parse_and_finish(&file).map_err(words))
        });
        let metadata = metadata.map_err(|error| Error::Format {
            path: path.into(),
            what: format!("it is not a parquet file: {error}"),
        })?;
        Ok(Self { path, bytes, file: Arc::new(file), metadata })
    }

    /// Error about the contents of this file.
    pub fn format(&self, what: String) -> Error {
        Error::Format { path: self.path.into(), what }
    }

    /// The first of `names` that is a column, and the numbers of its rows, one each or a list;
    /// `None` if none is.
    ///
    /// # Errors
    ///
    /// The column does not hold numbers, or one of them is null or not finite in 32 bits.
    pub fn rows<'n>(&self, names: &[&'n str]) -> Result<Option<(&'n str, Rows)>, Error> {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        let is = |column: &ColumnDescriptor, name: &str| {
            column.path().parts().first().is_some_and(|first| first == name)
        };
        let Some(name) = names.iter().find(|name| columns.iter().any(|column| is(column, name)))
        else {
            return Ok(None);
        };
        let fails = |what: String| self.format(format!("column `{name}` {what}"));
        let mut leaves = (0..columns.len()).filter(|&leaf| is(&columns[leaf], name));
        let (Some(leaf), None) = (leaves.next(), leaves.next()) else {
            return Err(fails("is a struct; expected numbers or lists of numbers".to_owned()));
        };
        caught(|| self.read(leaf).map_err(words)).map(|rows| Some((*name, rows))).map_err(fails)
    }

    /// The bytes of each row of a column of bytes or text, `None` where it is null; `None` if there
    /// is no such column. A field of a struct has several names: `["image", "bytes"]`.
    pub fn bytes(&self, column: &[&str]) -> Result<Option<Vec<Option<Vec<u8>>>>, Error> {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        let Some(leaf) = columns.iter().position(|leaf| leaf.path().parts() == column) else {
            return Ok(None);
        };
        let fails = |what: String| self.format(format!("column `{}` {what}", column.join(".")));
        caught(|| self.read_bytes(leaf).map_err(words)).map(Some).map_err(fails)
    }

    /// Names of the structs that have this field.
    pub fn structs_with(&self, field: &str) -> Vec<String> {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        let has_it = |leaf: &Arc<ColumnDescriptor>| match leaf.path().parts() {
            [column, name] if name == field => Some(column.clone()),
            _ => None,
        };
        columns.iter().filter_map(has_it).collect()
    }

    fn read_bytes(&self, leaf: usize) -> Result<Vec<Option<Vec<u8>>>, ParquetError> {
        let mut left = self.most_bytes();
        self.read_groups(leaf, |reader, column, rows| append_bytes(reader, column, rows, &mut left))
    }

    fn read(&self, leaf: usize) -> Result<Rows, ParquetError> {
        self.read_groups(leaf, |reader, column, rows| match reader {
            ColumnReader::BoolColumnReader(from) => {
                append(from, column, rows, |&v| f64::from(u8::from(v)))
            }
            ColumnReader::Int32ColumnReader(from) => append(from, column, rows, |&v| f64::from(v)),
            ColumnReader::Int64ColumnReader(from) => append(from, column, rows, |&v| v as f64),
            ColumnReader::FloatColumnReader(from) => append(from, column, rows, |&v| f64::from(v)),
            ColumnReader::DoubleColumnReader(from) => append(from, column, rows, |&v| v),
            _ => {
                let what = format!("holds {}, not numbers", column.physical_type());
                Err(ParquetError::General(what))
            }
        })
    }

    /// The rows of a column, which `append` reads of each row group.
    fn read_groups<T>(
        &self,
        leaf: usize,
        mut append: impl FnMut(ColumnReader, &ColumnDescriptor, &mut Vec<T>) -> Result<(), ParquetError>,
    ) -> Result<Vec<T>, ParquetError> {
        let mut rows = Vec::new();
        for group in self.metadata.row_groups() {
            self.read_group(leaf, group, &mut rows, &mut append)?;
        }
        Ok(rows)
    }

    /// Appends the rows of a column in `group`, which `append` reads.
    pub(super) fn read_group<T>(
        &self,
        leaf: usize,
        group: &RowGroupMetaData,
        rows: &mut Vec<T>,
        append: impl FnOnce(ColumnReader, &ColumnDescriptor, &mut Vec<T>) -> Result<(), ParquetError>,
    ) -> Result<(), ParquetError> {
        let part = group.column(leaf);
        let pages = Pages::open(&self.file, self.bytes, part)?;
        let column = part.column_descr_ptr();
        let before = rows.len();
        append(get_column_reader(column.clone(), Box::new(pages)), &column, rows)?;
        check_rows(rows.len() - before, group.num_rows())
    }
}

pub(super) fn check_rows(found: usize, claimed: i64) -> Result<(), ParquetError> {
    if usize::try_from(claimed)? == found {
        return Ok(());
    }
    let what = format!("holds {found} rows where the file says {claimed}");
    Err(ParquetError::General(what))
}

/// Appends all rows of a column of bytes, as long as so many bytes are `left`.
pub(super) fn append_bytes(
    reader: ColumnReader,
    column: &ColumnDescriptor,
    rows: &mut Vec<Option<Vec<u8>>>,
    left: &mut u64,
) -> Result<(), ParquetError> {
    match reader {
        ColumnReader::ByteArrayColumnReader(from) if column.max_rep_level() == 0 => {
            append_nullable(from, column, rows, |value| {
                *left = left.checked_sub(value.len() as u64).ok_or_else(|| {
                    ParquetError::General("claims more bytes than its file can hold".to_owned())
                })?;
                Ok(value.data().to_vec())
            })
        }
        _ => {
            let what = format!("holds {}, not bytes", column.physical_type());
            Err(ParquetError::General(what))
        }
    }
}

/// Appends all rows of `from`, which has one value in each row or none.
pub(super) fn append_nullable<T: DataType, V>(
    mut from: ColumnReaderImpl<T>,
    column: &ColumnDescriptor,
    rows: &mut Vec<Option<V>>,
    mut value_of: impl FnMut(&T::T) -> Result<V, ParquetError>,
) -> Result<(), ParquetError> {
    let full = column.max_def_level();
    loop {
        let mut definitions = Vec::new();
        let mut values = Vec::new();
        let (_, _, levels) = from.read_records(ROWS, Some(&mut definitions), None, &mut values)?;
        if levels == 0 {
            return Ok(());
        }
        let mut values = values.iter();
        for level in 0..levels {
            let is_there = definitions.get(level).is_none_or(|&definition| definition == full);
            let value = if is_there { values.next() } else { None };
            rows.push(value.map(&mut value_of).transpose()?);
        }
    }
}

/// Appends all rows of `from`. A row begins where a value repeats nothing, and a value that is null
/// is told from an empty list by its level: it is one short of a value's.
fn append<T: DataType>(
    mut from: ColumnReaderImpl<T>,
    column: &ColumnDescriptor,
    rows: &mut Rows,
    number: impl Fn(&T::T) -> f64,
) -> Result<(), ParquetError> {
    let full = column.max_def_level();
    let absent = if column.self_type().is_optional() { full - 1 } else { full };
    loop {
        let mut definitions = Vec::new();
        let mut repetitions = Vec::new();
        let mut values = Vec::new();
        let (_, _, levels) =
            from.read_records(ROWS, Some(&mut definitions), Some(&mut repetitions), &mut values)?;
        if levels == 0 {
            return Ok(());
        }
        let mut values = values.iter();
        for level in 0..levels {
            if repetitions.get(level).is_none_or(|&repeats| repeats == 0) {
                rows.push(Vec::new());
            }
            let definition = definitions.get(level).copied().unwrap_or(full);
            let value = if definition == full { values.next().map(&number) } else { None };
            let index = rows.len().saturating_sub(1);
            let Some(row) = rows.last_mut() else { continue };
            match value {
                Some(value) if !(value as f32).is_finite() => {
                    return Err(ParquetError::General(not_finite(value, index)));
                }
                None if definition == absent && absent < full => {
                    return Err(ParquetError::General(not_finite("null", index)));
                }
                value => row.extend(value),
            }
        }
    }
}

/// The error message, without the library's prefix for its kind.
pub(super) fn words(error: ParquetError) -> String {
    match error {
        ParquetError::General(what) => what,
        other => other.to_string(),
    }
}
