//! Rows -> the bytes of a file.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use serde_json::{Map, Value as Json};

use crate::launch::exit_code as exit;
use crate::predict::error::Error;
use crate::predict::row::{Column, ColumnType, Value};

/// Rows of a row group of Parquet.
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
    /// That of a file, by how its name ends.
    ///
    /// # Errors
    ///
    /// It ends otherwise.
    pub(crate) fn of(path: &Path) -> Result<Self, Error> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "csv" => Ok(Self::Csv),
            "jsonl" => Ok(Self::Jsonl),
            "parquet" => Ok(Self::Parquet),
            _ => {
                let what = format!("`{}` ends in none of .csv, .jsonl, .parquet", path.display());
                let help = "the ending says in which form predictions are written";
                Err(Error::new(exit::REFUSED, what).with_help(help))
            }
        }
    }

    /// The whole file.
    ///
    /// # Errors
    ///
    /// Those of the libraries, none of which rows can cause.
    pub(crate) fn bytes(self, columns: &[Column], rows: &[Vec<Value>]) -> Result<Vec<u8>, Error> {
        let found = match self {
            Self::Csv => csv(columns, rows).map_err(|error| error.to_string()),
            Self::Jsonl => jsonl(columns, rows).map_err(|error| error.to_string()),
            Self::Parquet => parquet(columns, rows).map_err(|error| error.to_string()),
        };
        found.map_err(|why| Error::new(exit::BUG, format!("predictions cannot be written: {why}")))
    }
}

fn csv(columns: &[Column], rows: &[Vec<Value>]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    writer.write_record(columns.iter().map(|column| &column.name))?;
    for row in rows {
        writer.write_record(row.iter().map(ToString::to_string))?;
    }
    Ok(writer.into_inner()?)
}

fn jsonl(columns: &[Column], rows: &[Vec<Value>]) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for row in rows {
        let value = |value| serde_json::to_value(value).unwrap_or(Json::Null);
        let pairs = columns.iter().zip(row);
        let object: Map<String, Json> =
            pairs.map(|(column, cell)| (column.name.clone(), value(cell))).collect();
        serde_json::to_writer(&mut bytes, &object)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

fn parquet(columns: &[Column], rows: &[Vec<Value>]) -> Result<Vec<u8>, ParquetError> {
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
    let schema = Type::group_type_builder("predictions").with_fields(fields).build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), properties)?;
    for rows in rows.chunks(GROUP) {
        let mut group = writer.next_row_group()?;
        for (at, column) in columns.iter().enumerate() {
            let cells = rows.iter().map(|row| &row[at]);
            match column.kind {
                ColumnType::Text => write::<ByteArrayType>(&mut group, cells, |cell| match cell {
                    Value::Text(text) => Some(ByteArray::from(text.as_str())),
                    _ => None,
                })?,
                ColumnType::Integer => write::<Int64Type>(&mut group, cells, |cell| match cell {
                    Value::Integer(value) => Some(*value),
                    _ => None,
                })?,
                ColumnType::Number => write::<DoubleType>(&mut group, cells, Value::number)?,
            }
        }
        group.close()?;
    }
    writer.into_inner()
}

/// Writes the next column, of which cells without a value are null.
fn write<'a, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
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
        let text =
            |format: Format| String::from_utf8(format.bytes(&columns, &rows).unwrap()).unwrap();
        assert_eq!(
            text(Format::Csv),
            "path,row,\"p_a, \"\"b\"\"\",error\n\"x,y\",1,0.1,\nä,2,,bad\n"
        );
        assert_eq!(
            text(Format::Jsonl),
            "{\"path\":\"x,y\",\"row\":1,\"p_a, \\\"b\\\"\":0.1,\"error\":null}\n\
             {\"path\":\"ä\",\"row\":2,\"p_a, \\\"b\\\"\":null,\"error\":\"bad\"}\n"
        );
        let bytes = Format::Parquet.bytes(&columns, &rows).unwrap();
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
}
