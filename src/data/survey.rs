//! `[data]` -> [`DataFacts`]: what is there, counted before anything is decided. No image is decoded.

use std::path::{Path, PathBuf};

use crate::config::schema::{Data, DataKind};
use crate::data::error::Error;
use crate::data::{
    control, csv, forecast, image_folder, instructions, mnist, shapes, speech, tokens,
};
use crate::plan::{
    Behaviour, Calendar, ChunkPlan, DataFacts, InstructionSource, SourcePlan, SplitRule,
};

/// Folder of generated sets of shapes where the experiment names none.
const SHAPES_DIR: &str = "data/shapes";

/// Makes what the experiment wants generated, if it is not there yet. Other data is left alone.
///
/// # Errors
///
/// The folder cannot be written, or holds something that was not generated.
pub fn generate(data: &Data, seed: u64) -> Result<(), Error> {
    if data.name != DataKind::Shapes {
        return Ok(());
    }
    let (root, parameters) = shapes_of(data, seed)?;
    shapes::ensure(&root, &parameters)
}

/// The folder that holds generated sets, and what this one is made from.
fn shapes_of(data: &Data, seed: u64) -> Result<(PathBuf, shapes::Parameters), Error> {
    let root = data.dir.clone().unwrap_or_else(|| PathBuf::from(SHAPES_DIR));
    Ok((root, shapes::Parameters::new(data, seed)?))
}

/// Counts the samples and classes of both splits, and changes nothing: shapes that are still to be
/// generated are counted as they will be.
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
            let (root, parameters) = shapes_of(data, seed)?;
            let dir = parameters.folder(&root);
            let (train, val) = (dir.join("train"), dir.join("val"));
            if shapes::is_ready(&root, &parameters)? {
                return survey_folders(&train, &val);
            }
            let source = SourcePlan::ImageFolder { train, val };
            Ok(parameters.facts(source))
        }
        DataKind::Mnist => survey_mnist(needed(data.dir.as_ref(), "data.dir", "mnist")?),
        DataKind::Csv => survey_tables(data, classify),
        DataKind::CsvForecast => survey_forecast(data),
        DataKind::Tokens => survey_tokens(data),
        DataKind::Instructions => survey_instructions(data),
        DataKind::Speech => {
            let train = needed(data.train_dir.as_ref(), "data.train_dir", "speech")?;
            let val = needed(data.val_dir.as_ref(), "data.val_dir", "speech")?;
            let n_mels = data.n_mels.map_or(80, |bands| bands as usize);
            speech::survey(train, val, n_mels, data.max_seconds.unwrap_or(20.0))
        }
        DataKind::Trajectories | DataKind::PushTLike => {
            let missing = Error::MissingKey { key: "data.file", kind: "trajectories" };
            control::survey(Behaviour::of(data, seed).ok_or(missing)?, ChunkPlan::of(data))
        }
    }
}

fn survey_folders(train: &Path, val: &Path) -> Result<DataFacts, Error> {
    let (train_listing, val_listing) = image_folder::list(train, val)?;
    let notes = [train_listing.note(train), val_listing.note(val)];
    Ok(DataFacts {
        source: SourcePlan::ImageFolder { train: train.to_owned(), val: val.to_owned() },
        n_train: train_listing.files.len(),
        n_val: val_listing.files.len(),
        classes: train_listing.classes,
        sample: None,
        n_test: 0,
        notes: notes.into_iter().flatten().collect(),
        target: Vec::new(),
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
        n_test: 0,
        notes: Vec::new(),
        target: Vec::new(),
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
        n_test: 0,
        notes: Vec::new(),
        target: Vec::new(),
    })
}

fn survey_forecast(data: &Data) -> Result<DataFacts, Error> {
    const KIND: &str = "csv_forecast";
    forecast::survey(forecast::Forecast {
        file: needed(data.file.as_ref(), "data.file", KIND)?.clone(),
        split: data.split.unwrap_or(SplitRule::Parts([7, 1, 2])),
        seq_len: *needed(data.seq_len.as_ref(), "data.seq_len", KIND)? as usize,
        pred_len: *needed(data.pred_len.as_ref(), "data.pred_len", KIND)? as usize,
        calendar: data.calendar.unwrap_or(Calendar::Hour),
        check_dates: data.check_dates.unwrap_or(true),
    })
}

/// The tokenizer's file; `None` = characters.
fn tokenizer(data: &Data) -> Option<&PathBuf> {
    data.tokenizer.as_ref().filter(|path| path.as_os_str() != "char")
}

fn survey_instructions(data: &Data) -> Result<DataFacts, Error> {
    const KIND: &str = "instructions";
    instructions::survey(InstructionSource {
        file: needed(data.file.as_ref(), "data.file", KIND)?.clone(),
        tokenizer: needed(tokenizer(data), "data.tokenizer", KIND)?.clone(),
        seq_len: *needed(data.seq_len.as_ref(), "data.seq_len", KIND)? as usize,
        val_ratio: data.val_ratio.unwrap_or(0.1),
        mask_prompt: data.mask_prompt.unwrap_or(false),
        eos_token: data.eos_token.clone(),
    })
}

/// A text, or two files of tokens.
fn survey_tokens(data: &Data) -> Result<DataFacts, Error> {
    const KIND: &str = "tokens";
    /// Size of GPT-2's vocabulary.
    const GPT2: u32 = 50_257;
    let source = match (&data.file, &data.train_file, &data.val_file) {
        (Some(file), ..) => tokens::Source::Text(file.clone(), tokenizer(data).cloned()),
        (None, Some(train), val) => tokens::Source::Binary {
            train: train.clone(),
            val: needed(val.as_ref(), "data.val_file", KIND)?.clone(),
            vocabulary: data.vocab_size.unwrap_or(GPT2) as usize,
        },
        (None, None, _) => return Err(Error::MissingKey { key: "data.file", kind: KIND }),
    };
    tokens::survey(&source, *needed(data.seq_len.as_ref(), "data.seq_len", KIND)? as usize)
}

fn needed<'a, T>(
    value: Option<&'a T>,
    key: &'static str,
    kind: &'static str,
) -> Result<&'a T, Error> {
    value.ok_or(Error::MissingKey { key, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::kind::Choice;
    use crate::config::schema::{self, OnBadSample, Sampler};
    use crate::config::values::{Auto, Shape2};
    use crate::data::loader::{Loader, Request, Settings};
    use crate::data::open;
    use crate::data::transform::{CenterCrop, Normalize, RandomCrop, Resize, Transforms};
    use crate::plan::DataPlan;

    fn data(name: DataKind) -> Data {
        Data {
            name,
            train_dir: None,
            val_dir: None,
            dir: None,
            train_file: None,
            val_file: None,
            target: None,
            file: None,
            split: None,
            seq_len: None,
            pred_len: None,
            calendar: None,
            check_dates: None,
            vocab_size: None,
            tokenizer: None,
            mask_prompt: None,
            eos_token: None,
            sample_tokens: None,
            horizon: None,
            n_obs_steps: None,
            n_action_steps: None,
            val_ratio: None,
            episodes: None,
            n_mels: None,
            max_seconds: None,
            classes: None,
            train_per_class: None,
            val_per_class: None,
            image_size: None,
            num_workers: Auto::Given(0),
            prefetch_factor: 2,
            drop_last: true,
            shuffle: true,
            sampler: Sampler::Shards,
            on_bad_sample: OnBadSample::Error,
            max_bad_fraction: 0.1,
            transforms: schema::Transforms::default(),
        }
    }

    fn plan(facts: DataFacts, transforms: Vec<Choice>) -> DataPlan {
        DataPlan {
            source: facts.source,
            n_train: facts.n_train,
            n_val: facts.n_val,
            n_test: facts.n_test,
            notes: facts.notes,
            classes: facts.classes,
            sampler: Sampler::Shards,
            shuffle: true,
            drop_last: true,
            num_workers: 2,
            prefetch_factor: 2,
            on_bad_sample: OnBadSample::Error,
            max_bad_fraction: 0.1,
            train_transforms: transforms.clone(),
            val_transforms: transforms,
        }
    }

    fn shapes(dir: &Path) -> Data {
        Data {
            dir: Some(dir.to_owned()),
            classes: Some(3),
            train_per_class: Some(4),
            val_per_class: Some(2),
            image_size: Some(16),
            ..data(DataKind::Shapes)
        }
    }

    /// The folder of the generated set.
    fn set(data: &Data) -> PathBuf {
        let (root, parameters) = shapes_of(data, 1).unwrap();
        parameters.folder(&root)
    }

    fn generated(data: &Data) -> DataFacts {
        let planned = survey(data, 1, true).unwrap();
        generate(data, 1).unwrap();
        let found = survey(data, 1, true).unwrap();
        assert_eq!(found, planned, "what was counted before is what is there");
        found
    }

    #[test]
    fn shapes_go_all_the_way_from_survey_to_batches() {
        let root = tempfile::tempdir().unwrap();
        let facts = generated(&shapes(&root.path().join("shapes")));
        assert_eq!((facts.n_train, facts.n_val, facts.classes.len()), (12, 6, 3));
        let transforms = vec![
            Choice::of(&RandomCrop { size: Shape2::Side(16), padding: 2 }),
            Choice::of(&Normalize { mean: vec![0.5], std: vec![0.5] }),
        ];
        let plan = plan(facts, transforms);
        let splits = open(&plan, &Transforms::default()).unwrap();
        let request = Request { samples: vec![0, 11, 4], epoch: Some(0) };
        let settings = Settings::new(&plan, 1);
        let mut loader = Loader::start(splits.train, std::iter::once(request), settings).unwrap();
        let batch = loader.next().unwrap().unwrap().batch;
        assert_eq!(batch.inputs.dims(), [3, 3, 16, 16]);
        assert_eq!(batch.targets.to_vec1::<u32>().unwrap(), [0, 2, 1]);
        let values: Vec<f32> = batch.inputs.flatten_all().unwrap().to_vec1().unwrap();
        assert!(values.iter().all(|value| (-1.0..=1.0).contains(value)));
        assert!(loader.next().is_none());
    }

    #[test]
    fn data_that_changed_since_the_plan_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("shapes");
        let shapes = shapes(&dir);
        let facts = generated(&shapes);
        let resize = vec![Choice::of(&Resize { size: Shape2::Both([8, 8]) })];
        let plan = plan(facts, resize);
        std::fs::remove_file(set(&shapes).join("train/red_circle/0000.png")).unwrap();
        let Err(error) = open(&plan, &Transforms::default()) else { panic!("opened") };
        assert_eq!(
            error.to_string(),
            "the data changed since the run was planned:\n  train: 11 samples, was 12"
        );
    }

    #[test]
    fn a_truncated_or_empty_image_is_named_when_it_is_loaded() {
        let root = tempfile::tempdir().unwrap();
        let shapes = shapes(&root.path().join("shapes"));
        let facts = generated(&shapes);
        let dir = set(&shapes);
        let plan = plan(facts, vec![Choice::of(&CenterCrop { size: Shape2::Side(8) })]);
        let cut = |name: &str, length| {
            let file = std::fs::File::options().write(true).open(dir.join(name)).unwrap();
            file.set_len(length).unwrap();
        };
        cut("train/blue_circle/0000.png", 0);
        cut("train/blue_circle/0001.jpg", 300);
        let train = open(&plan, &Transforms::default()).unwrap().train;
        let mut values = vec![0.0; 3 * 8 * 8];
        let mut message = |i| train.load(i, None, &mut values).unwrap_err().to_string();
        let (empty, truncated) = (message(0), message(1));
        assert!(empty.contains("0000.png") && empty.contains("the file is empty"), "{empty}");
        assert!(truncated.contains("0001.jpg") && truncated.contains("truncated"), "{truncated}");
    }

    #[test]
    fn missing_keys_and_folders_are_named_with_a_remedy() {
        let check = |data: &Data, message: &str, help: &str| {
            let error = survey(data, 1, true).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert!(error.help().unwrap().contains(help), "{error:?}");
        };
        let absent = Some(PathBuf::from("/absent/data"));
        check(&data(DataKind::ImageFolder), "`data.train_dir` is not set", "set `data.train_dir`");
        let folders = Data {
            train_dir: absent.clone(),
            val_dir: absent.clone(),
            ..data(DataKind::ImageFolder)
        };
        check(
            &folders,
            "the training folder `/absent/data` does not exist",
            "one folder per class",
        );
        let mnist = Data { dir: absent.clone(), ..data(DataKind::Mnist) };
        check(&mnist, "the folder of idx files `/absent/data`", "train-images-idx3-ubyte");
        let table = Data {
            train_file: absent.clone(),
            val_file: absent,
            target: Some("y".to_owned()),
            ..data(DataKind::Csv)
        };
        check(&table, "the training table `/absent/data`", "header line");
        let shapes = Data { classes: Some(91), ..data(DataKind::Shapes) };
        let error = survey(&shapes, 1, true).unwrap_err();
        assert_eq!(error.to_string(), "`data.classes` is 91, but must be in 2..=90");
    }
}
