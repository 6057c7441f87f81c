//! A model with its weights, which predicts files.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{self, OpenCheckpoint};
use crate::data::loader::{Loader, Request, Settings};
use crate::data::{DataSource, InputItems, Inputs, PredictionRequest, Transforms};
use crate::engine::Engine;
use crate::kinds::Kinds;
use crate::plan::{OnBadSample, Plan};
use crate::predict::error::Error;
use crate::predict::form::{Form, Outcome};
use crate::predict::row::{Column, Row, Value};
use crate::runs::{self, CheckpointRef, LOGS, StoredRun, has_checkpoint, run_of};
use crate::user_error::ExitCode;
use crate::worker::{self, SingleProcessEngine};

/// Samples of a part, which is lost when a start is killed.
const PART_SAMPLES: usize = 4096;

/// The model of a run, with the weights of its best checkpoint: their averages where it keeps some.
pub struct Predictor {
    plan: Arc<Plan>,
    engine: Engine,
    source: Box<dyn DataSource>,
    transforms: Transforms,
}

/// Rows of predictions, in the order of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// Columns of a row.
    pub columns: Vec<Column>,
    /// Notes about the inputs: categories that no training row has.
    pub notes: Vec<String>,
    rows: Vec<Vec<Value>>,
}

impl Predictions {
    /// Each row.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|values| Row { columns: &self.columns, values })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl Predictor {
    /// The model of a run, with its best checkpoint, or its newest where no best one is kept. The
    /// run is given by the folder of its logs or of its checkpoints, or in the words of
    /// `ddprun predict` (`quickstart`, `run:quickstart/latest`); the folder of a checkpoint gives
    /// that one.
    pub fn open(run: impl AsRef<Path>, kinds: &Kinds) -> Result<Self, Error> {
        let word = run.as_ref().to_string_lossy();
        let (stored, opened) = of_word(&word)?;
        Self::of(stored.plan, &opened, kinds)
    }

    /// The model of `plan` with the weights of a checkpoint.
    pub(crate) fn of(plan: Plan, opened: &OpenCheckpoint, kinds: &Kinds) -> Result<Self, Error> {
        let source = kinds.data.build(&plan.data.source.kind).map_err(crate::data::Error::from)?;
        let SingleProcessEngine { plan, engine, .. } =
            worker::single_process_engine(plan, Some(opened), kinds)?;
        Ok(Self { plan, engine, source, transforms: kinds.transforms.clone() })
    }

    /// Predicts files and folders: a row for each image, recording, row of a
    /// table or text, and for each time step of a forecast. A row that cannot be read has an
    /// `error`.
    pub fn predict(&mut self, inputs: &[impl AsRef<Path>]) -> Result<Predictions, Error> {
        self.rows(inputs, None)
    }

    /// [`Predictor::predict`] with the `top` most likely classes.
    pub(crate) fn rows(
        &mut self,
        inputs: &[impl AsRef<Path>],
        top: Option<usize>,
    ) -> Result<Predictions, Error> {
        let paths: Vec<PathBuf> = inputs.iter().map(|path| path.as_ref().to_owned()).collect();
        let inputs = read(self.source.as_ref(), &self.plan, &paths, &self.transforms)?;
        let form = Form::of(&self.plan, &inputs, top)?;
        let mut rows = Vec::new();
        for part in parts(&inputs, self.plan.val_batch_size.count()) {
            rows.extend(self.part(&inputs, part, &form)?);
        }
        Ok(Predictions { columns: form.columns, notes: inputs.notes, rows })
    }

    /// Why files of the run's data set cannot be predicted; `None` if they can.
    pub(crate) fn unpredictable(&self) -> Option<Error> {
        let request =
            PredictionRequest { paths: &[], plan: &self.plan.data, transforms: &self.transforms };
        match self.source.inputs(&request) {
            Err(error @ crate::data::Error::NotPredicted { .. }) => Some(error.into()),
            _ => None,
        }
    }

    /// The plan of the run.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The rows of some items.
    pub(crate) fn part(
        &mut self,
        inputs: &Inputs,
        items: Range<usize>,
        form: &Form,
    ) -> Result<Vec<Vec<Value>>, Error> {
        let items: Vec<_> = items.map(|at| inputs.items.get(at)).collect();
        let samples = items.iter().flat_map(|item| item.samples.clone().unwrap_or_default());
        let samples: Vec<u32> = samples.map(|sample| sample as u32).collect();
        let outcomes = self.outcomes(inputs, &samples, form)?;
        let rows = items.iter().flat_map(|item| {
            let samples = item.samples.clone().unwrap_or_default();
            let found: Vec<&Outcome> =
                samples.filter_map(|sample| outcomes.get(&(sample as u32))).collect();
            form.rows(item, &found)
        });
        Ok(rows.collect())
    }

    /// The outcome of each of `samples`.
    fn outcomes(
        &mut self,
        inputs: &Inputs,
        samples: &[u32],
        form: &Form,
    ) -> Result<BTreeMap<u32, Outcome>, Error> {
        let batches = samples.chunks(self.plan.val_batch_size.count());
        let request = |batch: &[u32]| Request { samples: batch.to_vec(), ..Request::default() };
        let requests: Vec<Request> = batches.map(request).collect();
        let mut settings = Settings::new(&self.plan.data, self.plan.seed);
        (settings.on_bad_sample, settings.mixup) = (OnBadSample::Skip, None);
        let loader = Loader::start(inputs.samples.clone(), requests.into_iter(), settings)?;
        self.engine
            .with_evaluated_weights(|engine| answered(engine, loader, form))
            .map_err(failed)?
    }
}

/// The run and the checkpoint that a word names, with paths that are seen from here.
fn of_word(word: &str) -> Result<(StoredRun, OpenCheckpoint), Error> {
    let logs = Path::new(LOGS);
    let folder_of = |checkpoints: &Path| {
        let what = || format!("the logs of the run of `{word}` are not here");
        run_of(checkpoints, logs).ok_or_else(|| Error::new(ExitCode::Refused, what()))
    };
    Ok(match CheckpointRef::parse(word) {
        CheckpointRef::Run(name, which) => {
            let found = runs::find_run_that(logs, Some(name), &has_checkpoint);
            let found = found.map_err(|error| Error::new(ExitCode::Refused, error.to_string()))?;
            let stored = StoredRun::seen_from_here(&found)?;
            let opened = stored.checkpoint(which)?;
            (stored, opened)
        }
        CheckpointRef::Checkpoint(path) => {
            let folder = folder_of(path.parent().unwrap_or(&path))?;
            (StoredRun::seen_from_here(&folder)?, checkpoint::open(&path)?)
        }
        CheckpointRef::Folder(path, which) => {
            let stored = StoredRun::seen_from_here(&folder_of(&path)?)?;
            let opened = runs::open(&path, Some(&stored.plan.checkpoint), which)?;
            (stored, opened)
        }
    })
}

/// The items of each part, in whole batches of samples: the same parts for any number of ranks.
pub(crate) fn parts(inputs: &Inputs, batch: usize) -> Vec<Range<usize>> {
    let most = (PART_SAMPLES / batch.max(1)).max(1) * batch.max(1);
    let n = inputs.items.len();
    if let InputItems::Files(_) = inputs.items {
        return (0..n.div_ceil(most)).map(|at| at * most..((at + 1) * most).min(n)).collect();
    }
    let mut found = Vec::new();
    let mut first = 0;
    let mut samples = 0;
    for at in 0..n {
        let more = inputs.items.get(at).samples.map_or(0, |samples| samples.len());
        if at > first && (samples + more > most || at - first >= most) {
            found.push(first..at);
            (first, samples) = (at, 0);
        }
        samples += more;
    }
    found.push(first..n);
    found
}

/// Files and folders as samples of the model of `plan`.
pub(crate) fn read(
    source: &dyn DataSource,
    plan: &Plan,
    paths: &[PathBuf],
    transforms: &Transforms,
) -> Result<Inputs, Error> {
    let inputs = source.inputs(&PredictionRequest { paths, plan: &plan.data, transforms })?;
    let shape = inputs.samples.shape();
    let wanted = plan.model.input.as_slice();
    if shape != wanted {
        let what = format!("the inputs have the shape {shape:?}, but the model takes {wanted:?}");
        let help = "give inputs such as those that the run was trained on";
        return Err(Error::new(ExitCode::Data, what).with_help(help));
    }
    if inputs.items.is_empty() {
        return Err(Error::new(ExitCode::Data, "the inputs hold nothing to predict"));
    }
    Ok(inputs)
}

fn answered(engine: &Engine, loader: Loader, form: &Form) -> Result<BTreeMap<u32, Outcome>, Error> {
    let mut outcomes = BTreeMap::new();
    for loaded in loader {
        let loaded = loaded?;
        for unreadable in loaded.unreadable {
            let prefix = format!("sample {}: ", unreadable.sample);
            let why = unreadable.problem.strip_prefix(&prefix).unwrap_or(&unreadable.problem);
            outcomes.insert(unreadable.sample, Outcome::Unreadable(why.to_owned()));
        }
        let batch = loaded.batch;
        if batch.samples.is_empty() {
            continue;
        }
        let samples = batch.samples.iter().copied();
        if form.wants_losses() {
            let losses = engine.token_losses(&batch).map_err(failed)?;
            let losses = losses.into_iter().map(|(mean, tokens)| Outcome::Loss(mean, tokens));
            outcomes.extend(samples.zip(losses));
            continue;
        }
        let answers = engine.predict_batch(&batch).map_err(failed)?;
        if let (Some(wanted), Some(found)) = (form.width(), answers.first().map(Vec::len))
            && wanted != found
        {
            let what =
                format!("the model answers {found} numbers to a sample, but {wanted} are expected");
            return Err(Error::new(ExitCode::Refused, what));
        }
        outcomes.extend(samples.zip(answers.into_iter().map(Outcome::Answer)));
    }
    Ok(outcomes)
}

fn failed(error: crate::engine::Error) -> Error {
    worker::Error::from(error).into()
}
