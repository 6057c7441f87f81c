//! The columns of a shard, with what `datasets` says of them (its features): the one of images, the
//! one of classes, and the names of these.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;
use crate::parquet::{Column, ColumnKind, Table};

/// The key under which `datasets` describes the columns of a file, in JSON.
const DESCRIPTION: &str = "huggingface";
/// Names of columns that are taken for the classes where several could be.
const USUAL: [&str; 2] = ["label", "labels"];

const IMAGE_COLUMN: &str = "data.image_column";
const LABEL_COLUMN: &str = "data.label_column";

/// The columns that are read.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub(super) images: Column,
    pub(super) labels: Column,
    /// Names of the classes in label order, where the file has them.
    pub(super) classes: Option<Vec<String>>,
}

/// Names of the columns in the experiment.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedColumns<'a> {
    pub(super) images: Option<&'a str>,
    pub(super) labels: Option<&'a str>,
}

/// Description of a column.
#[derive(Clone, Debug, Default, Deserialize)]
struct Feature {
    /// `Image`, `ClassLabel`, `Value` ...
    #[serde(rename = "_type", default)]
    kind: String,
    #[serde(default)]
    names: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Description {
    info: Info,
}

#[derive(Deserialize)]
struct Info {
    features: BTreeMap<String, Value>,
}

impl Columns {
    /// Finds the columns in the shard at `path`.
    ///
    /// # Errors
    ///
    /// A column that is asked for is absent or holds other values, or none or several could be
    /// meant.
    pub(super) fn find(
        path: &Path,
        table: &Table<'_>,
        asked: NamedColumns<'_>,
    ) -> Result<Self, Error> {
        let search = Search { path, columns: table.columns(), features: features(table) };
        let images = search.images(asked.images)?;
        let labels = search.labels(asked.labels)?;
        let classes = search.feature(&labels).and_then(|feature| feature.names.clone());
        Ok(Self { images, labels, classes })
    }
}

/// What `datasets` says of the columns; nothing where another program wrote the file.
fn features(table: &Table<'_>) -> BTreeMap<String, Feature> {
    let text = table.key_value(DESCRIPTION).unwrap_or_default();
    let Ok(Description { info }) = serde_json::from_str(text) else { return BTreeMap::new() };
    let features = info.features.into_iter();
    features.filter_map(|(name, of)| Some((name, serde_json::from_value(of).ok()?))).collect()
}

struct Search<'a> {
    path: &'a Path,
    columns: Vec<Column>,
    features: BTreeMap<String, Feature>,
}

impl Search<'_> {
    fn feature(&self, column: &Column) -> Option<&Feature> {
        self.features.get(&column.name)
    }

    /// The description's word for what a column holds; empty where it has none.
    fn word(&self, column: &Column) -> &str {
        self.feature(column).map_or("", |feature| &feature.kind)
    }

    fn images(&self, asked: Option<&str>) -> Result<Column, Error> {
        let holds = |column: &Column| matches!(column.kind, ColumnKind::Images | ColumnKind::Bytes);
        if let Some(name) = asked {
            let column = self.named(IMAGE_COLUMN, name)?;
            return if holds(&column) { Ok(column) } else { Err(self.unfit(&column, "images")) };
        }
        let described = self.those(|column| holds(column) && self.word(column) == "Image");
        let undescribed = |kind| self.those(|it| it.kind == kind && self.word(it).is_empty());
        let found = [described, undescribed(ColumnKind::Images), undescribed(ColumnKind::Bytes)];
        self.only(IMAGE_COLUMN, "images", found)
    }

    fn labels(&self, asked: Option<&str>) -> Result<Column, Error> {
        let holds =
            |column: &Column| matches!(column.kind, ColumnKind::Integers | ColumnKind::Words);
        if let Some(name) = asked {
            let column = self.named(LABEL_COLUMN, name)?;
            return if holds(&column) { Ok(column) } else { Err(self.unfit(&column, "classes")) };
        }
        let described = self.those(|column| holds(column) && self.word(column) == "ClassLabel");
        let usual = self.those(|column| holds(column) && USUAL.contains(&&*column.name));
        self.only(LABEL_COLUMN, "classes", [described, usual, self.those(holds)])
    }

    fn those(&self, fits: impl Fn(&Column) -> bool) -> Vec<&Column> {
        self.columns.iter().filter(|column| fits(column)).collect()
    }

    /// The only column of the first of these that has any.
    fn only(
        &self,
        key: &'static str,
        of: &'static str,
        candidates: [Vec<&Column>; 3],
    ) -> Result<Column, Error> {
        let path = self.path.to_owned();
        match candidates.into_iter().find(|columns| !columns.is_empty()).as_deref() {
            Some([only]) => Ok((*only).clone()),
            Some(several) => {
                let columns = several.iter().map(|column| column.name.clone()).collect();
                Err(Error::ManyColumns { key, path, of, columns })
            }
            None => {
                let names = self.names().join("`, `");
                let what = format!("it has no column of {of}; its columns are `{names}`");
                Err(Error::WithHelp { path, what, help: form(of).to_owned() })
            }
        }
    }

    fn named(&self, key: &str, name: &str) -> Result<Column, Error> {
        let found = self.columns.iter().find(|column| column.name == name).cloned();
        found.ok_or_else(|| Error::NoColumn {
            key: key.to_owned(),
            path: self.path.to_owned(),
            column: name.to_owned(),
            columns: self.names(),
        })
    }

    fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    fn unfit(&self, column: &Column, of: &str) -> Error {
        let holds = match column.kind {
            ColumnKind::Images => "images",
            ColumnKind::Bytes => "bytes",
            ColumnKind::Integers => "whole numbers",
            ColumnKind::Words => "text",
            ColumnKind::Other => "other values",
        };
        let what = format!("column `{}` holds {holds}, not {of}", column.name);
        Error::WithHelp { path: self.path.to_owned(), what, help: form(of).to_owned() }
    }
}

/// The form of a column, as a remedy.
fn form(of: &str) -> &'static str {
    if of == "images" {
        "write images as bytes of PNG, JPEG or the like: the feature `Image()` of `datasets`, or a \
         column of bytes"
    } else {
        "write each class as a whole number (the feature `ClassLabel` of `datasets`) or as text"
    }
}
