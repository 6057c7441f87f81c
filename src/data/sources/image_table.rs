//! `data.name = "image_table"`: images that a table lists, with several classes or numbers for
//! each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Modality, Offer, Options, Wrong};
use crate::data::error::{Error, SampleError};
use crate::data::listing::paths::{Paths, both};
use crate::data::sources::image_folder::ImageFiles;
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::tables::column::number;
use crate::data::sources::tables::csv::{Lines, malformed};
use crate::data::sources::tables::table::at;
use crate::data::{Dataset, Splits, Target, read};
use crate::rng::Key;

const EXPECTED: &str =
    "a table with a header line: the file of an image, and its classes or numbers";

/// images that a table lists, each with several classes (or none) or several numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageTable {
    /// table to train on, separated by commas, with a header line.
    #[schemars(extend("format" = "path"), example = "data/train.csv")]
    pub train_file: PathBuf,
    /// table to validate on, with the same columns.
    #[schemars(extend("format" = "path"), example = "data/val.csv")]
    pub val_file: PathBuf,
    /// folder in which the files of both tables are; absent = that of each table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"), example = "data/images")]
    pub image_dir: Option<PathBuf>,
    /// column with the file of each image.
    #[serde(default = "image")]
    pub image_column: String,
    /// columns of the classes, in label order: 1 where an image has the class, else 0.
    #[serde(default)]
    #[schemars(example = ["cat", "dog"])]
    pub class_columns: Vec<String>,
    /// columns of the numbers to predict, instead of `class_columns`.
    #[serde(default)]
    #[schemars(example = ["x", "y"])]
    pub target_columns: Vec<String>,
}

fn image() -> String {
    "image".to_owned()
}

impl Kind for ImageTable {
    const NAME: &'static str = "image_table";
    const OFFERS: &'static [Offer] = &[Offer::Samples(Modality::Images)];

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
        let split = |listed: Listed, list| -> Result<Arc<dyn Dataset>, Error> {
            let images = ImageFiles::new(listed.files, list, reading.transforms)?;
            let shape = [self.columns().len()];
            Ok(Arc::new(Images { files: images, answers: listed.answers, shape }))
        };
        let (train, val) = self.read()?;
        Ok(Splits {
            train: split(train, reading.train_transforms)?,
            val: split(val, reading.val_transforms)?,
            test: None,
            classes: self.class_columns.clone(),
        })
    }

    fn survey(&self, _: &Asked<'_>) -> Result<Survey, Error> {
        let (train, val) = self.read()?;
        let columns = self.columns().len();
        let having = |class: usize| {
            let column = train.answers.iter().skip(class).step_by(columns);
            column.filter(|has| **has > 0.5).count() as u64
        };
        Ok(Survey {
            n_train: train.files.len(),
            n_val: val.files.len(),
            class_counts: (0..self.class_columns.len()).map(having).collect(),
            classes: self.class_columns.clone(),
            multi_label: !self.class_columns.is_empty(),
            n_targets: self.target_columns.len(),
            line: both(&self.train_file, &self.val_file),
            ..Survey::default()
        })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let (train, val) = self.read()?;
        let images = |name, listed: Listed, table: &Path| {
            let paths = listed.files.iter().map(|(path, _)| path).collect();
            Files::many(name, self.folder(table), paths)
        };
        Ok(vec![
            Files::one("train table", &self.train_file),
            Files::one("val table", &self.val_file),
            images("train", train, &self.train_file),
            images("val", val, &self.val_file),
        ])
    }
}

/// The rows of a table.
struct Listed {
    files: Paths,
    /// Those of one row after the other.
    answers: Vec<f32>,
}

impl ImageTable {
    /// What is to be predicted.
    fn columns(&self) -> &[String] {
        if self.class_columns.is_empty() { &self.target_columns } else { &self.class_columns }
    }

    /// Where the images of `table` are.
    fn folder<'a>(&'a self, table: &'a Path) -> &'a Path {
        let own = || table.parent().unwrap_or(Path::new(""));
        self.image_dir.as_deref().unwrap_or_else(own)
    }

    fn read(&self) -> Result<(Listed, Listed), Error> {
        Ok((
            self.read_one(&self.train_file, "the training table")?,
            self.read_one(&self.val_file, "the validation table")?,
        ))
    }

    fn read_one(&self, path: &Path, what: &'static str) -> Result<Listed, Error> {
        let bytes = read::table(what, path, EXPECTED)?;
        let mut reader = ::csv::ReaderBuilder::new()
            .flexible(true)
            .trim(::csv::Trim::All)
            .from_reader(bytes.as_slice());
        let mut lines = Lines::of(&bytes);
        let header = reader.headers().map_err(|error| malformed(path, &mut lines, &error))?;
        let header: Vec<String> = header.iter().map(str::to_owned).collect();
        let place = |column: &String| {
            header.iter().position(|name| name == column).ok_or_else(|| Error::NoColumn {
                path: path.to_owned(),
                column: column.clone(),
                columns: header.clone(),
            })
        };
        let image = place(&self.image_column)?;
        let columns: Vec<usize> = self.columns().iter().map(place).collect::<Result<_, _>>()?;
        let mut listed = Listed { files: Paths::default(), answers: Vec::new() };
        let mut record = ::csv::StringRecord::new();
        while reader
            .read_record(&mut record)
            .map_err(|error| malformed(path, &mut lines, &error))?
        {
            let line = lines.line(record.position());
            self.push(&mut listed, &record, image, &columns, self.folder(path))
                .map_err(|what| at(path, line, what))?;
        }
        if listed.files.len() == 0 {
            let what = "it has a header but no rows".to_owned();
            return Err(Error::Format { path: path.to_owned(), what });
        }
        Ok(listed)
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
            val_file: path,
            image_dir: None,
            image_column: image(),
            class_columns: vec!["dog".to_owned(), "cat".to_owned()],
            target_columns: vec![],
        };
        (dir, data)
    }

    #[test]
    fn images_have_the_classes_that_their_rows_name() {
        let (_dir, data) = folder("image,cat,dog,note\na.ppm,1,0,x\nb.ppm,1,1,y\n");
        let found = data.survey(&ASKED).unwrap();
        assert_eq!((found.n_train, found.multi_label), (2, true));
        assert_eq!((found.classes, found.class_counts), (data.class_columns.clone(), vec![1, 2]));
        let list = [Choice::of(&Resize { size: Shape2::Both([2, 2]) })];
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
    fn what_cannot_be_used_is_named_with_its_line() {
        let check = |table: &str, expected: &str| {
            let error = folder(table).1.survey(&ASKED).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("image,cat,dog\na.ppm,1,0\nc.ppm,1,1\n", "line 3: there is no file");
        check("image,cat,dog\na.ppm,1,2\n", "line 2: `dog` is `2`, but must be 0 or 1");
        check("image,cat,dog\na.ppm,1\n", "line 2: `dog` is empty");
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
