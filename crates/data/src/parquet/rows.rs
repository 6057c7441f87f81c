//! The rows of a parquet file as JSON objects, one a line, for what reads JSON lines.

use std::path::Path;

use jiff::Timestamp;
use parquet::basic::{LogicalType, TimeUnit};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::PageReader;
use parquet::data_type::Decimal;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::parquet::pages::Pages;
use crate::parquet::table::{MOST_REPEATED, Table, check_rows, words};
use crate::read::{caught, open};

/// The first bytes of a parquet file.
const MAGIC: &[u8; 4] = b"PAR1";
/// Text that a file may become, however small it is.
const SMALL: u64 = 16 << 20;

/// The rows of the parquet file at `path` as JSON objects, one a line, without columns of bytes;
/// `None` if it is another file. Dates and times are words such as `2024-03-01 10:20:30`, in UTC;
/// numbers that are not finite are words, too.
///
/// # Errors
///
/// The file is damaged, or packed in a way that is not read.
pub fn json_lines(
    path: &Path,
    what: &'static str,
    expected: &'static str,
) -> std::result::Result<Option<Vec<u8>>, Error> {
    let mut first = [0; MAGIC.len()];
    let is_parquet =
        open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut first));
    if is_parquet.is_err() || first != *MAGIC {
        return Ok(None);
    }
    let table = Table::open(path, what, expected)?;
    caught(|| lines(&table).map_err(words)).map(Some).map_err(|why| table.format(why))
}

fn lines(table: &Table<'_>) -> Result<Vec<u8>> {
    let columns = table.metadata.file_metadata().schema_descr().columns();
    // The library reads these as plain numbers.
    let in_nanoseconds: Vec<&str> = columns
        .iter()
        .filter(|column| match column.logical_type_ref() {
            Some(LogicalType::Timestamp(time)) => time.unit == TimeUnit::NANOS,
            _ => false,
        })
        .filter_map(|column| column.path().parts().first().map(String::as_str))
        .collect();
    let most = table.bytes.saturating_mul(MOST_REPEATED).max(SMALL);
    let mut text = Vec::new();
    for metadata in table.metadata.row_groups() {
        let group = Group { table, metadata };
        let mut n = 0;
        for row in RowIter::from_row_group(None, &group)? {
            let mut object = object(row?);
            for name in &in_nanoseconds {
                if let Some(value) = object.get_mut(*name)
                    && let Some(nanoseconds) = value.as_i64()
                {
                    *value = time(Timestamp::from_nanosecond(nanoseconds.into()));
                }
            }
            serde_json::to_writer(&mut text, &object)
                .map_err(|error| ParquetError::General(error.to_string()))?;
            text.push(b'\n');
            if text.len() as u64 > most {
                let what = "claims more bytes than its file can hold".to_owned();
                return Err(ParquetError::General(what));
            }
            n += 1;
        }
        check_rows(n, metadata.num_rows())?;
    }
    Ok(text)
}

/// Rows that are stored together.
struct Group<'a> {
    table: &'a Table<'a>,
    metadata: &'a RowGroupMetaData,
}

impl RowGroupReader for Group<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, i: usize) -> Result<Box<dyn PageReader>> {
        let pages = Pages::open(&self.table.file, self.table.bytes, self.metadata.column(i))?;
        Ok(Box::new(pages))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

fn object(row: Row) -> Map<String, Value> {
    let columns = row.into_columns().into_iter();
    columns.filter_map(|(name, field)| Some((name, value(&field)?))).collect()
}

/// A value as JSON; `None` for bytes.
fn value(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::from(*value),
        Field::Byte(value) => Value::from(*value),
        Field::Short(value) => Value::from(*value),
        Field::Int(value) | Field::TimeMillis(value) => Value::from(*value),
        Field::Long(value) | Field::TimeMicros(value) => Value::from(*value),
        Field::UByte(value) => Value::from(*value),
        Field::UShort(value) => Value::from(*value),
        Field::UInt(value) => Value::from(*value),
        Field::ULong(value) => Value::from(*value),
        Field::Float16(value) => number(f64::from(value.to_f32())),
        Field::Float(value) => number(f64::from(*value)),
        Field::Double(value) => number(*value),
        Field::Decimal(value) => number(decimal(value)),
        Field::Str(value) => Value::from(value.as_str()),
        Field::Bytes(_) => return None,
        Field::Date(days) => {
            let seconds = i64::from(*days) * 24 * 60 * 60;
            written(Timestamp::from_second(seconds), "%F")
        }
        Field::TimestampMillis(value) => time(Timestamp::from_millisecond(*value)),
        Field::TimestampMicros(value) => time(Timestamp::from_microsecond(*value)),
        Field::Group(row) => Value::Object(object(row.clone())),
        Field::ListInternal(list) => list.elements().iter().filter_map(value).collect(),
        Field::MapInternal(map) => {
            let entry = |(key, of): &(Field, Field)| {
                let key = value(key)?;
                Some((key.as_str().map_or_else(|| key.to_string(), str::to_owned), value(of)?))
            };
            Value::Object(map.entries().iter().filter_map(entry).collect())
        }
    })
}

/// The number, or the word that Python's `json.dumps` writes for one that is not finite.
fn number(value: f64) -> Value {
    let word = || {
        let infinite = if value > 0.0 { "Infinity" } else { "-Infinity" };
        if value.is_nan() { "NaN" } else { infinite }
    };
    serde_json::Number::from_f64(value).map_or_else(|| Value::from(word()), Value::Number)
}

fn decimal(value: &Decimal) -> f64 {
    let negative = value.data().first().is_some_and(|byte| byte & 0x80 != 0);
    let start = if negative { -1.0 } else { 0.0 };
    let unscaled = value.data().iter().fold(start, |sum, byte| sum * 256.0 + f64::from(*byte));
    unscaled / 10f64.powi(value.scale())
}

fn time(at: std::result::Result<Timestamp, jiff::Error>) -> Value {
    let has_part = at.as_ref().is_ok_and(|at| at.subsec_nanosecond() != 0);
    written(at, if has_part { "%F %T%.f" } else { "%F %T" })
}

/// A time in this format; null if it is in no year from -9999 to 9999.
fn written(at: std::result::Result<Timestamp, jiff::Error>, format: &str) -> Value {
    at.map_or(Value::Null, |at| Value::from(at.strftime(format).to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use serde_json::json;

    use super::*;
    use crate::files;

    const SCHEMA: &str = "message rows {
        REQUIRED INT64 id;
        OPTIONAL DOUBLE price;
        REQUIRED BYTE_ARRAY city (UTF8);
        REQUIRED INT32 day (DATE);
        REQUIRED INT64 at (TIMESTAMP(NANOS,true));
        REQUIRED INT64 then (TIMESTAMP_MILLIS);
        REQUIRED INT32 cost (DECIMAL(5,2));
        REQUIRED BYTE_ARRAY picture;
        REQUIRED group messages (LIST) { REPEATED group list { REQUIRED group element {
            REQUIRED BYTE_ARRAY role (UTF8);
        } } }
    }";

    /// A file of two rows.
    fn write(path: &Path) {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties = Arc::new(WriterProperties::builder().build());
        let file = std::fs::File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let text = |words: &[&str]| -> Vec<ByteArray> {
            words.iter().map(|word| ByteArray::from(*word)).collect()
        };
        let mut at = 0;
        while let Some(mut column) = group.next_column().unwrap() {
            let all: (Option<&[i16]>, Option<&[i16]>) = (None, None);
            match at {
                0 => drop(column.typed::<Int64Type>().write_batch(&[1, 2], all.0, all.1)),
                1 => {
                    let typed = column.typed::<DoubleType>();
                    drop(typed.write_batch(&[f64::NAN], Some(&[1, 0]), None));
                }
                2 => {
                    let values = text(&["Köln", "a\"b"]);
                    drop(column.typed::<ByteArrayType>().write_batch(&values, None, None));
                }
                3 => drop(column.typed::<Int32Type>().write_batch(&[0, 19_783], None, None)),
                4 => {
                    let values = [0, 1_709_288_430_500_000_000];
                    drop(column.typed::<Int64Type>().write_batch(&values, None, None));
                }
                5 => {
                    let values = [0, 1_709_288_430_000];
                    drop(column.typed::<Int64Type>().write_batch(&values, None, None));
                }
                6 => drop(column.typed::<Int32Type>().write_batch(&[-1234, 5], None, None)),
                7 => {
                    let values = text(&["x", "y"]);
                    drop(column.typed::<ByteArrayType>().write_batch(&values, None, None));
                }
                _ => {
                    let values = text(&["user", "assistant", "user"]);
                    let typed = column.typed::<ByteArrayType>();
                    drop(typed.write_batch(&values, Some(&[1, 1, 1]), Some(&[0, 1, 0])));
                }
            }
            column.close().unwrap();
            at += 1;
        }
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn rows_are_objects_with_words_for_times_and_without_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        write(&path);
        let text = json_lines(&path, "the rows", "rows").unwrap().unwrap();
        let rows: Vec<Value> = text
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        let expected = [
            json!({
                "id": 1, "price": "NaN", "city": "Köln", "day": "1970-01-01",
                "at": "1970-01-01 00:00:00", "then": "1970-01-01 00:00:00", "cost": -12.34,
                "messages": [{"role": "user"}, {"role": "assistant"}],
            }),
            json!({
                "id": 2, "price": null, "city": "a\"b", "day": "2024-03-01",
                "at": "2024-03-01 10:20:30.5", "then": "2024-03-01 10:20:30", "cost": 0.05,
                "messages": [{"role": "user"}],
            }),
        ];
        assert_eq!(rows, expected);
        let other = folder.path().join("rows.jsonl");
        files::write_atomic(&other, b"{}").unwrap();
        assert_eq!(json_lines(&other, "the rows", "rows").unwrap(), None);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        write(&path);
        let whole = std::fs::read(&path).unwrap();
        let mut unreadable = 0;
        for at in 4..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            files::write_atomic(&path, &damaged).unwrap();
            unreadable += usize::from(json_lines(&path, "the rows", "rows").is_err());
        }
        assert!(unreadable > 50, "{unreadable} of {}", whole.len());
    }
}
