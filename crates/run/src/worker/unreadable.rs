//! Samples that cannot be read: counted over all ranks, the first of them named, whichever rank met
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::collective::Collective;
use crate::data::loader::Unreadable;
use crate::data::{self, Batch, Dataset};
use crate::engine::{self, Evaluation, Split, exchange};
use crate::event::{self, Event};
use crate::worker::batch_source::{BatchSource, MAX_NAMED_SAMPLES};
use crate::worker::rank_logger::RankLogger;
use crate::worker::{Error, RankRun};

/// Longest description of a sample that is handed around, in characters.
const MAX_DESCRIPTION: usize = 500;

/// Evaluates the parameters, or their averages, on `data`, and says what could not be read, also
/// where that ends the run.
pub(crate) fn evaluate(
    run: &mut RankRun,
    split: Split,
    data: Arc<dyn Dataset>,
) -> Result<Evaluation, Error> {
    let (chunks, batches) = BatchSource::of_split(&run.plan, split, data, run.rank)?;
    let mut batches = batches.observed_by(&run.link).for_engine(&run.engine)?;
    let stop_requests = run.stop_requests();
    let RankRun { engine, logger, .. } = run;
    let evaluated = {
        let next = &mut counted(logger, split, chunks.len(), &mut batches);
        engine.evaluate_unless(split, &chunks, next, &|| stop_requests.now())
    };
    let counts = match &evaluated {
        Ok(found) => Some([found.unreadable, found.samples + found.unreadable]),
        Err(error) => refused(error),
    };
    if let Some([unreadable, samples]) = counts {
        report(run, split.words(), unreadable, samples, &batches)?;
    }
    Ok(evaluated?)
}

/// Evaluates the parameters themselves, not their averages, on `data`, whose unreadable samples
/// were reported before.
pub(crate) fn evaluate_weights(
    run: &mut RankRun,
    split: Split,
    data: Arc<dyn Dataset>,
) -> Result<BTreeMap<String, f64>, Error> {
    let (chunks, batches) = BatchSource::of_split(&run.plan, split, data, run.rank)?;
    let mut batches = batches.observed_by(&run.link).for_engine(&run.engine)?;
    let stop_requests = run.stop_requests();
    let RankRun { engine, logger, .. } = run;
    let next = &mut counted(logger, split, chunks.len(), &mut batches);
    Ok(engine.evaluate_weights(split, &chunks, next, &|| stop_requests.now())?.metrics)
}

/// The batches, each of which moves the progress bar.
fn counted(
    logger: &mut RankLogger,
    split: Split,
    n: usize,
    batches: &mut BatchSource,
) -> impl FnMut() -> Result<Batch, data::Error> {
    let mut done = 0;
    move || {
        logger.evaluating(split.words(), done, n as u64);
        done += 1;
        batches.next()
    }
}

/// Reports the samples that could not be read in the epoch so far.
pub(crate) fn report_epoch(run: &mut RankRun, batches: &BatchSource) -> Result<(), Error> {
    let sums = run.engine.state().sums;
    report(run, "training", sums.unreadable, sums.samples, batches)
}

/// Reports them if `error`, which all ranks then have, is that too many samples cannot be read.
pub(crate) fn report_refused(
    run: &mut RankRun,
    error: &engine::Error,
    batches: &BatchSource,
) -> Result<(), Error> {
    match refused(error) {
        Some([unreadable, samples]) => report(run, "training", unreadable, samples, batches),
        None => Ok(()),
    }
}

/// Samples that cannot be read, and all, where there are too many of them.
fn refused(error: &engine::Error) -> Option<[u64; 2]> {
    match error {
        engine::Error::Data(data::Error::TooManyUnreadable { unreadable, samples, .. }) => {
            Some([*unreadable, *samples])
        }
        _ => None,
    }
}

/// `unreadable` and `samples` are the same on all ranks, so that all come to the exchange or none.
fn report(
    run: &mut RankRun,
    split: &str,
    unreadable: u64,
    samples: u64,
    batches: &BatchSource,
) -> Result<(), Error> {
    if unreadable == 0 {
        return Ok(());
    }
    run.report_waiting();
    let first = first_of_all(run.collective.as_ref(), batches)?;
    let step = run.engine.state().step;
    let epoch = step.saturating_sub(1) / run.plan.length.steps_per_epoch.max(1) + 1;
    let split = split.to_owned();
    let found = event::Unreadable { split, step, epoch, samples, unreadable, first };
    run.record(&Event::Unreadable(found))
}

/// Problems of the first unreadable samples over all ranks.
pub(crate) fn first_of_all(
    collective: &dyn Collective,
    batches: &BatchSource,
) -> Result<Vec<String>, engine::Error> {
    let mut mine = batches.unreadable().to_vec();
    for Unreadable { problem, .. } in &mut mine {
        if let Some((end, _)) = problem.char_indices().nth(MAX_DESCRIPTION) {
            problem.truncate(end);
        }
    }
    let mut all = exchange(collective, &mine)?.concat();
    all.sort();
    all.dedup();
    all.truncate(MAX_NAMED_SAMPLES);
    Ok(all.into_iter().map(|unreadable| unreadable.problem).collect())
}
