//! Data sets by `data.name`: counted before anything is decided, and opened by each rank.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use crate::config::kind::{Choice, Kind, Options};
use crate::error::Error;
use crate::plan::{
    Cameras, Limit, OnBadSample, PixelDtype, PixelStats, Plan, SplitPlan, TargetColumn, Targets,
};
use crate::registry::{Accepts, Family, Registry};
use crate::rng::Key;
use crate::transform::{Pixels, Transforms};
use crate::units::Bytes;
use crate::{Inputs, PredictionRequest, Splits, TextForm};

/// A data set. Every rank opens the same.
pub trait DataSource: Debug + Send + Sync {
    /// Opens all splits, and the classes in label order.
    ///
    /// # Errors
    ///
    /// The data is absent, incomplete or inconsistent; names the path and what was expected there.
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error>;

    /// Counts samples and classes, and changes nothing. Images are not decoded for it.
    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        // Nothing was found out or decided.
        let found = &Options::new();
        let transforms = &Transforms::empty();
        let train_transforms = &[][..];
        let val_transforms = &[][..];
        let reading =
            OpenRequest { survey: request, found, train_transforms, val_transforms, transforms };
        Ok(Survey::of(&self.open(&reading)?))
    }

    /// Kind of the target, if it decides the defaults of `loss.name` and `checkpoint.monitor`, as
    /// for a table, whose target may be classes or numbers. `None` keeps the usual defaults.
    fn target(&self) -> Result<Option<Targets>, Error> {
        Ok(None)
    }

    /// Makes what has to be generated, if it is not there yet. `tell` shows the user, before it
    /// begins, what will take a while.
    fn generate(&self, _request: &SurveyRequest<'_>, _tell: &dyn Fn(&str)) -> Result<(), Error> {
        Ok(())
    }

    /// The options that name repositories on the hub, or folders in them, instead of one file.
    fn repositories(&self) -> &'static [&'static str] {
        &[]
    }

    /// The files that it reads of such a repository, of those that are `listed`. `root` is its name,
    /// for messages.
    fn repository_files(&self, _root: &str, listed: &[String]) -> Result<Vec<String>, Error> {
        Ok(listed.to_vec())
    }

    /// The option that names the folder of what [`DataSource::generate`] makes, if it makes any.
    fn generated_in(&self) -> Option<&'static str> {
        None
    }

    /// The files that it reads, so that a resumed run continues with the same ones.
    fn files(&self, _found: &Options) -> Result<Vec<Files>, Error> {
        Ok(Vec::new())
    }

    /// What the data set says of its contents beside its files, if it says something, as the survey
    /// `found` it.
    fn fingerprint(&self, _found: &Options) -> Option<String> {
        None
    }

    /// The numbers by which samples are prepared, for other programs: by default what the survey
    /// `found`, such as the means and categories of a table.
    fn preprocessing(&self, found: &Options) -> Result<Options, Error> {
        Ok(found.clone())
    }

    /// Mean and deviation of each number to predict that was standardised, as the survey `found`
    /// them; empty if they stay as they are.
    fn target_scales(&self, _found: &Options) -> Vec<(f64, f64)> {
        Vec::new()
    }

    /// An attempt at the task that its behaviour solves, from a start that `key` draws; `None` if
    /// there is no simulation.
    fn environment(&self, _key: Key) -> Option<Box<dyn Environment>> {
        None
    }

    /// Tokenization of text, for `ddprun sample`; `None` if samples are no text.
    fn text(&self) -> Option<TextForm> {
        None
    }

    /// Samples without answers, for `ddprun predict`, read as those of the run were.
    fn inputs(&self, _request: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        let why = "its source does not say how inputs without answers are read \
                   (`DataSource::inputs`)";
        Err(Error::NotPredicted { why })
    }

    /// Tokens of the text that is drawn when a run is over.
    fn sample_tokens(&self) -> Option<u32> {
        None
    }
}

/// Settings of the experiment outside of `[data]` that its data set needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurveyRequest<'a> {
    /// Name of the experiment, which names folders of generated data.
    pub experiment: &'a str,
    /// Seed of what is generated.
    pub seed: u64,
    /// Target type of the loss: a table's targets are classes or numbers.
    pub targets: Targets,
    /// Limit on the number of training samples.
    pub limit: Limit,
    /// Survey results of the run that is continued; `None` for a new run.
    pub found: Option<&'a Options>,
    /// Training samples that are held out.
    pub split: SplitPlan,
    /// What becomes of samples that cannot be read.
    pub on_bad_sample: OnBadSample,
}

impl<'a> SurveyRequest<'a> {
    /// A new experiment on all samples.
    pub const fn new(experiment: &'a str, seed: u64, targets: Targets) -> Self {
        let limit = Limit::All;
        let split = SplitPlan::NONE;
        let on_bad_sample = OnBadSample::Error;
        Self { experiment, seed, targets, limit, split, on_bad_sample, found: None }
    }

    /// The settings of the experiment of `plan`.
    pub fn of(plan: &'a Plan) -> Self {
        let found = Some(&plan.data.source.survey);
        let split = plan.data.split;
        let on_bad_sample = plan.data.on_bad_sample;
        let new = Self::new(&plan.name, plan.seed, plan.loss.targets);
        Self { found, split, on_bad_sample, ..new }
    }
}

/// Settings for opening a data set.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    /// Settings of the rest of the experiment.
    pub survey: &'a SurveyRequest<'a>,
    /// Results of its survey; empty during the survey itself.
    pub found: &'a Options,
    /// Transforms of training images.
    pub train_transforms: &'a [Choice],
    /// Transforms of validation images.
    pub val_transforms: &'a [Choice],
    /// All transforms that the program knows.
    pub transforms: &'a Transforms,
}

/// A data set, counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// Samples to train on.
    pub n_train: usize,
    /// Samples to validate on.
    pub n_val: usize,
    /// Samples to test on when the training is over; 0 = there is no test.
    pub n_test: usize,
    /// Class names in label order; empty for numbers.
    pub classes: Vec<String>,
    /// Bytes of text of each class, if they are tokens of which that is known.
    pub token_bytes: Vec<u32>,
    /// Training samples of each class; empty if they are not counted.
    pub class_counts: Vec<u64>,
    /// True if a sample may have several classes.
    pub multi_label: bool,
    /// Numbers of a target that is a plain list of several; 0 = it is one number or has a shape.
    pub n_targets: usize,
    /// The numbers of a target that have names.
    pub target_columns: Vec<TargetColumn>,
    /// At the end of a sample, the widths of what is 1 at one place and 0 elsewhere: columns of
    /// categories.
    pub one_hot: Vec<usize>,
    /// Shape of one sample where the files decide it; `None` where transforms do.
    pub sample: Option<Vec<usize>>,
    /// Shape of one target where it is an array; empty for a label or a number.
    pub target: Vec<usize>,
    /// Images that each observation holds beside the numbers of `sample`, as they are before
    /// transforms.
    pub cameras: Option<Cameras>,
    /// Pixel statistics that normalize images if no transform does it.
    pub pixels: Option<PixelStats>,
    /// Storage type of the pixels of image files.
    pub pixel_dtype: PixelDtype,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Line of `ddprun plan`; the options if this is empty.
    pub line: String,
    /// Lines below it: the columns of a table.
    pub columns: Vec<String>,
    /// Bytes that each rank holds in memory.
    pub held: Bytes,
    /// Results that opening it needs.
    pub found: Options,
}

impl Survey {
    /// Counts the opened splits.
    pub fn of(splits: &Splits) -> Self {
        Self {
            n_train: splits.train.len(),
            n_val: splits.val.len(),
            n_test: splits.test.as_ref().map_or(0, |test| test.len()),
            classes: splits.classes.clone(),
            class_counts: class_counts(splits),
            sample: Some(splits.train.shape().to_vec()),
            target: splits.train.target_shape().to_vec(),
            ..Self::default()
        }
    }
}

/// Training samples of each class; empty if a label is not known.
fn class_counts(Splits { train, classes, .. }: &Splits) -> Vec<u64> {
    let mut counts = vec![0; classes.len()];
    for index in 0..train.len() {
        let label = train.label(index);
        let Some(count) = label.and_then(|label| counts.get_mut(label as usize)) else {
            return Vec::new();
        };
        *count += 1;
    }
    counts
}

/// Files that a data set reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Name of the part: `train`, `val`, `table` ...
    pub name: &'static str,
    /// The folder that they are in.
    pub root: PathBuf,
    /// All files.
    pub paths: Vec<PathBuf>,
    /// True if contents are compared however many files there are; else very many are compared by
    /// names and sizes.
    pub by_contents: bool,
}

impl Files {
    /// A single file.
    pub fn one(name: &'static str, path: &Path) -> Self {
        let root = path.parent().unwrap_or(path).to_owned();
        Self { name, root, paths: vec![path.to_owned()], by_contents: true }
    }

    /// Files that are read one after the other, named as a whole by `path`: a file, a folder or a
    /// pattern.
    pub fn parts(name: &'static str, path: &Path, paths: Vec<PathBuf>) -> Self {
        let root = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        Self { name, root: root.to_owned(), paths, by_contents: true }
    }

    /// Files of a folder, of which there may be many.
    pub fn many(name: &'static str, root: &Path, paths: Vec<PathBuf>) -> Self {
        Self { name, root: root.to_owned(), paths, by_contents: false }
    }
}

/// `[data]`
#[derive(Debug)]
pub enum DataFamily {}

impl Family for DataFamily {
    const TABLE: &'static str = "data";
    const NOUN: &'static str = "data set";
    type Object = dyn DataSource;
}

impl<K: Kind + DataSource> Accepts<K> for DataFamily {
    fn boxed(kind: K) -> Box<dyn DataSource> {
        Box::new(kind)
    }
}

/// Data sets that a program knows.
pub type DataSources = Registry<DataFamily>;

/// A task that a policy of actions is to solve: one attempt of it.
pub trait Environment: Send {
    /// The current observation, in the units of the data.
    fn observe(&self) -> Vec<f32>;

    /// The current image of each camera; empty without cameras.
    fn images(&self) -> Vec<Pixels> {
        Vec::new()
    }

    /// Does `action`, in the units of the data.
    fn step(&mut self, action: &[f32]);

    /// True if the goal is reached.
    fn is_solved(&self) -> bool;

    /// Actions after which an attempt is over.
    fn max_steps(&self) -> usize;

    /// Names of the numbers that are seen, then of those of an action, for tables.
    fn names(&self) -> &'static [&'static str];
}
