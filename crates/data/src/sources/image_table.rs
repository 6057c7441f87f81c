//! `data.name = "image_table"`: images that a table lists, with a class, several classes or numbers
//! for each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::error::{Error, SampleError, shown};
use crate::images::decode::DecodeOptions;
use crate::images::orientation::Exif;
use crate::inputs::{Inputs, OutputScale, PredictionRequest};
use crate::listing::paths::Paths;
use crate::plan::{Part, PixelDtype, SplitPlan, Targets};
use crate::rng::Key;
use crate::sources::holdout::{Parts, SplitUnits, Splittable, numbered};
use crate::sources::image_folder::{
    ImageFiles, image_inputs, note_of_bits, preprocessing_of, turned_photos,
};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::tables::answer::{Answer, class, labelled, labels, sorted_classes, unlabelled};
use crate::sources::tables::column::{BadCell, empty, number};
use crate::sources::tables::column_names::keyed;
use crate::sources::tables::csv::{RAGGED, flag};
use crate::sources::tables::csv_rows::{CsvRows, check_unique, check_width};
use crate::sources::tables::features::MissingValues;
use crate::sources::tables::table::{at, cell};
use crate::{Dataset, Splits, Target, read};

const EXPECTED: &str =
    "a table with a header line: the file of an image, and its classes or numbers";

/// images listed in a table, each with a class, any number of labels, or numbers to predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageTable {
    /// training table: csv with a header line.
    #[schemars(extend("format" = "path"), example = "data/train.csv")]
    pub train_file: PathBuf,
    /// validation table, with the same columns; or hold out rows of `train_file` with
    /// `data.val_fraction` or `data.folds`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/val.csv")]
    pub val_file: Option<PathBuf>,
    /// test table, with the same columns; it is used once, at the end of training.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = "data/test.csv")]
    pub test_file: Option<PathBuf>,
    /// folder of the images. Default: each table's own folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"), example = "data/images")]
    pub image_dir: Option<PathBuf>,
    /// column with the path of each image.
    #[serde(default = "image")]
    pub image_column: String,
    /// column with the class of each image, a word or a whole number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"label")]
    pub class_column: Option<String>,
    /// label columns, in label order: 1 if an image has the label, else 0.
    #[serde(default)]
    #[schemars(example = ["cat", "dog"])]
    pub class_columns: Vec<String>,
    /// columns of numbers to predict, instead of `class_column`.
    #[serde(default)]
    #[schemars(example = ["x", "y"])]
    pub target_columns: Vec<String>,
    /// a column such as a patient: images with the same value are held out together.
    #[serde(default)]
    #[schemars(example = &"patient")]
    pub group: Option<String>,
    /// words that count as empty cells: "pandas" (NA, N/A, NaN, null, None and the like), or a list,
    /// in which "pandas" stands for these; an empty list: only empty cells.
    #[serde(default)]
    #[schemars(example = ["pandas", "?"])]
    pub missing_values: MissingValues,
    /// leave out images of which a class, label or number is empty; else they are refused.
    #[serde(default)]
    pub drop_unlabelled: bool,
    /// how pixels are read: `uint8`, or `uint16` for 16-bit scans and satellite images, which
    /// become value / 65535 (8-bit files among them are scaled to the same range). Colour
    /// transforms need `uint8`.
    #[serde(default, skip_serializing_if = "PixelDtype::is_usual")]
    #[schemars(example = &"uint16")]
    pub pixel_dtype: PixelDtype,
    /// orientation that cameras write into a photo instead of turning its pixels: `apply`, to see
    /// photos upright, or `ignore`, as in `image_folder`.
    #[serde(default, skip_serializing_if = "Exif::is_usual")]
    #[schemars(example = &"apply")]
    pub exif: Exif,
}

fn image() -> String {
    "image".to_owned()
}

impl Kind for ImageTable {
    const NAME: &'static str = "image_table";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Images), Capability::Split(BuiltinSplits::FILES)];

    fn check(&self) -> Vec<OptionConflict> {
        let columns = self.columns();
        let is_twice = |at: usize| columns[..at].contains(&columns[at]);
        let what = match (0..columns.len()).find(|&at| is_twice(at)) {
            _ if self.given().count() != 1 => {
                return vec![OptionConflict {
                    key: "class_column",
                    with: &["class_columns", "target_columns"],
                    what: "needs one of `class_column`, `class_columns` and `target_columns`"
                        .to_owned(),
                }];
            }
            Some(at) => format!("names `{}` twice", columns[at]),
            None if columns.contains(&self.image_column) => {
                format!("names `{}`, which is the column of the files", self.image_column)
            }
            None => return Vec::new(),
        };
        vec![OptionConflict { key: self.columns_key(), with: &["image_column"], what }]
    }
}

impl DataSource for ImageTable {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let parts = self.parts(&reading.survey.split)?;
        let classes = self.classes(&parts.train);
        parts.open(reading, classes.clone(), |listed, list| {
            let (files, answers) = listed.labelled(&classes, self.class_column.is_some())?;
            let files = ImageFiles::new(files, list, reading.transforms, self.decoding())?;
            let shape = [self.columns().len()];
            Ok(match self.class_column {
                Some(_) => Arc::new(files),
                None => Arc::new(Images { files, answers, shape }),
            })
        })
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let mut parts = self.parts(&request.split)?;
        let photos = parts.each().map(|(part, listed)| (part, &listed.files));
        let (turned, lying) = turned_photos(photos, self.exif);
        let all = [&mut parts.train, &mut parts.val].into_iter().chain(&mut parts.test);
        let mut notes: Vec<String> = all.flat_map(|part| std::mem::take(&mut part.notes)).collect();
        let Parts { train, val, test } = parts;
        let n_train = train.files.len();
        let n_val = val.files.len();
        let n_test = test.as_ref().map_or(0, |test| test.files.len());
        let files: Vec<String> =
            self.tables().map(|(_, path, _)| path.display().to_string()).collect();
        let classes = self.classes(&train);
        notes.extend(note_of_bits(&train.files, self.pixel_dtype));
        notes.extend(self.constants(&train));
        let class_counts = if self.class_column.is_some() {
            // Classes of the other parts are known, too.
            for part in std::iter::once(val).chain(test) {
                part.labelled(&classes, true)?;
            }
            train.labelled(&classes, true)?.0.counts(classes.len())
        } else {
            (0..self.class_columns.len()).map(|class| train.having(class)).collect()
        };
        notes.extend(lying);
        Ok(Survey {
            n_train,
            n_val,
            n_test,
            class_counts,
            classes,
            multi_label: !self.class_columns.is_empty(),
            n_targets: self.target_columns.len(),
            line: files.join(" and ") + &turned,
            notes,
            pixel_dtype: self.pixel_dtype,
            ..Survey::default()
        })
    }

    fn target(&self) -> Result<Option<Targets>, Error> {
        let has_classes = !self.class_columns.is_empty();
        Ok(Some(if has_classes { Targets::MultiLabel } else { Targets::Numbers }))
    }

    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        Ok(preprocessing_of(found, self.decoding()))
    }

    fn inputs(&self, request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        let units = self.target_columns.iter().map(|name| OutputScale::plain(name)).collect();
        image_inputs(request, units, self.decoding())
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let mut files = Vec::new();
        for (part, path, what) in self.tables() {
            let listed = self.read_one(path, what)?;
            let images = listed.files.iter().map(|(path, _)| path).collect();
            let table = match part {
                Part::Train => "train table",
                Part::Val => "val table",
                Part::Test => "test table",
            };
            files.push(Files::one(table, path));
            files.push(Files::many(part.name(), self.folder(path), images));
        }
        Ok(files)
    }
}

/// The rows of a table.
#[derive(Default)]
struct ImageRows {
    path: PathBuf,
    files: Paths,
    /// Line on which each row begins.
    lines: Vec<u64>,
    /// The class of each row, if it has one.
    classes: Vec<Answer>,
    /// Labels or numbers of one row after the other.
    answers: Vec<f32>,
    /// Answers per row.
    columns: usize,
    /// Group of each row; empty without groups.
    groups: Vec<String>,
    /// Notes for the user.
    notes: Vec<String>,
}

impl Splittable for ImageRows {
    fn units(&self) -> SplitUnits {
        match numbered(&self.groups) {
            Some(groups) => SplitUnits::Groups(groups),
            None if !self.classes.is_empty() => SplitUnits::Samples(labelled(&self.classes)),
            None => self.files.units(),
        }
    }

    fn only(&self, places: &[usize]) -> Self {
        let n = self.columns;
        let answers = places.iter().flat_map(|&place| &self.answers[place * n..][..n]);
        let classes = places.iter().filter_map(|&place| self.classes.get(place));
        Self {
            path: self.path.clone(),
            files: self.files.only(places),
            lines: places.iter().map(|&place| self.lines[place]).collect(),
            classes: classes.cloned().collect(),
            answers: answers.copied().collect(),
            columns: n,
            ..Self::default()
        }
    }
}

impl ImageRows {
    /// Training rows that have a label.
    fn having(&self, class: usize) -> u64 {
        let column = self.answers.iter().skip(class).step_by(self.columns);
        column.filter(|has| **has > 0.5).count() as u64
    }

    /// The files with the label of each among `classes`, if rows have one, and the other answers.
    fn labelled(self, classes: &[String], have_one: bool) -> Result<(Paths, Vec<f32>), Error> {
        if !have_one {
            return Ok((self.files, self.answers));
        }
        let labels = labels(classes);
        let mut files = Paths::default();
        for (((file, _), class), &line) in self.files.iter().zip(&self.classes).zip(&self.lines) {
            match labels.get(&class.key()) {
                Some(&label) => files.push_path(&file, label),
                None => return Err(at(&self.path, line, class.untrained())),
            }
        }
        Ok((files, self.answers))
    }
}

impl ImageTable {
    fn decoding(&self) -> DecodeOptions {
        DecodeOptions { dtype: self.pixel_dtype, exif: self.exif }
    }

    /// The keys that name what is to be predicted, with the columns; there is to be one.
    fn given(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let class = self.class_column.as_slice();
        [
            ("class_column", class),
            ("class_columns", &self.class_columns),
            ("target_columns", &self.target_columns),
        ]
        .into_iter()
        .filter(|(_, columns)| !columns.is_empty())
    }

    /// The key of what is to be predicted.
    fn columns_key(&self) -> &'static str {
        self.given().next().map_or("class_column", |(key, _)| key)
    }

    /// Columns to predict.
    fn columns(&self) -> &[String] {
        self.given().next().map_or(&[], |(_, columns)| columns)
    }

    /// Names of the classes, which are those of the training rows where each has one.
    fn classes(&self, train: &ImageRows) -> Vec<String> {
        if self.class_column.is_some() {
            sorted_classes(&train.classes)
        } else {
            self.class_columns.clone()
        }
    }

    /// Targets that are the same for all images, in words.
    fn constants(&self, train: &ImageRows) -> Vec<String> {
        let n = train.files.len();
        let constant = |(at, name): (usize, &String)| {
            let first = *train.answers.get(at)?;
            let mut column = train.answers.iter().skip(at).step_by(train.columns);
            column.all(|value| *value == first).then(|| match first {
                _ if self.class_columns.is_empty() => format!(
                    "the target `{name}` is {first} of all {n} training images: there is nothing \
                     to learn"
                ),
                0.0 => format!("none of the {n} training images has the label `{name}`"),
                _ => format!("all {n} training images have the label `{name}`"),
            })
        };
        self.columns().iter().enumerate().filter_map(constant).collect()
    }

    /// Folder of the images of `table`.
    fn folder<'a>(&'a self, table: &'a Path) -> &'a Path {
        let own = || table.parent().unwrap_or(Path::new(""));
        self.image_dir.as_deref().unwrap_or_else(own)
    }

    /// The tables with what they are called in messages.
    fn tables(&self) -> impl Iterator<Item = (Part, &PathBuf, &'static str)> {
        let train = (Part::Train, Some(&self.train_file), "the training table");
        let val = (Part::Val, self.val_file.as_ref(), "the validation table");
        let test = (Part::Test, self.test_file.as_ref(), "the test table");
        [train, val, test].into_iter().filter_map(|(part, path, what)| Some((part, path?, what)))
    }

    fn parts(&self, split: &SplitPlan) -> Result<Parts<ImageRows>, Error> {
        let mut parts = Parts::<ImageRows>::default();
        for (part, path, what) in self.tables() {
            parts.put(part, self.read_one(path, what)?);
        }
        let unusable = |what| Error::Format { path: self.train_file.clone(), what };
        parts.held_back(split).map_err(unusable)
    }

    fn read_one(&self, path: &Path, what: &'static str) -> Result<ImageRows, Error> {
        let bytes = read::table(what, path, EXPECTED)?;
        let (mut rows, header) = CsvRows::open(path, &bytes)?;
        check_unique(&header).map_err(|bad| cell(path, 1, bad))?;
        let place = |(key, column): (String, &String)| {
            let found = header.iter().position(|name| name == column);
            let path = path.to_owned();
            let column = column.clone();
            let columns = header.clone();
            found.ok_or(Error::NoColumn { key, path, column, columns })
        };
        let image = place(("data.image_column".to_owned(), &self.image_column))?;
        let columns = match &self.class_column {
            Some(column) => vec![("data.class_column".to_owned(), column)],
            None => keyed(&format!("data.{}", self.columns_key()), self.columns()),
        };
        let columns: Vec<usize> = columns.into_iter().map(place).collect::<Result<_, _>>()?;
        let group = self.group.as_ref().map(|name| place(("data.group".to_owned(), name)));
        let group = group.transpose()?;
        let n_answers = if self.class_column.is_some() { 0 } else { columns.len() };
        let path = path.to_owned();
        let mut unlabelled = 0;
        let mut listed =
            ImageRows { path: path.clone(), columns: n_answers, ..ImageRows::default() };
        let mut record = ::csv::StringRecord::new();
        while let Some(line) = rows.read(&mut record)? {
            check_width(record.len(), &header, RAGGED).map_err(|bad| cell(&path, line, bad))?;
            let mut answers = columns.iter().filter_map(|&at| record.get(at));
            if self.drop_unlabelled && answers.any(|answer| self.missing_values.holds(answer)) {
                unlabelled += 1;
                continue;
            }
            self.push(&mut listed, &record, image, &columns, self.folder(&path))
                .map_err(|bad| cell(&path, line, bad))?;
            let group = group.and_then(|at| record.get(at));
            listed.groups.extend(self.known(group).map_err(|what| at(&path, line, what))?);
            listed.lines.push(line);
        }
        let what = match (listed.files.len(), unlabelled) {
            (0, 0) => "it has a header but no rows".to_owned(),
            (0, n) => format!("none of its {n} rows has a `{}`", self.columns().join("`, `")),
            (_, 0) => return Ok(listed),
            (n, unlabelled) => {
                let all = n + unlabelled;
                let columns = self.columns().join("`, `");
                listed.notes.push(format!(
                    "{unlabelled} of {all} rows of `{}` have no `{columns}` and are left out",
                    shown(&path)
                ));
                return Ok(listed);
            }
        };
        Err(Error::Format { path, what })
    }

    /// The group that a row names, where there are groups.
    fn known(&self, group: Option<&str>) -> Result<Option<String>, String> {
        match group {
            Some(cell) if self.missing_values.holds(cell) => {
                Err(empty(self.group.as_deref().unwrap_or_default(), cell))
            }
            group => Ok(group.map(str::to_owned)),
        }
    }

    /// Appends a row, whose file must be there.
    fn push(
        &self,
        listed: &mut ImageRows,
        record: &::csv::StringRecord,
        image: usize,
        columns: &[usize],
        folder: &Path,
    ) -> Result<(), BadCell> {
        let cell = |at: usize| record.get(at).unwrap_or_default();
        let file = folder.join(cell(image));
        if cell(image).is_empty() {
            return Err(empty(&self.image_column, "").into());
        }
        if !file.is_file() {
            return Err(format!("there is no file `{}`", file.display()).into());
        }
        listed.files.push_path(&file, 0);
        for (&at, name) in columns.iter().zip(self.columns()) {
            let answer = cell(at);
            if self.missing_values.holds(answer) {
                return Err(unlabelled(empty(name, answer)));
            }
            if self.class_column.is_some() {
                listed.classes.push(class(name, answer)?);
            } else if self.class_columns.is_empty() {
                listed.answers.push(number(name, answer)? as f32);
            } else {
                listed.answers.push(self.flag(name, answer)? as f32);
            }
        }
        Ok(())
    }
}

impl ImageTable {
    /// 1 or 0: whether an image has a label.
    fn flag(&self, name: &str, cell: &str) -> Result<f64, BadCell> {
        let help = || match &self.class_columns[..] {
            [_] => {
                format!(
                    "if `{name}` holds the class of each image, use `class_column = \"{name}\"`"
                )
            }
            _ => "correct the cell, or remove the row".to_owned(),
        };
        flag(name, cell).map_err(|what| BadCell { what, help: Some(help()) })
    }
}

/// One split.
struct Images {
    files: ImageFiles,
    answers: Vec<f32>,
    /// Answers of an image.
    shape: [usize; 1],
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn shape(&self) -> &[usize] {
        self.files.shape()
    }

    fn target_shape(&self) -> &[usize] {
        &self.shape
    }

    fn classifies(&self) -> bool {
        false
    }

    fn name(&self, index: usize) -> String {
        self.files.name(index)
    }

    fn origin(&self, index: usize) -> Option<(PathBuf, Option<u64>)> {
        self.files.origin(index)
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        self.files.load(index, key, values)?;
        let [n] = self.shape;
        Ok(Target::Series(self.answers[index * n..][..n].to_vec()))
    }
}

#[cfg(test)]
mod tests;
