//! Rows -> a file, as they come: memory does not grow with their number.

use std::error::Error as Failure;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value as Json};

use crate::predict::error::Error;
use crate::predict::row::{Column, ColumnType, Rows, Value};
use crate::user_error::ExitCode;

/// Rows of a row group of Parquet, which are in memory before they are written.
const GROUP: usize = 1 << 16;

/// The form of a file of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A header line, then a line a row.
    Csv,
    /// A JSON object a line.
    Jsonl,
    /// Columns of optional values.
    Parquet,
}

impl Format {
    /// The format of a file, by its extension.
    pub(crate) fn of(path: &Path) -> Result<Self, Error> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "csv" => Ok(Self::Csv),
            "jsonl" => Ok(Self::Jsonl),
            "parquet" => Ok(Self::Parquet),
            _ => {
                let what = format!("`{}` ends in none of .csv, .jsonl, .parquet", path.display());
                let help = "choose one of these endings, which decides the format of the \
                            predictions";
                Err(Error::new(ExitCode::Refused, what).with_help(help))
            }
        }
    }
}

/// A file of rows that is being written.
pub(crate) struct RowWriter<W: Write + Send> {
    columns: Vec<Column>,
    body: Body<W>,
}

/// The file in its form.
enum Body<W: Write + Send> {
    Csv(Box<csv::Writer<W>>),
    Jsonl(BufWriter<W>),
    Parquet { file: Box<SerializedFileWriter<W>>, waiting: Rows },
}

type WriteResult<T> = Result<T, Box<dyn Failure + Send + Sync>>;

impl<W: Write + Send> RowWriter<W> {
    /// Begins a file.
    pub(crate) fn new(format: Format, columns: &[Column], to: W) -> Result<Self, Error> {
        let body = Body::begin(format, columns, to).map_err(unwritable)?;
        Ok(Self { columns: columns.to_vec(), body })
    }

    /// Adds rows.
    pub(crate) fn write(&mut self, rows: Rows) -> Result<(), Error> {
        self.body.write(&self.columns, rows).map_err(unwritable)
    }

    /// Writes the rest, and returns the underlying writer.
    pub(crate) fn finish(self) -> Result<W, Error> {
        self.body.finish(&self.columns).map_err(unwritable)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn unwritable(why: Box<dyn Failure + Send + Sync>) -> Error {
    Error::new(ExitCode::Storage, format!("predictions cannot be written: {why}"))
}

impl<W: Write + Send> Body<W> {
    fn begin(format: Format, columns: &[Column], to: W) -> WriteResult<Self> {
        Ok(match format {
            Format::Csv => {
                let mut file = csv::Writer::from_writer(to);
                file.write_record(columns.iter().map(|column| &column.name))?;
                Self::Csv(Box::new(file))
            }
            Format::Jsonl => Self::Jsonl(BufWriter::new(to)),
            Format::Parquet => {
                let properties = Arc::new(WriterProperties::builder().build());
                let file = SerializedFileWriter::new(to, schema(columns)?, properties)?;
                Self::Parquet { file: Box::new(file), waiting: Vec::new() }
            }
        })
    }

    fn write(&mut self, columns: &[Column], mut rows: Rows) -> WriteResult<()> {
        match self {
            Self::Csv(file) => {
                for row in rows {
                    file.write_record(row.iter().map(ToString::to_string))?;
                }
                file.flush()?;
            }
            Self::Jsonl(file) => {
                rows.iter().try_for_each(|row| line(file, columns, row))?;
                file.flush()?;
            }
            Self::Parquet { file, waiting } => {
                waiting.append(&mut rows);
                while waiting.len() >= GROUP {
                    let later = waiting.split_off(GROUP);
                    group(file, columns, waiting)?;
                    *waiting = later;
                }
            }
        }
        Ok(())
    }

    fn finish(self, columns: &[Column]) -> WriteResult<W> {
        Ok(match self {
            Self::Csv(file) => file.into_inner().map_err(|error| error.error().to_string())?,
            Self::Jsonl(file) => file.into_inner().map_err(|error| error.error().to_string())?,
            Self::Parquet { mut file, waiting } => {
                if !waiting.is_empty() {
                    group(&mut file, columns, &waiting)?;
                }
                file.into_inner()?
            }
        })
    }
}

/// A JSON object and a line end.
fn line(to: &mut impl Write, columns: &[Column], row: &[Value]) -> WriteResult<()> {
    let value = |value| serde_json::to_value(value).unwrap_or(Json::Null);
    let pairs = columns.iter().zip(row);
    let object: Map<String, Json> =
        pairs.map(|(column, cell)| (column.name.clone(), value(cell))).collect();
    serde_json::to_writer(&mut *to, &object)?;
    Ok(to.write_all(b"\n")?)
}

/// Columns of optional values.
fn schema(columns: &[Column]) -> Result<TypePtr, ParquetError> {
    let fields = columns.iter().map(|column| {
        let (physical, logical) = match column.kind {
            ColumnType::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            ColumnType::Integer => (Physical::INT64, None),
            ColumnType::Number => (Physical::DOUBLE, None),
        };
        let field = Type::primitive_type_builder(&column.name, physical);
        field.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build().map(Arc::new)
    });
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(Type::group_type_builder("predictions").with_fields(fields).build()?))
}

/// Rows as a row group of Parquet.
fn group<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    columns: &[Column],
    rows: &[Vec<Value>],
) -> Result<(), ParquetError> {
    let mut group = file.next_row_group()?;
    for (at, column) in columns.iter().enumerate() {
        let cells = rows.iter().map(|row| &row[at]);
        match column.kind {
            ColumnType::Text => write::<ByteArrayType, W>(&mut group, cells, |cell| match cell {
                Value::Text(text) => Some(ByteArray::from(text.as_str())),
                _ => None,
            })?,
            ColumnType::Integer => write::<Int64Type, W>(&mut group, cells, |cell| match cell {
                Value::Integer(value) => Some(*value),
                _ => None,
            })?,
            ColumnType::Number => write::<DoubleType, W>(&mut group, cells, Value::number)?,
        }
    }
    group.close().map(drop)
}

/// Writes the next column, of which cells without a value are null.
fn write<'a, T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: impl Iterator<Item = &'a Value>,
    value: impl Fn(&Value) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let values: Vec<Option<T::T>> = cells.map(value).collect();
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<T::T> = values.into_iter().flatten().collect();
    if let Some(mut column) = group.next_column()? {
        column.typed::<T>().write_batch(&values, Some(&levels), None)?;
        column.close()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;

    /// A whole file, to which rows were added so many at a time.
    fn bytes(format: Format, columns: &[Column], rows: &[Vec<Value>], at_once: usize) -> Vec<u8> {
        let mut file = RowWriter::new(format, columns, Vec::new()).unwrap();
        for rows in rows.chunks(at_once) {
            file.write(rows.to_vec()).unwrap();
        }
        file.finish().unwrap()
    }

    fn rows() -> (Vec<Column>, Vec<Vec<Value>>) {
        let column = |name: &str, kind| Column::new(name, kind);
        let columns = vec![
            column("path", ColumnType::Text),
            column("row", ColumnType::Integer),
            column("p_a, \"b\"", ColumnType::Number),
            column("error", ColumnType::Text),
        ];
        let one = vec![Value::text("x,y"), Value::Integer(1), Value::of(0.1), Value::Nothing];
        let two = vec![Value::text("ä"), Value::Integer(2), Value::Nothing, Value::text("bad")];
        (columns, vec![one, two])
    }

    #[test]
    fn a_file_is_of_the_form_that_its_name_ends_in() {
        let of = |name: &str| Format::of(Path::new(name)).ok();
        assert_eq!(of("a/x.CSV"), Some(Format::Csv));
        assert_eq!(of("x.jsonl"), Some(Format::Jsonl));
        assert_eq!(of("x.parquet"), Some(Format::Parquet));
        assert_eq!(of("x.json"), None);
    }

    #[test]
    fn rows_are_the_same_in_every_form() {
        let (columns, rows) = rows();
        let text = |format| String::from_utf8(bytes(format, &columns, &rows, 1)).unwrap();
        assert_eq!(
            text(Format::Csv),
            "path,row,\"p_a, \"\"b\"\"\",error\n\"x,y\",1,0.1,\nä,2,,bad\n"
        );
        assert_eq!(
            text(Format::Jsonl),
            "{\"path\":\"x,y\",\"row\":1,\"p_a, \\\"b\\\"\":0.1,\"error\":null}\n\
             {\"path\":\"ä\",\"row\":2,\"p_a, \\\"b\\\"\":null,\"error\":\"bad\"}\n"
        );
        let bytes = bytes(Format::Parquet, &columns, &rows, 1);
        let file = tempfile::NamedTempFile::new().unwrap();
        crate::files::write_atomic(file.path(), &bytes).unwrap();
        let file = std::fs::File::open(file.path()).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let found: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("path: \"x,y\"") && found[0].contains("0.1"), "{found:?}");
        assert!(found[1].contains("row: 2") && found[1].contains("error: \"bad\""), "{found:?}");
    }
    #[test]
    fn a_file_of_several_groups_is_the_same_however_rows_come() {
        let (columns, two) = rows();
        let rows: Vec<Vec<Value>> = two.into_iter().cycle().take(2 * GROUP + 3).collect();
        for format in [Format::Csv, Format::Jsonl, Format::Parquet] {
            let whole = bytes(format, &columns, &rows, rows.len());
            assert!(bytes(format, &columns, &rows, 4097) == whole, "{format:?}");
        }
    }
}
