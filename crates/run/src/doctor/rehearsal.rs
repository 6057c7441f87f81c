//! Each part of a run once, in a temporary folder: two steps with an evaluation and a save, a
//! resume from it, and inputs for a prediction.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::checkpoint::OpenCheckpoint;
use crate::doctor::short_run::{ScratchFolder, newest_checkpoint, shortened, train_in};
use crate::files;
use crate::kinds::Kinds;
use crate::plan::{Interval, Plan, RunFolders};
use crate::session::{Prepared, SINGLE_NODE, prepare};
use crate::user_error::{ErrorPage, ExitCode};

/// Steps before the save.
const STEPS: u64 = 2;
/// Passes that each rank evaluates.
const PASSES: usize = 2;
/// Files that are predicted of a data set of many.
const FILES: usize = 2;
/// Lines that are predicted of a table.
const LINES: usize = 6;
/// Bytes that are predicted of a text.
const BYTES: u64 = 20_000;

/// A short run of an experiment. Nothing is left behind, except after a failure the folder that its
/// message names.
pub struct Rehearsal {
    prepared: Prepared,
    /// The plan of the first part of the run.
    pub plan: Plan,
    scratch: ScratchFolder,
    folders: RunFolders,
}

impl Rehearsal {
    /// Prepares the experiment at `path` with `changes`, and its data.
    pub fn prepare(path: &Path, changes: Vec<String>, kinds: &Kinds) -> Result<Self, ErrorPage> {
        let scratch = ScratchFolder::temporary("try")?;
        let prepared =
            scratch.generate(prepare(path, &changes, SINGLE_NODE, kinds)?, changes, kinds)?;
        let plan = rehearsed(&prepared.plan);
        let folders = scratch.folders("run")?;
        Ok(Self { prepared, plan, scratch, folders })
    }

    /// Samples that the evaluation sees.
    pub fn evaluated_samples(&self) -> usize {
        self.plan.data.n_val.min(self.plan.evaluated_samples.unwrap_or(usize::MAX))
    }

    /// Trains, evaluates and saves. Returns the time that it took.
    pub fn train(&mut self) -> Result<Duration, ErrorPage> {
        train_in(&self.folders, &self.plan, false, &mut self.scratch)
    }

    /// The plan with one step more.
    pub fn extended_plan(&self) -> Plan {
        let mut more = self.plan.clone();
        more.length.total_steps += 1;
        more
    }

    /// Resumes the run for one step more. Returns the time that it took.
    pub fn resume(&mut self) -> Result<Duration, ErrorPage> {
        train_in(&self.folders, &self.extended_plan(), true, &mut self.scratch)
    }

    /// Opens the last checkpoint.
    pub fn checkpoint(&self) -> Result<OpenCheckpoint, ErrorPage> {
        newest_checkpoint(&self.folders)
    }

    /// Paths to predict: some of the files that validate, or that are trained on.
    pub fn inputs(&self) -> Result<Vec<PathBuf>, ErrorPage> {
        let found = self.prepared.source.files(&self.prepared.plan.data.source.survey);
        let mut parts = found?;
        parts.retain(|part| !part.paths.is_empty());
        let at = parts.iter().position(|part| part.name == "val").unwrap_or(0);
        let Some(part) = parts.get(at) else { return Ok(Vec::new()) };
        let ending = |path: &Path| {
            path.extension().map(|end| end.to_string_lossy().to_lowercase()).unwrap_or_default()
        };
        let is_series = self.prepared.plan.data.source.kind.name == "csv_forecast";
        let some = part.paths.iter().take(FILES).map(|path| match &*ending(path) {
            "csv" | "tsv" | "jsonl" | "txt" if !is_series => beginning(path, &self.scratch),
            _ => Ok(path.clone()),
        });
        some.collect()
    }
}

/// Two steps with an evaluation and a save after them.
fn rehearsed(plan: &Plan) -> Plan {
    let evaluates = plan.validate_every != Interval::Never;
    let mut rehearsed = shortened(plan.clone(), STEPS);
    if evaluates {
        rehearsed.validate_every = Interval::Steps(rehearsed.length.total_steps);
    }
    let pass = rehearsed.val_batch_size.count() * rehearsed.world_size().count();
    rehearsed.evaluated_samples = Some(pass * PASSES);
    rehearsed
}

/// Copies the first lines of a file into a file of its own.
fn beginning(path: &Path, scratch: &ScratchFolder) -> Result<PathBuf, ErrorPage> {
    let unreadable = |error: std::io::Error| {
        let page = format!("error: `{}` cannot be read: {error}", path.display());
        ErrorPage::new(ExitCode::Data, page)
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let is_text = path.extension().is_some_and(|end| end == "txt");
    let (mut reader, mut bytes) = (BufReader::new(file.take(1 << 26)), Vec::new());
    if is_text {
        reader.take(BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
        // A character that is cut at the end is left out.
        if let Err(cut) = std::str::from_utf8(&bytes) {
            let whole = cut.valid_up_to();
            bytes.truncate(whole);
        }
    } else {
        for _ in 0..LINES {
            reader.read_until(b'\n', &mut bytes).map_err(unreadable)?;
        }
    }
    let to = scratch.join(&path.file_name().unwrap_or_default().to_string_lossy());
    files::write_atomic(&to, &bytes).map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    Ok(to)
}
