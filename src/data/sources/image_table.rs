//! `data.name = "image_table"`: images that a table lists, with several classes or numbers for
//! each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Modality, Offer, Options, OwnParts, Wrong};
use crate::data::error::{Error, SampleError};
use crate::data::images::decode::DecodeOptions;
use crate::data::images::orientation::Exif;
use crate::data::inputs::{Inputs, Predicting, Unit};
use crate::data::listing::paths::Paths;
use crate::data::sources::holdout::{Divisible, Parts, Units, numbered};
use crate::data::sources::image_folder::{
    ImageFiles, image_inputs, note_of_bits, preprocessing_of, turned_photos,
};
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::tables::column::number;
use crate::data::sources::tables::column_names::keyed;
use crate::data::sources::tables::csv::RAGGED;
use crate::data::sources::tables::csv_rows::CsvRows;
use crate::data::sources::tables::header;
use crate::data::sources::tables::table::{at, cell};
use crate::data::{Dataset, Splits, Target, read};
use crate::plan::{Part, PixelDtype, SplitPlan, Targets};
use crate::rng::Key;

const EXPECTED: &str =
    "a table with a header line: the file of an image, and its classes or numbers";

/// images listed in a table, each with any number of labels, or with numbers to predict.
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
    /// label columns, in label order: 1 if an image has the label, else 0.
    #[serde(default)]
    #[schemars(example = ["cat", "dog"])]
    pub class_columns: Vec<String>,
    /// columns of numbers to predict, instead of `class_columns`.
    #[serde(default)]
    #[schemars(example = ["x", "y"])]
    pub target_columns: Vec<String>,
    /// a column such as a patient: images with the same value are held out together.
    #[serde(default)]
    #[schemars(example = &"patient")]
    pub group: Option<String>,
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
    const OFFERS: &'static [Offer] =
        &[Offer::Samples(Modality::Images), Offer::Split(OwnParts::FILES)];

    fn check(&self) -> Vec<Wrong> {
        let columns = self.columns();
        let is_twice = |at: usize| columns[..at].contains(&columns[at]);
        let key = if self.class_columns.is_empty() { "target_columns" } else { "class_columns" };
        let what = match (0..columns.len()).find(|&at| is_twice(at)) {
            _ if self.class_columns.is_empty() == self.target_columns.is_empty() => {
                return vec![Wrong {
                    key: "class_columns",
                    with: &["target_columns"],
                    what: "needs columns: give `class_columns` or `target_columns`".to_owned(),
                }];
            }
            Some(at) => format!("names `{}` twice", columns[at]),
            None if columns.contains(&self.image_column) => {
                format!("names `{}`, which is the column of the files", self.image_column)
            }
            None => return Vec::new(),
        };
        vec![Wrong { key, with: &["image_column"], what }]
    }
}

impl DataSource for ImageTable {
    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        let part = |listed: Listed, list| -> Result<Arc<dyn Dataset>, Error> {
            let images = ImageFiles::new(listed.files, list, reading.transforms, self.decoding())?;
            let shape = [self.columns().len()];
            Ok(Arc::new(Images { files: images, answers: listed.answers, shape }))
        };
        let evaluated = |listed| part(listed, reading.val_transforms);
        let Parts { train, val, test } = self.parts(&reading.asked.split)?;
        Ok(Splits {
            train: part(train, reading.train_transforms)?,
            val: evaluated(val)?,
            test: test.map(evaluated).transpose()?,
            classes: self.class_columns.clone(),
        })
    }

    fn survey(&self, asked: &Asked<'_>) -> Result<Survey, Error> {
        let parts = self.parts(&asked.split)?;
        let photos = parts.each().map(|(part, listed)| (part, &listed.files));
        let (turned, lying) = turned_photos(photos, self.exif);
        let Parts { train, val, test } = parts;
        let files: Vec<String> =
            self.tables().map(|(_, path, _)| path.display().to_string()).collect();
        let columns = self.columns().len();
        let having = |class: usize| {
            let column = train.answers.iter().skip(class).step_by(columns);
            column.filter(|has| **has > 0.5).count() as u64
        };
        let bits = note_of_bits(&train.files, self.pixel_dtype);
        Ok(Survey {
            n_train: train.files.len(),
            n_val: val.files.len(),
            n_test: test.map_or(0, |test| test.files.len()),
            class_counts: (0..self.class_columns.len()).map(having).collect(),
            classes: self.class_columns.clone(),
            multi_label: !self.class_columns.is_empty(),
            n_targets: self.target_columns.len(),
            line: files.join(" and ") + &turned,
            notes: bits.into_iter().chain(lying).collect(),
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

    fn inputs(&self, asked: &Predicting<'_>) -> Result<Inputs, Error> {
        let units = self.target_columns.iter().map(|name| Unit::plain(name)).collect();
        image_inputs(asked, units, self.decoding())
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
struct Listed {
    files: Paths,
    /// Those of one row after the other.
    answers: Vec<f32>,
    /// How many there are of a row.
    columns: usize,
    /// What each row belongs to; empty where nothing says so.
    groups: Vec<String>,
}

impl Divisible for Listed {
    fn units(&self) -> Units {
        match numbered(&self.groups) {
            Some(groups) => Units::Groups(groups),
            None => self.files.units(),
        }
    }

    fn only(&self, places: &[usize]) -> Self {
        let n = self.columns;
        let answers = places.iter().flat_map(|&place| &self.answers[place * n..][..n]);
        Self {
            files: self.files.only(places),
            answers: answers.copied().collect(),
            columns: n,
            groups: Vec::new(),
        }
    }
}

impl ImageTable {
    fn decoding(&self) -> DecodeOptions {
        DecodeOptions { dtype: self.pixel_dtype, exif: self.exif }
    }

    /// The key of what is to be predicted.
    fn columns_key(&self) -> &'static str {
        if self.class_columns.is_empty() { "data.target_columns" } else { "data.class_columns" }
    }

    /// What is to be predicted.
    fn columns(&self) -> &[String] {
        if self.class_columns.is_empty() { &self.target_columns } else { &self.class_columns }
    }

    /// Where the images of `table` are.
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

    fn parts(&self, split: &SplitPlan) -> Result<Parts<Listed>, Error> {
        let mut parts = Parts::<Listed>::default();
        for (part, path, what) in self.tables() {
            parts.put(part, self.read_one(path, what)?);
        }
        let unusable = |what| Error::Format { path: self.train_file.clone(), what };
        parts.held_back(split).map_err(unusable)
    }

    fn read_one(&self, path: &Path, what: &'static str) -> Result<Listed, Error> {
        let bytes = read::table(what, path, EXPECTED)?;
        let (mut rows, header) = CsvRows::open(path, &bytes)?;
        let place = |(key, column): (String, &String)| {
            let found = header.iter().position(|name| name == column);
            let (path, column, columns) = (path.to_owned(), column.clone(), header.clone());
            found.ok_or(Error::NoColumn { key, path, column, columns })
        };
        let image = place(("data.image_column".to_owned(), &self.image_column))?;
        let columns = keyed(self.columns_key(), self.columns());
        let columns: Vec<usize> = columns.into_iter().map(place).collect::<Result<_, _>>()?;
        let group = self.group.as_ref().map(|name| place(("data.group".to_owned(), name)));
        let group = group.transpose()?;
        let mut listed = Listed { columns: columns.len(), ..Listed::default() };
        let mut record = ::csv::StringRecord::new();
        while let Some(line) = rows.read(&mut record)? {
            header::fits(record.len(), &header, RAGGED).map_err(|bad| cell(path, line, bad))?;
            self.push(&mut listed, &record, image, &columns, self.folder(path))
                .map_err(|what| at(path, line, what))?;
            let group = group.and_then(|at| record.get(at));
            listed.groups.extend(self.known(group).map_err(|what| at(path, line, what))?);
        }
        if listed.files.len() == 0 {
            let what = "it has a header but no rows".to_owned();
            return Err(Error::Format { path: path.to_owned(), what });
        }
        Ok(listed)
    }

    /// The group that a row names, where there are groups.
    fn known(&self, group: Option<&str>) -> Result<Option<String>, String> {
        match group {
            Some("") => Err(format!("`{}` is empty", self.group.as_deref().unwrap_or_default())),
            group => Ok(group.map(str::to_owned)),
        }
    }

    /// Appends a row, whose file must be there.
    fn push(
        &self,
        listed: &mut Listed,
        record: &::csv::StringRecord,
        image: usize,
        columns: &[usize],
        folder: &Path,
    ) -> Result<(), String> {
        let cell = |at: usize| record.get(at).unwrap_or_default();
        let file = folder.join(cell(image));
        if cell(image).is_empty() {
            return Err(format!("`{}` is empty", self.image_column));
        }
        if !file.is_file() {
            return Err(format!("there is no file `{}`", file.display()));
        }
        listed.files.push_path(&file, 0);
        for (&at, name) in columns.iter().zip(self.columns()) {
            let value = number(name, cell(at))? as f32;
            if !self.class_columns.is_empty() && value != 0.0 && value != 1.0 {
                return Err(format!("`{name}` is `{}`, but must be 0 or 1", cell(at)));
            }
            listed.answers.push(value);
        }
        Ok(())
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
mod tests {
    use super::*;
    use crate::config::kind::Choice;
    use crate::config::values::Shape2;
    use crate::data::Transforms;
    use crate::data::transform::Resize;
    use crate::plan::Targets;

    const ASKED: Asked<'_> = Asked::new("x", 0, Targets::Numbers);

    fn folder(table: &str) -> (tempfile::TempDir, ImageTable) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.ppm", "b.ppm"] {
            let bytes = [b"P6 2 2 255 ".as_slice(), &[7; 12]].concat();
            crate::files::write_atomic(&dir.path().join(name), &bytes).unwrap();
        }
        let path = dir.path().join("t.csv");
        crate::files::write_atomic(&path, table.as_bytes()).unwrap();
        let data = ImageTable {
            train_file: path.clone(),
            val_file: Some(path),
            test_file: None,
            group: None,
            image_dir: None,
            image_column: image(),
            class_columns: vec!["dog".to_owned(), "cat".to_owned()],
            target_columns: vec![],
            pixel_dtype: PixelDtype::Uint8,
            exif: Exif::Ignore,
        };
        (dir, data)
    }

    #[test]
    fn images_have_the_classes_that_their_rows_name() {
        let (_dir, data) = folder("image,cat,dog,note\na.ppm,1,0,x\nb.ppm,1,1,y\n");
        let found = data.survey(&ASKED).unwrap();
        assert_eq!((found.n_train, found.multi_label), (2, true));
        assert_eq!((found.classes, found.class_counts), (data.class_columns.clone(), vec![1, 2]));
        let list = [Choice::of(&Resize::to(Shape2::Both([2, 2])))];
        let reading = Reading {
            asked: &ASKED,
            found: &Options::new(),
            train_transforms: &list,
            val_transforms: &list,
            transforms: &Transforms::default(),
        };
        let splits = data.open(&reading).unwrap();
        let target = splits.train.load(0, None, &mut Vec::new()).unwrap();
        assert_eq!(target, Target::Series(vec![0.0, 1.0]));
        assert!(splits.val.name(1).ends_with("b.ppm`"));
    }

    #[test]
    fn images_of_a_group_are_held_back_together() {
        let (_dir, mut data) = folder(
            "image,cat,dog,of\na.ppm,1,0,x\nb.ppm,1,1,y\na.ppm,0,0,x\nb.ppm,0,1,z\na.ppm,1,0,z\n",
        );
        (data.val_file, data.group) = (None, Some("of".to_owned()));
        let split = SplitPlan { folds: Some(3), fold: 2, ..SplitPlan::NONE };
        let Parts { train, val, test } = data.parts(&split).unwrap();
        assert!(test.is_none());
        assert_eq!(train.files.len() + val.files.len(), 5);
        assert_eq!(
            [val.answers.len(), train.answers.len()],
            [2 * val.files.len(), 2 * train.files.len()]
        );
        let found = data.survey(&Asked { split, ..ASKED }).unwrap();
        assert_eq!((found.n_train, found.n_val), (train.files.len(), val.files.len()));
        data.group = Some("patient".to_owned());
        let error = data.parts(&split).err().unwrap().to_string();
        assert!(error.contains("has no column `patient`"), "{error}");
    }

    #[test]
    fn an_image_that_names_no_group_is_refused() {
        let check = |row: &str, expected: &str| {
            let table = format!("image,cat,dog,of\na.ppm,1,0,x\n{row}\nb.ppm,1,1,y\n");
            let (_dir, mut data) = folder(&table);
            (data.val_file, data.group) = (None, Some("of".to_owned()));
            let split = SplitPlan { folds: Some(2), ..SplitPlan::NONE };
            let error = data.parts(&split).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("b.ppm,1,1", "line 3: 3 cells, but the header has 4");
        check("b.ppm,1,1,", "line 3: `of` is empty");
    }

    #[test]
    fn what_cannot_be_used_is_named_with_its_line() {
        let check = |table: &str, expected: &str| {
            let error = folder(table).1.survey(&ASKED).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("image,cat,dog\na.ppm,1,0\nc.ppm,1,1\n", "line 3: there is no file");
        check("image,cat,dog\na.ppm,1,2\n", "line 2: `dog` is `2`, but must be 0 or 1");
        check("image,cat,dog\na.ppm,1,\n", "line 2: `dog` is empty");
        check("image,cat,dog\na.ppm,1\n", "line 2: 2 cells, but the header has 3");
        check("image,cat,dog\na.ppm,0,1,0\n", "line 2: 4 cells, but the header has 3");
        check("image,cat,dog\n", "no rows");
        check("image,cat\na.ppm,1\n", "has no column `dog`");
        check("file,cat,dog\na.ppm,1,0\n", "has no column `image`");
        let data = folder("").1;
        let wrong = |data: ImageTable| data.check()[0].what.clone();
        assert!(
            wrong(ImageTable { class_columns: vec![], ..data.clone() }).contains("needs columns")
        );
        let twice = vec!["cat".to_owned(), "cat".to_owned()];
        assert_eq!(wrong(ImageTable { class_columns: twice, ..data.clone() }), "names `cat` twice");
        let file = ImageTable { image_column: "cat".to_owned(), ..data };
        assert!(wrong(file).contains("which is the column of the files"));
    }
}
