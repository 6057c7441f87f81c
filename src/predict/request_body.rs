//! The body of a request -> a file as `ddprun predict` reads it.

use std::path::Path;

use serde_json::{Map, Value};

/// Media types of files that a model may take, and their endings.
const ENDINGS: [(&str, &str); 14] = [
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/webp", "webp"),
    ("image/bmp", "bmp"),
    ("image/tiff", "tiff"),
    ("text/csv", "csv"),
    ("text/tab-separated-values", "tsv"),
    ("application/x-ndjson", "jsonl"),
    ("application/jsonl", "jsonl"),
    ("application/vnd.apache.parquet", "parquet"),
    ("text/plain", "txt"),
    ("audio/wav", "wav"),
    ("audio/x-wav", "wav"),
    ("audio/vnd.wave", "wav"),
];
/// JSON: an object is a row, an array has several.
const JSON: &str = "application/json";
/// What a browser sends.
const FORM: &str = "multipart/form-data";
/// Bytes of a name.
const MAX_NAME: usize = 200;

/// A file.
#[derive(Debug, PartialEq)]
pub(crate) struct Body {
    /// A plain name with an ending.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Why a body is no file to predict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// Neither a name nor a type.
    #[error(
        "say what the body is: `/predict?name=photo.jpg`, or a `Content-Type` such as `image/png`, \
         `text/csv` or `application/json`"
    )]
    Unnamed,
    /// A form of a browser.
    #[error("a form is not read: send the file itself, as `curl --data-binary @FILE` does")]
    Form,
    /// The name would lead elsewhere.
    #[error("`{0}` is not the plain name of a file")]
    BadName(String),
    /// The body is empty.
    #[error("the body is empty")]
    Empty,
    /// The JSON is no row.
    #[error("the body is not a JSON object, or an array of objects: {0}")]
    NoRows(String),
}

impl Body {
    /// The body of a request with this name and `Content-Type`, for a model that was trained on the
    /// data set called `data`.
    pub(crate) fn of(
        name: Option<&str>,
        kind: &str,
        bytes: Vec<u8>,
        data: &str,
    ) -> Result<Self, BodyError> {
        if bytes.is_empty() {
            return Err(BodyError::Empty);
        }
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match name {
            _ if kind == FORM => Err(BodyError::Form),
            Some(name) => Ok(Self { name: plain(name)?, bytes }),
            None if kind == JSON => rows(&bytes, data),
            None => {
                let ending = ENDINGS.iter().find(|(media, _)| *media == kind);
                let (_, ending) = ending.ok_or(BodyError::Unnamed)?;
                Ok(Self { name: format!("body.{ending}"), bytes })
            }
        }
    }
}

/// The name, if it leads nowhere else.
fn plain(name: &str) -> Result<String, BodyError> {
    let is_plain = Path::new(name).file_name().is_some_and(|file| file == name)
        && name.len() <= MAX_NAME
        && !name.chars().any(char::is_control);
    if is_plain { Ok(name.to_owned()) } else { Err(BodyError::BadName(name.to_owned())) }
}

/// Rows of a table, in the form that the data set reads.
fn rows(bytes: &[u8], data: &str) -> Result<Body, BodyError> {
    let refuse = |error: &dyn std::fmt::Display| BodyError::NoRows(error.to_string());
    let value: Value = serde_json::from_slice(bytes).map_err(|error| refuse(&error))?;
    let values = match value {
        Value::Array(values) => values,
        one => vec![one],
    };
    let rows: Option<Vec<Map<String, Value>>> = values
        .into_iter()
        .map(|value| match value {
            Value::Object(row) => Some(row),
            _ => None,
        })
        .collect();
    let rows = rows.filter(|rows| !rows.is_empty()).ok_or_else(|| refuse(&"no object"))?;
    if data.starts_with("csv") {
        return csv(&rows).map_err(|error| refuse(&error));
    }
    let lines: Vec<String> =
        rows.iter().map(|row| Value::Object(row.clone()).to_string()).collect();
    Ok(Body { name: "body.jsonl".to_owned(), bytes: (lines.join("\n") + "\n").into_bytes() })
}

/// A table whose columns are all keys of all rows.
fn csv(rows: &[Map<String, Value>]) -> Result<Body, csv::Error> {
    let mut columns: Vec<&String> = Vec::new();
    for key in rows.iter().flat_map(Map::keys) {
        if !columns.contains(&key) {
            columns.push(key);
        }
    }
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(&columns)?;
    for row in rows {
        let cell = |column: &&String| match row.get(*column) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        table.write_record(columns.iter().map(cell))?;
    }
    let bytes = table.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(Body { name: "body.csv".to_owned(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: Option<&str>, kind: &str) -> Result<String, BodyError> {
        Body::of(name, kind, b"x".to_vec(), "csv").map(|body| body.name)
    }

    #[test]
    fn a_body_is_named_by_the_client_or_else_by_its_type() {
        assert_eq!(name(Some("my cat.jpg"), "text/csv").unwrap(), "my cat.jpg");
        assert_eq!(name(None, "Image/PNG; q=1").unwrap(), "body.png");
        assert_eq!(name(None, ""), Err(BodyError::Unnamed));
        assert_eq!(name(None, "application/x-www-form-urlencoded"), Err(BodyError::Unnamed));
        for bad in ["../x.png", "/etc/passwd", "", "..", "a\0.png", &"x".repeat(300)] {
            assert!(matches!(name(Some(bad), ""), Err(BodyError::BadName(_))), "{bad}");
        }
        let form = "multipart/form-data; boundary=x";
        assert_eq!(name(Some("a.png"), form), Err(BodyError::Form));
        assert_eq!(Body::of(None, "text/csv", Vec::new(), "csv"), Err(BodyError::Empty));
    }

    #[test]
    fn json_objects_become_rows_of_the_form_that_the_data_set_reads() {
        let json = br#"[{"a": 1.5, "b": "x,y"}, {"b": null, "c": true}]"#;
        let rows = |data| Body::of(None, "application/json", json.to_vec(), data).unwrap();
        assert_eq!(rows("csv").bytes, b"a,b,c\n1.5,\"x,y\",\n,,true\n");
        assert_eq!(rows("csv").name, "body.csv");
        assert_eq!(rows("jsonl").bytes, b"{\"a\":1.5,\"b\":\"x,y\"}\n{\"b\":null,\"c\":true}\n");
        for bad in ["3", "[]", "[1]", "{", "[{}, 2]"] {
            let found = Body::of(None, "application/json", bad.as_bytes().to_vec(), "jsonl");
            assert!(matches!(found, Err(BodyError::NoRows(_))), "{bad}");
        }
    }
}
