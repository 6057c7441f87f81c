//! `[data]` -> [`DataFacts`]: what is there, counted before anything is decided. No image is decoded.

use std::path::{Path, PathBuf};

use crate::config::schema::{Data, DataKind};
use crate::data::error::Error;
use crate::data::{csv, image_folder, mnist, shapes};
use crate::plan::{DataFacts, SourcePlan};

/// Folder of generated shapes where the experiment names none.
const SHAPES_DIR: &str = "data/shapes";

/// Counts the samples and classes of both splits. Shapes are generated first, if they are not there yet.
///
/// `classify` says whether a table's target is a class (the loss decides; other data always is).
///
/// # Errors
///
/// The data is absent, incomplete or inconsistent; names the path and what was expected there.
pub fn survey(data: &Data, seed: u64, classify: bool) -> Result<DataFacts, Error> {
    match data.name {
        DataKind::ImageFolder => {
            let train = needed(data.train_dir.as_ref(), "data.train_dir", "image_folder")?;
            let val = needed(data.val_dir.as_ref(), "data.val_dir", "image_folder")?;
            survey_folders(train, val)
        }
        DataKind::Shapes => {
            let dir = data.dir.clone().unwrap_or_else(|| PathBuf::from(SHAPES_DIR));
            shapes::ensure(&dir, &shapes::Parameters::new(data, seed)?)?;
            survey_folders(&dir.join("train"), &dir.join("val"))
        }
        DataKind::Mnist => survey_mnist(needed(data.dir.as_ref(), "data.dir", "mnist")?),
        DataKind::Csv => survey_tables(data, classify),
    }
}

fn survey_folders(train: &Path, val: &Path) -> Result<DataFacts, Error> {
    let (train_listing, val_listing) = image_folder::list(train, val)?;
    Ok(DataFacts {
        source: SourcePlan::ImageFolder { train: train.to_owned(), val: val.to_owned() },
        n_train: train_listing.files.len(),
        n_val: val_listing.files.len(),
        classes: train_listing.classes,
        sample: None,
    })
}

fn survey_mnist(dir: &Path) -> Result<DataFacts, Error> {
    let counts = mnist::count(dir)?;
    let (height, width) = counts.size;
    Ok(DataFacts {
        source: SourcePlan::Mnist { dir: dir.to_owned() },
        n_train: counts.n_train,
        n_val: counts.n_val,
        classes: counts.classes,
        sample: Some(vec![1, height as usize, width as usize]),
    })
}

fn survey_tables(data: &Data, classify: bool) -> Result<DataFacts, Error> {
    let train = needed(data.train_file.as_ref(), "data.train_file", "csv")?;
    let val = needed(data.val_file.as_ref(), "data.val_file", "csv")?;
    let target = needed(data.target.as_ref(), "data.target", "csv")?;
    let counts = csv::count(train, val, target, classify)?;
    Ok(DataFacts {
        source: SourcePlan::Csv {
            train: train.clone(),
            val: val.clone(),
            target: target.clone(),
            classify,
        },
        n_train: counts.n_train,
        n_val: counts.n_val,
        classes: counts.classes,
        sample: Some(vec![counts.n_features]),
    })
}

fn needed<'a, T>(
    value: Option<&'a T>,
    key: &'static str,
    kind: &'static str,
) -> Result<&'a T, Error> {
    value.ok_or(Error::MissingKey { key, kind })
}
