//! The test at the end of a run: the best parameters, on samples that nothing was chosen by.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::checkpoint::{self, OpenCheckpoint};
use crate::collective::Collective;
use crate::data::{Baseline, Dataset};
use crate::engine::{self, Engine, Evaluation, Split, exchange};
use crate::event::{Evaluated, Event, Unreadable};
use crate::failpoint;
use crate::launch::{Phase, Stop};
use crate::metric::{Mase, Metric};
use crate::plan::Plan;
use crate::record;
use crate::units::Rank;
use crate::worker::batch_source::BatchSource;
use crate::worker::broadcast_state::{broadcast_state, broadcast_value};
use crate::worker::evaluation_details::{Details, MAX_WORST_SAMPLES};
use crate::worker::rollout::{EPISODES, Simulation, simulated, success};
use crate::worker::unreadable::{self, first_of_all};
use crate::worker::{Error, RankRun};

/// Share of the simulated episodes that a policy solves.
const SUCCESS: &str = "test/success";

/// Tests the parameters of the best checkpoint, or those that the run ends with where no best one
/// is kept: on the test part of the data, and in its simulation. Without either nothing is tested,
/// and what an earlier start has tested is not tested again. Afterwards the engine may hold what
/// was tested; all saves must be on disk.
pub(crate) fn test(run: &mut RankRun) -> Result<(), Error> {
    if run.splits.test.is_none() && simulated(&run.plan).is_none() {
        return Ok(());
    }
    let checkpoint = run.rank.is_first().then(|| fingerprint(run)).flatten();
    let known = checkpoint.as_ref().and_then(|print| record::read_test(&run.folders.logs, print));
    let tested = if let Some(tested) = broadcast_value(run.collective.as_ref(), &known)? {
        tested
    } else {
        let tested = measure(run)?;
        if let Some(print) = checkpoint {
            record::write_test(&run.folders.logs, &print, &tested)?;
            failpoint::reach("tested");
        }
        tested
    };
    run.engine.state_mut().metrics.extend(tested.metrics.clone());
    run.record(&Event::Tested(tested))
}

/// Fingerprint of the checkpoint with the parameters to be tested, if there is one.
fn fingerprint(run: &RankRun) -> Option<String> {
    let folder = &run.folders.checkpoints;
    let newest = || checkpoint::open(&folder.join(checkpoint::name(run.engine.state().step)));
    let best = best(&run.plan, folder, &run.engine).ok()?;
    let tested = best.map_or_else(|| newest().ok(), Some)?;
    Some(tested.manifest.fingerprint())
}

fn measure(run: &mut RankRun) -> Result<Evaluated, Error> {
    let now = run.engine.state().step;
    run.link.progress(now, Phase::Evaluating);
    failpoint::reach("test");
    let folder = &run.folders.checkpoints;
    let step = if run.plan.distributed.nodes > 1 {
        share_best(&run.plan, folder, &mut run.engine, run.collective.as_ref())?
    } else {
        take_best(&run.plan, folder, &mut run.engine)?
    };
    let mut metrics = BTreeMap::new();
    let mut samples = EPISODES;
    if let Some(data) = run.splits.test.clone() {
        let naive = run.plan.naive_errors();
        if let Some(mase) = Mase::default().of_series(&naive)
            && !naive.is_empty()
        {
            run.engine.measure_also(mase);
        }
        let tested = unreadable::evaluate(run, Split::Test, data.clone())?;
        metrics.extend(tested.metrics);
        metrics.extend(baselines(Split::Test, data.as_ref()));
        samples = tested.samples;
    }
    metrics.extend(solved(run)?.map(|share| (SUCCESS.to_owned(), share)));
    let step = step.unwrap_or(now);
    let epoch = step.div_ceil(run.plan.length.steps_per_epoch);
    Ok(Evaluated { step, epoch, metrics, samples })
}

/// The share of the simulated episodes that the policy solves; broken off on all ranks if one is
/// asked to stop.
fn solved(run: &mut RankRun) -> Result<Option<f64>, Error> {
    if simulated(&run.plan).is_none() {
        return Ok(None);
    }
    let stop_requests = run.stop_requests();
    let request = Cell::new(None);
    let is_stopped = || {
        request.set(stop_requests.now());
        request.get().is_some_and(Stop::is_urgent)
    };
    let simulation =
        Simulation { source: run.source.as_ref(), preprocessor: run.preprocessor.as_ref() };
    let found = success(&run.plan, simulation, &mut run.engine, &is_stopped);
    let all = exchange(run.collective.as_ref(), &request.get())?;
    match all.into_iter().flatten().max().filter(|asked: &Stop| asked.is_urgent()) {
        Some(asked) => Err(engine::Error::BrokenOff(asked).into()),
        None => Ok(found?),
    }
}

/// The best checkpoint, if the run has seen one.
fn best(plan: &Plan, folder: &Path, engine: &Engine) -> Result<Option<OpenCheckpoint>, Error> {
    if engine.state().best.is_none() {
        return Ok(None);
    }
    Ok(checkpoint::best(folder, &plan.checkpoint)?)
}

/// Puts the best checkpoint's parameters in place, and returns their step; every rank sees the same
/// folder.
fn take_best(plan: &Plan, folder: &Path, engine: &mut Engine) -> Result<Option<u64>, Error> {
    let Some(opened) = best(plan, folder, engine)? else { return Ok(None) };
    let keeps = |index| engine.keeps(index);
    let optimizer_state = checkpoint::restore_part(&opened, plan, engine.params(), &keeps)?;
    engine.load_optimizer_state(&opened.state, optimizer_state)?;
    Ok(Some(opened.state.step))
}

/// [`take_best`] if only rank 0 is sure to see the folder.
fn share_best(
    plan: &Plan,
    folder: &Path,
    engine: &mut Engine,
    collective: &dyn Collective,
) -> Result<Option<u64>, Error> {
    let mut restored = None;
    let is_first = collective.rank().is_first();
    let opened = if is_first { best(plan, folder, engine)? } else { None };
    if let Some(opened) = opened {
        let optimizer_state = checkpoint::restore(&opened, plan, engine.params())?;
        restored = Some((opened.state, optimizer_state));
    }
    let Some((state, optimizer_state)) = broadcast_state(collective, restored)? else {
        return Ok(None);
    };
    engine.broadcast_parameters()?;
    engine.broadcast_buffers()?;
    engine.load_optimizer_state(&state, optimizer_state)?;
    Ok(Some(state.step))
}

/// Errors of forecasts without a model, by the names of metrics: `test/naive_mae`. Each rank has
/// all of the data, and finds the same.
fn baselines(split: Split, data: &dyn Dataset) -> impl Iterator<Item = (String, f64)> {
    data.baselines().into_iter().flat_map(move |Baseline { name, mse, mae }| {
        [("mse", mse), ("mae", mae)]
            .map(|(metric, value)| (format!("{}/{name}_{metric}", split.name()), value))
    })
}

/// Result of an evaluation outside of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluationResult {
    /// `val/loss`, `test/mse`, `test/success` ...
    pub metrics: BTreeMap<String, f64>,
    /// Samples that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// Details of each part.
    pub details: Vec<Details>,
}

/// Metrics of the parameters at hand over parts of the data, and in a simulation if one of them is
/// to test on, in a world of one.
pub(crate) fn measure_all(
    plan: &Plan,
    simulation: Simulation<'_>,
    parts: Vec<(Split, Option<Arc<dyn Dataset>>)>,
    engine: &mut Engine,
    collective: &dyn Collective,
    progress: &(dyn Fn(Split, usize, usize) + Sync),
) -> Result<EvaluationResult, Error> {
    let mut measured = EvaluationResult::default();
    engine.name_worst(MAX_WORST_SAMPLES);
    let tests = parts.iter().any(|(split, _)| *split == Split::Test);
    for (split, data) in parts {
        let Some(data) = data else { continue };
        let (chunks, mut batches) = BatchSource::of_split(plan, split, data.clone(), Rank(0))?;
        let mut done = 0;
        let mut next = || {
            progress(split, done, chunks.len());
            done += 1;
            batches.next()
        };
        let found = engine.evaluate(split, &chunks, &mut next)?;
        measured.details.push(Details::of(plan, split, engine, &found, data.as_ref()));
        let Evaluation { metrics, samples, unreadable, .. } = found;
        measured.metrics.extend(metrics);
        measured.metrics.extend(baselines(split, data.as_ref()));
        if unreadable > 0 {
            let step = engine.state().step;
            let first = first_of_all(collective, &batches)?;
            let epoch = step.div_ceil(plan.length.steps_per_epoch.max(1));
            let split = split.words().to_owned();
            let samples = samples + unreadable;
            let found = Unreadable { split, step, epoch, samples, unreadable, first };
            measured.unreadable.push(found);
        }
    }
    let solved = if tests { success(plan, simulation, engine, &|| false)? } else { None };
    measured.metrics.extend(solved.map(|share| (SUCCESS.to_owned(), share)));
    Ok(measured)
}
