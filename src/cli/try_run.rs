//! `ddprun try x.toml`: each part of a run once, in a temporary folder: two steps, an evaluation,
//! a save, a resume from it, and a prediction.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::checkpoint;
use crate::cli::answer;
use crate::cli::args::Run;
use crate::cli::doctor_training::{ScratchFolder, shortened, train_in};
use crate::data;
use crate::kinds::Kinds;
use crate::plan::{Cadence, Plan};
use crate::predict::Predictor;
use crate::session::{ALONE, Prepared, prepare};
use crate::terminal::counted;
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

/// Tries the experiment, and says of each part that it works. Nothing is left behind; after a
/// failure the folder stays that its message names.
pub(crate) fn try_run(run: &Run, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let mut room = ScratchFolder::temporary("try")?;
    let changes = run.all_changes();
    let path = run.experiment.clone().unwrap_or_default();
    let prepared = room.generate(prepare(&path, &changes, ALONE, kinds)?, changes, kinds)?;
    let plan = tried(&prepared.plan);
    let folders = room.folders("run")?;
    let ranks = counted(plan.world_size().get().into(), "rank");
    let evaluated = plan.data.n_val.min(plan.evaluated_samples.unwrap_or(usize::MAX));
    let (name, global) = (&plan.name, plan.batch.global);
    let object = || {
        let ranks = plan.world_size().get();
        json!({ "experiment": name, "ranks": ranks, "global_batch_size": global })
    };
    answer("try", object, || format!("{name} on {ranks}, global batch {global}\n"))?;
    let time = train_in(&folders, &plan, false, &mut room)?;
    let steps = counted(plan.length.total_steps, "step");
    let validated = match (plan.validate_every, evaluated) {
        (Cadence::Never, _) => String::new(),
        (_, n) => format!(", validated on {}", counted(n as u64, "sample")),
    };
    say("train", &format!("{steps}{validated}, and saved"), time)?;
    let more = resumed(&plan);
    let time = train_in(&folders, &more, true, &mut room)?;
    let step = plan.length.total_steps;
    say("resume", &format!("from step {step}, and one step more"), time)?;
    let opened = checkpoint::newest(&folders.checkpoints)
        .map_err(|error| ErrorPage::of(ExitCode::Checkpoint, &error))?;
    let began = Instant::now();
    let inputs = inputs(&prepared, &room)?;
    let predicted = match predict(more, &opened, &inputs, kinds)? {
        Some(rows) => counted(rows as u64, "row"),
        None => "such data have no predictions of files".to_owned(),
    };
    say("predict", &predicted, began.elapsed())?;
    answer("works", || json!({}), || "all of it works, and nothing is left behind\n".to_owned())
}

/// Says of a part that it works.
fn say(what: &str, how: &str, time: Duration) -> Result<ExitCode, ErrorPage> {
    let object = || json!({ "part": what, "words": how, "seconds": time.as_secs_f64() });
    answer("tried", object, || line(what, how, time))
}

/// `  train    2 steps  1.2 s`
fn line(what: &str, how: &str, time: Duration) -> String {
    format!("  {what:<8} {how}, {:.1} s\n", time.as_secs_f64())
}

/// Two steps with an evaluation and a save after them.
fn tried(plan: &Plan) -> Plan {
    let evaluates = plan.validate_every != Cadence::Never;
    let mut tried = shortened(plan.clone(), STEPS);
    if evaluates {
        tried.validate_every = Cadence::Steps(tried.length.total_steps);
    }
    let pass = tried.val_batch_size.count() * tried.world_size().count();
    tried.evaluated_samples = Some(pass * PASSES);
    tried
}

/// The same with one step more.
fn resumed(plan: &Plan) -> Plan {
    let mut more = plan.clone();
    more.length.total_steps += 1;
    more
}

/// Something to predict: some of the files that validate, or that are trained on.
fn inputs(prepared: &Prepared, room: &ScratchFolder) -> Result<Vec<PathBuf>, ErrorPage> {
    let found = prepared.source.files(&prepared.plan.data.source.found);
    let mut parts = found?;
    parts.retain(|part| !part.paths.is_empty());
    let at = parts.iter().position(|part| part.name == "val").unwrap_or(0);
    let Some(part) = parts.get(at) else { return Ok(Vec::new()) };
    let ending = |path: &Path| {
        path.extension().map(|end| end.to_string_lossy().to_lowercase()).unwrap_or_default()
    };
    let is_series = prepared.plan.data.source.kind.name == "csv_forecast";
    let some = part.paths.iter().take(FILES).map(|path| match &*ending(path) {
        "csv" | "tsv" | "jsonl" | "txt" if !is_series => beginning(path, room),
        _ => Ok(path.clone()),
    });
    some.collect()
}

/// The first lines of a file, as a file of its own.
fn beginning(path: &Path, room: &ScratchFolder) -> Result<PathBuf, ErrorPage> {
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
    let to = room.join(&path.file_name().unwrap_or_default().to_string_lossy());
    crate::files::write_atomic(&to, &bytes)
        .map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
    Ok(to)
}

/// Rows of predictions; `None` for data that have none.
fn predict(
    plan: Plan,
    opened: &checkpoint::Opened,
    inputs: &[PathBuf],
    kinds: &Kinds,
) -> Result<Option<usize>, ErrorPage> {
    let source = kinds.data.build(&plan.data.source.kind).map_err(data::Error::from);
    let asked = data::Predicting { paths: inputs, plan: &plan.data, transforms: &kinds.transforms };
    let has_none = source.and_then(|source| source.inputs(&asked).map(drop));
    if inputs.is_empty() || matches!(has_none, Err(data::Error::NotPredicted { .. })) {
        return Ok(None);
    }
    let refused = |error: crate::predict::Error| ErrorPage::from_error(&error);
    let mut predictor = Predictor::of(plan, opened, kinds)?;
    predictor.predict(inputs).map(|rows| Some(rows.len())).map_err(refused)
}
