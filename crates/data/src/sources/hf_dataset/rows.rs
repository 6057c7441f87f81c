//! The rows of a split: where each lies, and its label.

use std::path::{Path, PathBuf};

use crate::error::{Error, shown};
use crate::parquet::{ColumnKind, Table};
use crate::sources::class_labels::ClassLabels;
use crate::sources::hf_dataset::features::{Columns, NamedColumns};

/// Contents of a shard, as messages call them.
pub(super) const EXPECTED: &str = "a parquet file of images and their classes";

/// The shards of a split, and the labels of their rows.
#[derive(Clone, Debug, Default)]
pub(super) struct SplitRows {
    pub(super) shards: Vec<PathBuf>,
    /// The row of the split with which each shard begins.
    starts: Vec<usize>,
    labels: ClassLabels,
    /// Name of the column of images.
    pub(super) images: String,
    /// Name of the column of labels.
    pub(super) labelled_by: String,
    /// Packed bytes of the images.
    pub(super) bytes: u64,
    /// Names of the classes, where the first shard has them.
    named: Option<Vec<String>>,
}

impl SplitRows {
    /// Reads the labels of all shards; no image.
    pub(super) fn read(shards: Vec<PathBuf>, asked: NamedColumns<'_>) -> Result<Self, Error> {
        let mut found = Self::default();
        for (at, path) in shards.iter().enumerate() {
            // Those of the first shard are the columns of all.
            let [images, labels] = [&found.images, &found.labelled_by].map(String::as_str);
            let same = NamedColumns { images: Some(images), labels: Some(labels) };
            let mut shard = Shard::open(path, if at == 0 { asked } else { same })?;
            let Columns { images, labels, classes } = &shard.columns;
            if at == 0 {
                found.images.clone_from(&images.name);
                found.labelled_by.clone_from(&labels.name);
                found.named.clone_from(classes);
                if labels.kind == ColumnKind::Words {
                    found.labels = ClassLabels::Words(Vec::new());
                }
            } else if let Some((ours, theirs)) = found.named.as_ref().zip(classes.as_ref()) {
                same_classes(path, ours, theirs, "the first shard")?;
            }
            found.starts.push(found.len());
            found.bytes = found.bytes.saturating_add(shard.table.packed_bytes(images));
            let mut row = 0;
            for group in 0..shard.groups() {
                shard.refuse_nulls(group, row)?;
                row += shard.append_labels(group, row, &mut found.labels)?;
            }
        }
        if found.len() == 0 {
            let path = shards.into_iter().next().unwrap_or_default();
            return Err(Error::Format { path, what: "it has no rows".to_owned() });
        }
        Ok(Self { shards, ..found })
    }

    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The shard of a row, and its number there, from 0.
    pub(super) fn place(&self, row: usize) -> (&Path, usize) {
        let shard = self.starts.partition_point(|start| *start <= row).saturating_sub(1);
        (&self.shards[shard], row - self.starts[shard])
    }

    /// `row 3 of <path>`
    pub(super) fn name(&self, row: usize) -> String {
        let (path, row) = self.place(row);
        format!("row {row} of `{}`", shown(path))
    }

    /// Names of the classes in label order, of which this is the training split: as the files have
    /// them, the words that occur, or numbers up to the largest of all `parts`.
    pub(super) fn classes(&self, parts: &[&Self]) -> Result<Vec<String>, Error> {
        for part in parts {
            let path = part.shards.first().map_or(Path::new(""), PathBuf::as_path);
            if let Some((ours, theirs)) = self.named.as_ref().zip(part.named.as_ref()) {
                same_classes(path, ours, theirs, "the training split")?;
            }
            if self.labels.are_words() != part.labels.are_words() {
                let [theirs, ours] = [part, self].map(|rows| rows.labels.in_words());
                let what = format!("its classes are {theirs}, but the training split's are {ours}");
                return Err(Error::Format { path: path.to_owned(), what });
            }
        }
        let parts: Vec<&ClassLabels> = parts.iter().map(|part| &part.labels).collect();
        Ok(self.labels.classes(self.named.as_deref(), &parts))
    }

    /// The label of each row among `classes`.
    pub(super) fn labels(&self, classes: &[String]) -> Result<Vec<u32>, Error> {
        self.labels.among(classes, self.named.as_deref(), UNLABELLED, |row, what, help| {
            let (path, row) = self.place(row);
            let what = format!("row {row}: `{}` is {what}", self.labelled_by);
            Error::WithHelp { path: path.to_owned(), what, help: help.to_owned() }
        })
    }
}

/// Refuses a shard whose classes have other names than those `of` another.
fn same_classes(path: &Path, ours: &[String], theirs: &[String], of: &str) -> Result<(), Error> {
    let what = match ours.iter().zip(theirs).position(|(one, other)| one != other) {
        Some(label) => {
            let (theirs, ours) = (&theirs[label], &ours[label]);
            format!("its class {label} is `{theirs}`, but that of {of} `{ours}`")
        }
        None if ours.len() == theirs.len() => return Ok(()),
        None => {
            let (theirs, ours) = (theirs.len(), ours.len());
            format!("it has {theirs} classes, but {of} has {ours}")
        }
    };
    let help = "give all splits the same `ClassLabel`, in Python by `cast_column`".to_owned();
    Err(Error::WithHelp { path: path.to_owned(), what, help })
}

/// The remedy for rows without an image.
const NO_BYTES: &str = "leave such rows out (in Python, `dataset.filter` and `to_parquet`); of \
                        images that are named by their path alone, write the bytes, as \
                        `push_to_hub` does";
/// The remedy for rows without a class.
const UNLABELLED: &str = "leave rows without a class out (in Python, `dataset.filter` and \
                          `to_parquet`), or name a split that has classes";

/// An open shard.
pub(super) struct Shard<'a> {
    path: &'a Path,
    table: Table<'a>,
    pub(super) columns: Columns,
    /// Bytes that may still be read.
    left: u64,
}

impl<'a> Shard<'a> {
    /// Opens the shard at `path` and finds its columns.
    pub(super) fn open(path: &'a Path, asked: NamedColumns<'_>) -> Result<Self, Error> {
        let table = Table::open(path, "the shard", EXPECTED).map_err(|error| match error {
            Error::Format { path, what } => {
                let help = "fetch or copy the file again: it may be cut short".to_owned();
                Error::WithHelp { path, what, help }
            }
            other => other,
        })?;
        let columns = Columns::find(path, &table, asked)?;
        let left = table.most_bytes();
        Ok(Self { path, table, columns, left })
    }

    pub(super) fn groups(&self) -> usize {
        self.table.groups()
    }

    /// The image of each row of a row group, whose first row is `first` of the file.
    pub(super) fn images(&mut self, group: usize, first: usize) -> Result<Vec<Vec<u8>>, Error> {
        let column = &self.columns.images;
        let images = self.table.bytes_in(column, group, &mut self.left)?.into_iter();
        let found = |(at, image): (usize, Option<Vec<u8>>)| {
            image.ok_or_else(|| self.refuse(first + at, &column.name, "without bytes", NO_BYTES))
        };
        images.enumerate().map(found).collect()
    }

    /// Refuses rows without images where the file counts them.
    fn refuse_nulls(&mut self, group: usize, first: usize) -> Result<(), Error> {
        match self.table.nulls(&self.columns.images, group) {
            Some(nulls) if nulls > 0 => self.images(group, first).map(drop),
            _ => Ok(()),
        }
    }

    /// Appends the labels of a row group to `all`, and returns their number.
    fn append_labels(
        &mut self,
        group: usize,
        first: usize,
        all: &mut ClassLabels,
    ) -> Result<usize, Error> {
        let column = &self.columns.labels;
        let refuse = |row, is, help| self.refuse(first + row, &column.name, is, help);
        let null = |row| refuse(row, "null", UNLABELLED);
        match (all, column.kind) {
            (ClassLabels::Numbers(labels), ColumnKind::Integers) => {
                let found = self.table.integers_in(column, group)?;
                let n = found.len();
                for (row, label) in found.into_iter().enumerate() {
                    labels.push(label.ok_or_else(|| null(row))?);
                }
                Ok(n)
            }
            (ClassLabels::Words(words), ColumnKind::Words) => {
                let mut left = self.table.most_bytes();
                let found = self.table.bytes_in(column, group, &mut left)?;
                let n = found.len();
                for (row, word) in found.into_iter().enumerate() {
                    let word = String::from_utf8(word.ok_or_else(|| null(row))?);
                    let word = word.map_err(|_| refuse(row, "not UTF-8", "write text as UTF-8"))?;
                    words.push(word);
                }
                Ok(n)
            }
            _ => {
                let what = format!("column `{}` has other values than before", column.name);
                Err(self.table.format(what))
            }
        }
    }

    fn refuse(&self, row: usize, column: &str, is: &str, help: &str) -> Error {
        let what = format!("row {row}: `{column}` is {is}");
        Error::WithHelp { path: self.path.to_owned(), what, help: help.to_owned() }
    }
}
