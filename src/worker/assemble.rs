//! The pieces of one rank, put together.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::checkpoint::{self, Restored};
use crate::collective::{self, Collective};
use crate::data;
use crate::engine::{Clock, Engine};
use crate::event::{Event, FORMAT, Started};
use crate::launch::{Link, Phase};
use crate::model::Registry;
use crate::plan::{BackendPlan, Plan, RankPlan, RunFolders};
use crate::units::{Rank, WorldSize};
use crate::worker::feed::Feed;
use crate::worker::voice::Voice;
use crate::worker::{Error, RankRun};

/// Opens data and model, restores the newest checkpoint on a resume, and joins the group.
pub(crate) fn assemble(
    rank_plan: RankPlan,
    shm: Option<OwnedFd>,
    link: Arc<Link>,
    registry: &Registry,
) -> Result<RankRun, Error> {
    let (plan, rank, folders) = (Arc::new(rank_plan.plan), rank_plan.rank, rank_plan.run);
    limit_threads(&plan);
    let collective = join_group(&plan, rank, shm)?;
    link.progress(0, Phase::LoadingData);
    let splits = data::open(&plan.data)?;
    link.progress(0, Phase::Joining);
    let restored = if rank_plan.resume { newest(&folders)? } else { None };
    let mut engine = open_engine(&plan, registry, collective.clone(), restored.as_ref())?;
    engine.observe(Box::new({
        let link = link.clone();
        move |step, phase| link.progress(step, phase)
    }));
    let voice = Voice::open(&plan, rank, &folders, engine.state())?;
    let now = Clock::start();
    let mut run = RankRun {
        plan,
        rank,
        folders,
        engine,
        collective,
        splits,
        voice,
        link,
        clock: now,
        epoch_clock: now,
        pace_clock: now,
        paced_samples: 0,
        samples: 0,
    };
    let started = started(&run);
    run.record(&started)?;
    for damage in restored.map(|restored| restored.passed_over).unwrap_or_default() {
        let message = format!("a newer checkpoint was passed over: {damage}");
        run.record(&Event::Warned { message })?;
    }
    Ok(run)
}

/// Gives this rank its share of the cores. A pool that exists already (a user's own program) is kept:
/// the number of threads changes no bit.
fn limit_threads(plan: &Plan) {
    let threads = plan.distributed.threads_per_rank;
    drop(rayon::ThreadPoolBuilder::new().num_threads(threads).build_global());
}

fn join_group(plan: &Plan, rank: Rank, shm: Option<OwnedFd>) -> Result<Arc<dyn Collective>, Error> {
    let distributed = &plan.distributed;
    let world = distributed.world_size;
    Ok(collective::open(distributed.backend, rank, world, shm, distributed.timeout)?)
}

/// The newest whole checkpoint; `None` where the run was stopped before its first one.
fn newest(run: &RunFolders) -> Result<Option<Restored>, Error> {
    let exists = !checkpoint::all(&run.checkpoints)?.is_empty();
    Ok(if exists { Some(checkpoint::newest(&run.checkpoints)?) } else { None })
}

/// The engine with the model's first values: from a checkpoint, pretrained, or drawn.
fn open_engine(
    plan: &Arc<Plan>,
    registry: &Registry,
    collective: Arc<dyn Collective>,
    restored: Option<&Restored>,
) -> Result<Engine, Error> {
    let (model, params) = registry.build(&plan.model, plan.seed)?;
    let state = if let Some(restored) = restored {
        Some((restored.state.clone(), checkpoint::restore(restored, plan, &params)?))
    } else {
        registry.load_pretrained(&plan.model, &params)?;
        None
    };
    Ok(Engine::new(plan.clone(), model, params, collective, state)?)
}

fn started(run: &RankRun) -> Event {
    let plan = &run.plan;
    Event::Started(Started {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        name: plan.name.clone(),
        run: run.folders.id.clone(),
        arithmetic: plan.arithmetic(),
        devices: plan.distributed.devices.clone(),
        steps_per_epoch: plan.length.steps_per_epoch,
        total_steps: plan.length.total_steps,
        resumed_from: run.engine.state().step,
    })
}

/// Evaluates a checkpoint in a world of one.
pub(crate) fn evaluate(
    plan: &Plan,
    restored: &Restored,
    registry: &Registry,
) -> Result<BTreeMap<String, f64>, Error> {
    let mut plan = plan.clone();
    plan.distributed.world_size = WorldSize::ONE;
    plan.distributed.backend = BackendPlan::Solo;
    let plan = Arc::new(plan);
    let collective = join_group(&plan, Rank(0), None)?;
    let mut engine = open_engine(&plan, registry, collective, Some(restored))?;
    let splits = data::open(&plan.data)?;
    let (chunks, mut feed) = Feed::of_validation(&plan, splits.val, Rank(0))?;
    Ok(engine.evaluate(&chunks, &mut || feed.next())?)
}
