//! The test at the end of a run: the best parameters, on samples that nothing was chosen by.

use std::collections::BTreeMap;

use crate::checkpoint;
use crate::collective::Collective;
use crate::engine::{Engine, Split};
use crate::event::{Evaluated, Event};
use crate::launch::Phase;
use crate::plan::Plan;
use crate::worker::feed::Feed;
use crate::worker::rollout::{EPISODES, simulated, success};
use crate::worker::share::share;
use crate::worker::{Error, RankRun};

/// Share of the simulated episodes that a policy solves.
const SUCCESS: &str = "test/success";

/// Tests the parameters of the best checkpoint, or those that the run ends with where no best one is kept: on the test
/// part of the data, and in its simulation. Without either nothing is tested. Afterwards the engine holds what was tested; all saves must be on disk.
pub(crate) fn test(run: &mut RankRun) -> Result<(), Error> {
    let data = run.splits.test.clone();
    if data.is_none() && simulated(&run.plan).is_none() {
        return Ok(());
    }
    let state = run.engine.state();
    let (now, epoch) = (state.step, state.step.div_ceil(run.plan.length.steps_per_epoch));
    run.link.progress(now, Phase::Evaluating);
    let best = run.folders.checkpoints.join("best");
    let step = if run.plan.distributed.nodes > 1 {
        share_best(&run.plan, &best, &mut run.engine, run.collective.as_ref())?
    } else {
        take_best(&run.plan, &best, &mut run.engine)?
    };
    let mut metrics = BTreeMap::new();
    if let Some(data) = data {
        let (chunks, mut feed) = Feed::of_split(&run.plan, Split::Test, data, run.rank)?;
        metrics.extend(run.engine.evaluate(Split::Test, &chunks, &mut || feed.next())?);
        run.warn_about(feed.warnings())?;
    }
    metrics.extend(success(&run.plan, &mut run.engine)?.map(|share| (SUCCESS.to_owned(), share)));
    run.engine.state_mut().metrics.extend(metrics.clone());
    let samples = match run.plan.data.n_test {
        0 => EPISODES,
        samples => samples as u64,
    };
    let step = step.unwrap_or(now);
    run.record(&Event::Tested(Evaluated { step, epoch, metrics, samples }))
}

/// Puts the best checkpoint's parameters in place, and returns their step; every rank sees the same folder.
fn take_best(
    plan: &Plan,
    best: &std::path::Path,
    engine: &mut Engine,
) -> Result<Option<u64>, Error> {
    if engine.state().best.is_none() || !best.exists() {
        return Ok(None);
    }
    let opened = checkpoint::open(best)?;
    let moments = checkpoint::restore(&opened, plan, engine.params())?;
    engine.adopt(moments)?;
    Ok(Some(opened.state.step))
}

/// As [`take_best`] where only rank 0 is sure to see the folder.
fn share_best(
    plan: &Plan,
    best: &std::path::Path,
    engine: &mut Engine,
    collective: &dyn Collective,
) -> Result<Option<u64>, Error> {
    let mut restored = None;
    if collective.rank().is_first() && engine.state().best.is_some() && best.exists() {
        let opened = checkpoint::open(best)?;
        let moments = checkpoint::restore(&opened, plan, engine.params())?;
        restored = Some((opened.state, moments));
    }
    let Some((state, moments)) = share(collective, restored)? else { return Ok(None) };
    engine.broadcast_parameters()?;
    engine.broadcast_buffers()?;
    engine.adopt(moments)?;
    Ok(Some(state.step))
}

/// Metrics of the parameters at hand over validation and test data, and in a simulation, in a world of one.
pub(crate) fn measure_all(
    plan: &Plan,
    splits: crate::data::Splits,
    engine: &mut Engine,
) -> Result<BTreeMap<String, f64>, Error> {
    let mut metrics = BTreeMap::new();
    for (split, data) in [(Split::Val, Some(splits.val)), (Split::Test, splits.test)] {
        let Some(data) = data else { continue };
        let (chunks, mut feed) = Feed::of_split(plan, split, data, crate::units::Rank(0))?;
        metrics.extend(engine.evaluate(split, &chunks, &mut || feed.next())?);
    }
    metrics.extend(success(plan, engine)?.map(|share| (SUCCESS.to_owned(), share)));
    Ok(metrics)
}
