//! The pieces of one rank, put together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::checkpoint::{self, BaseFile, Destination, OpenCheckpoint, Snapshot, Writer};
use crate::collective::Collective;
use crate::data::loader::{Loader, Request, Settings};
use crate::data::{self, Dataset, Fingerprint, SampleWeights, Splits, SurveyRequest};
use crate::engine::{self, Clock, Engine, Split, TrainState};
use crate::event::{Event, FORMAT, Started, Unfinished};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::{Link, Phase};
use crate::model::{self, Whitening};
use crate::nn::Params;
use crate::ops;
use crate::optim::ParameterState;
use crate::plan::{Plan, RankPlan, RunFolders};
use crate::record::{DATA, NamedSink, SPLIT, SinkStart, newest_of};
use crate::runs;
use crate::sweep::is_trial;
use crate::units::Rank;
use crate::worker::broadcast_state::{broadcast_state, broadcast_value};
use crate::worker::device::{GroupHandles, RankDevice};
use crate::worker::rank_logger::{Listener, RankLogger};
use crate::worker::rollout::{ObservationPreprocessor, Simulation, simulated};
use crate::worker::test::{EvaluationResult, measure_all};
use crate::worker::{Error, RankRun, on_large_stack};

/// Most images whose patches are whitened.
const MAX_SAMPLED_IMAGES: usize = 5000;
/// Images that are loaded at once.
const WHITENING_BATCH: usize = 250;

/// Opens data and model, restores the newest checkpoint on a resume, and joins the group.
pub(crate) fn build_run(
    rank_plan: RankPlan,
    handles: GroupHandles,
    link: Arc<Link>,
    listener: Option<Listener>,
    kinds: &Kinds,
) -> Result<RankRun, Error> {
    let plan = Arc::new(rank_plan.plan);
    let rank = rank_plan.rank;
    let folders = rank_plan.run;
    let device = RankDevice::open(&plan, rank)?;
    let collective = device.join(&plan, handles, &kinds.backends)?;
    end_together(&link, &collective);
    link.progress(0, Phase::LoadingData);
    let source = kinds.data.build(&plan.data.source.kind).map_err(data::Error::from)?;
    let splits =
        data::open(source.as_ref(), &plan.data, &SurveyRequest::of(&plan), &kinds.transforms)?;
    if rank.is_first() && rank_plan.restarts > 0 {
        // A group that is started again may find other files than the one before it.
        let kept = newest_of(&folders.logs, DATA);
        Fingerprint::refuse_other_files(&kept, source.as_ref(), &plan.data.source)?;
    }
    if rank.is_first() && plan.data.split.holds_something() {
        write_split(&splits, &folders.logs.join(SPLIT))?;
    }
    link.progress(0, Phase::Joining);
    let mut skipped = Vec::new();
    let images = rank.is_first().then_some(&splits.train);
    let pinned = Some(folders.checkpoints.join(checkpoint::PIN));
    let pinned = pinned.as_deref();
    let group = collective.clone();
    let mut engine = open_engine(&plan, kinds, &device, group, images, pinned, |params| {
        // Other machines may not see the folder of rank 0.
        let is_far = plan.distributed.nodes > 1;
        let newest = if rank_plan.resume && (rank.is_first() || !is_far) {
            // What rank 0 hands on is everything.
            let mine = engine::keeps(&plan, params, rank);
            let keeps = |index| is_far || mine(index);
            checkpoint::restore_newest_part(&folders.checkpoints, &plan, params, &keeps)?
        } else {
            None
        };
        let restored = newest.map(|restored| {
            skipped = restored.skipped;
            (restored.state, restored.optimizer_state)
        });
        if rank_plan.resume && is_far {
            share_base(&plan, params, collective.as_ref())?;
            broadcast_state(collective.as_ref(), restored)
        } else {
            Ok(restored)
        }
    })?;
    engine.observe(Box::new({
        let link = link.clone();
        move |step, phase| link.progress(step, phase)
    }));
    let start = sink_start(&engine, &plan, rank, &folders);
    let mut sinks = kinds.sinks_of(&plan)?;
    sinks.extend(
        listener
            .map(|listener| NamedSink { name: "listener".to_owned(), sink: Box::new(listener) }),
    );
    let logger = RankLogger::open(&plan, rank, start, sinks)?;
    let writer = if rank.is_first() {
        Some(start_writer(&plan, &folders, &engine, logger.growing())?)
    } else {
        None
    };
    let now = Clock::start();
    let spent_before = engine.state().time_spent();
    let sample_weights = SampleWeights::of(&plan.data, splits.train.as_ref());
    let preprocessor = ObservationPreprocessor::of(&plan, &kinds.transforms)?;
    let mut run = RankRun {
        plan,
        rank,
        folders,
        engine,
        collective,
        source,
        sample_weights,
        splits,
        preprocessor,
        writer,
        logger,
        link,
        clock: now,
        spent_before,
        epoch_clock: now,
        pace_clock: now,
        paced_samples: 0,
        samples: 0,
    };
    let started = started(&run, rank_plan.causes);
    run.record(&started)?;
    if run.engine.state().step == 0 {
        for message in run.plan.data.notes.clone() {
            run.record(&Event::Warned { message })?;
        }
    }
    for newer in skipped {
        let message = newer.words(run.engine.state().step);
        run.record(&Event::Warned { message })?;
    }
    Ok(run)
}

/// Reads on other machines the file below the adapters that rank 0 has read.
fn share_base(plan: &Plan, params: &Params, collective: &dyn Collective) -> Result<(), Error> {
    let base = broadcast_value(collective, &BaseFile::of(params))?;
    if let Some(base) = base {
        base.load(params, plan.model.pretrained.as_deref())?;
    }
    Ok(())
}

/// Lists the samples that are held out, unless an earlier start has: they stay what they are.
fn write_split(splits: &Splits, path: &Path) -> Result<(), Error> {
    match splits.held_out() {
        Some(table) if !path.exists() => Ok(files::write_atomic(path, table.as_bytes())?),
        _ => Ok(()),
    }
}

/// Ends the group when the parent says so, or when another rank is lost.
fn end_together(link: &Link, collective: &Arc<dyn Collective>) {
    link.on_give_up({
        let collective = collective.clone();
        move || collective.give_up()
    });
    link.on_rank_lost({
        let collective = collective.clone();
        move |why| collective.abort(why)
    });
}

/// Facts about the part of the run that begins, for the sinks of rank 0.
fn sink_start(engine: &Engine, plan: &Plan, rank: Rank, folders: &RunFolders) -> SinkStart {
    let mut metrics = engine.metrics();
    if plan.ema.is_some_and(|ema| ema.is_young(1)) {
        // The weights themselves are measured beside their average.
        let own = metrics.iter().map(|name| format!("val_weights/{name}"));
        metrics =
            ["val_weights/loss".to_owned()].into_iter().chain(own).chain(metrics.clone()).collect();
    }
    metrics.extend(simulated(plan).map(|_| "success".to_owned()));
    let state = engine.state();
    let (config, tags) =
        if rank.is_first() { described(&folders.logs) } else { Default::default() };
    SinkStart {
        run: folders.clone(),
        name: plan.name.clone(),
        sweep: sweep_of(&folders.logs),
        tags,
        config,
        resumed_from: state.step,
        unfinished: unfinished(state),
        total_steps: plan.length.total_steps,
        metrics,
    }
}

/// Name of the sweep of the trial in `logs`; `None` for a run of its own.
fn sweep_of(logs: &Path) -> Option<String> {
    let folder = logs.parent().filter(|_| is_trial(logs))?;
    Some(folder.file_name()?.to_string_lossy().into_owned())
}

/// The experiment of the run in `logs` as its newest start wrote it down, and the run's tags. A run
/// is trained without them, too: on other machines, and where a program of the user's has made it.
fn described(logs: &Path) -> (Map<String, Value>, Vec<String>) {
    let config = runs::config(logs).ok();
    let tags = runs::tags(logs, config.as_ref()).unwrap_or_default();
    let config = config.and_then(|config| serde_json::to_value(config).ok());
    (config.and_then(|config| config.as_object().cloned()).unwrap_or_default(), tags)
}

/// Starts the writer of this rank's checkpoints.
fn start_writer(
    plan: &Plan,
    run: &RunFolders,
    engine: &Engine,
    records: Vec<PathBuf>,
) -> Result<Writer, Error> {
    let folder = run.checkpoints.clone();
    let checkpoint = plan.checkpoint.clone();
    let destination = Destination { folder, plan: checkpoint, records };
    // Not at the first checkpoint, which would wait for it.
    drop(engine.params().base().map(|base| model::base_hash(&base)));
    // What other ranks keep has room in the copy.
    let outline = engine.outline_of_optimizer_state();
    let snapshot = Snapshot { optimizer_state: &outline, ..snapshot(plan, engine) };
    Ok(Writer::start(destination, &snapshot)?)
}

/// The contents of a checkpoint made now.
pub(crate) fn snapshot<'a>(plan: &'a Plan, engine: &'a Engine) -> Snapshot<'a> {
    let params = engine.params();
    let optimizer_state = engine.optimizer_state();
    let state = engine.state();
    Snapshot { plan, params, optimizer_state, state }
}

/// The engine with the model's first values: those that `restore` puts in place, pretrained ones,
/// or drawn ones, of which some may follow from training images.
fn open_engine(
    plan: &Arc<Plan>,
    kinds: &Kinds,
    device: &RankDevice,
    collective: Arc<dyn Collective>,
    images: Option<&Arc<dyn Dataset>>,
    pinned: Option<&Path>,
    restore: impl FnOnce(&Params) -> Result<Option<(TrainState, Vec<ParameterState>)>, Error>,
) -> Result<Engine, Error> {
    let components = kinds.components(plan, &device.device)?;
    let params = &components.params;
    let restored = restore(params)?;
    let mut reference_hash = None;
    if let Some(reference) = components.model.reference() {
        load_first_weights(plan, pinned, kinds, reference)?;
        reference_hash = reference.base().map(|base| model::base_hash(&base));
        let kept = restored.as_ref().and_then(|(state, _)| state.reference.as_ref());
        if kept.is_some() && kept != reference_hash.as_ref() {
            let path = plan.model.pretrained.clone().unwrap_or_default();
            return Err(Error::OtherReference { path });
        }
    }
    if restored.is_none() {
        load_first_weights(plan, pinned, kinds, params)?;
        if let Some(images) = images
            && plan.model.pretrained.is_none()
        {
            whiten(plan, kinds, params, images)?;
        }
    }
    let mut engine = Engine::new(plan.clone(), components, collective, restored)?;
    engine.state_mut().reference = reference_hash;
    Ok(engine)
}

/// The weights and adapters that the plan starts from.
fn load_first_weights(
    plan: &Plan,
    pinned: Option<&Path>,
    kinds: &Kinds,
    params: &Params,
) -> Result<(), Error> {
    load_pretrained(plan, pinned, kinds, params)?;
    params.begin_adapters().map_err(|source| engine::Error::Tensor {
        phase: "first",
        step: 0,
        source,
    })?;
    kinds.models.load_adapters(&plan.model, params)?;
    Ok(())
}

/// The weights that the plan starts from: those of a file, or of a checkpoint, with averages in
/// their place where it has some. A checkpoint whose run has deleted or replaced it is `pinned` in
/// the folder of this one.
fn load_pretrained(
    plan: &Plan,
    pinned: Option<&Path>,
    kinds: &Kinds,
    params: &Params,
) -> Result<(), Error> {
    let planned = plan.model.pretrained_checkpoint.as_ref();
    let given = plan.model.pretrained.as_ref();
    let Some(path) = given.filter(|path| planned.is_some() || path.is_dir()) else {
        kinds.models.load_pretrained(&plan.model, params)?;
        return Ok(());
    };
    let is_planned = |opened: &OpenCheckpoint| {
        planned.is_none_or(|planned| planned.fingerprint == opened.manifest.fingerprint())
    };
    let opened = match (checkpoint::open(path), pinned) {
        (Ok(opened), _) if is_planned(&opened) => opened,
        (_, Some(pinned)) if pinned.is_dir() => checkpoint::open(pinned)?,
        (opened, _) => opened?,
    };
    if !is_planned(&opened) {
        return Err(Error::OtherWeights { path: path.clone() });
    }
    let weights = checkpoint::averaged_model(&opened)?;
    kinds.models.load_weights(&plan.model, params, path, weights)?;
    Ok(())
}

/// Gives the convolution that whitens patches its first values, if the model has one: those of
/// images from all over the training data, without anything random, so that they are the same at
/// any world size. Rank 0's are broadcast later.
fn whiten(
    plan: &Plan,
    kinds: &Kinds,
    params: &Params,
    images: &Arc<dyn Dataset>,
) -> Result<(), Error> {
    let architecture = kinds.models.architecture(&plan.model);
    let architecture =
        architecture.map_err(|error| Error::Model(model::Error::from(error).into()))?;
    let Some(name) = architecture.whitens() else { return Ok(()) };
    let failed = |source| engine::Error::Tensor { phase: "whitening", step: 0, source };
    let mut whitening = Whitening::of(params, name).map_err(failed)?;
    let all = images.len();
    let n = images.len().min(MAX_SAMPLED_IMAGES);
    let samples: Vec<u32> = (0..n).map(|i| (i * all / n.max(1)) as u32).collect();
    let request = |batch: &[u32]| Request { samples: batch.to_vec(), ..Request::default() };
    let requests: Vec<Request> = samples.chunks(WHITENING_BATCH).map(request).collect();
    let settings = Settings { mixup: None, ..Settings::new(&plan.data, plan.seed) };
    for loaded in Loader::start(images.clone(), requests.into_iter(), settings)? {
        let batch = loaded?.batch;
        if !batch.samples.is_empty() {
            whitening.add(&batch.inputs).map_err(failed)?;
        }
    }
    Ok(whitening.apply(params, name).map_err(failed)?)
}

/// The part of its last step that an earlier start left undone.
fn unfinished(state: &TrainState) -> Option<Unfinished> {
    state.left.map(|left| Unfinished {
        evaluations: u64::from(state.evaluated_at == state.step),
        epoch_is_closed: left.epoch_is_closed,
    })
}

fn started(run: &RankRun, restarts: Vec<String>) -> Event {
    let plan = &run.plan;
    let sums = run.collective.describe().into_iter().chain(run.engine.describe());
    let weights = plan.model.weights_line().map(|line| format!("weights: {line}"));
    Event::Started(Started {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        name: plan.name.clone(),
        run: run.folders.id.clone(),
        arithmetic: plan.arithmetic().into_iter().chain(weights).chain(sums).collect(),
        devices: plan.distributed.devices.clone(),
        steps_per_epoch: plan.length.steps_per_epoch,
        total_steps: plan.length.total_steps,
        resumed_from: run.engine.state().step,
        unfinished: unfinished(run.engine.state()),
        restarts,
    })
}

/// An engine that is a group of its own.
pub struct SingleProcessEngine {
    pub plan: Arc<Plan>,
    pub engine: Engine,
    collective: Arc<dyn Collective>,
}

/// The engine of a checkpoint, or else of the weights that the plan starts from, in a world of one.
pub fn single_process_engine(
    mut plan: Plan,
    opened: Option<&OpenCheckpoint>,
    kinds: &Kinds,
) -> Result<SingleProcessEngine, Error> {
    // A driver that does not answer has no GPU for us.
    let gpus = ops::visible_gpus().and_then(Result::ok).unwrap_or_default();
    plan.distributed.become_alone(gpus.len());
    let plan = Arc::new(plan);
    let device = RankDevice::open(&plan, Rank(0))?;
    let collective = device.join(&plan, GroupHandles::default(), &kinds.backends)?;
    let group = collective.clone();
    let engine = open_engine(&plan, kinds, &device, group, None, None, |params| {
        let Some(opened) = opened else { return Ok(None) };
        let optimizer_state = checkpoint::restore(opened, &plan, params)?;
        Ok(Some((opened.state.clone(), optimizer_state)))
    })?;
    Ok(SingleProcessEngine { plan, engine, collective })
}

/// Evaluates the checkpoint `opened`, or else the weights that the plan starts from, on these parts
/// of the data and, if one of them is to test on, in its simulation, in this process alone.
/// `progress` is called with the batches of a part that are done, and with their number.
pub fn evaluate(
    plan: &Plan,
    opened: Option<&OpenCheckpoint>,
    parts: &[Split],
    kinds: &Kinds,
    progress: &(dyn Fn(Split, usize, usize) + Sync),
) -> Result<EvaluationResult, Error> {
    on_large_stack(|| {
        let mut plan = plan.clone();
        plan.sample_every = 1;
        plan.metrics = kinds.metrics.specs().iter().map(|metric| metric.name.to_owned()).collect();
        let SingleProcessEngine { plan, mut engine, collective } =
            single_process_engine(plan, opened, kinds)?;
        let source = kinds.data.build(&plan.data.source.kind).map_err(data::Error::from)?;
        let how = plan.test_time_augmentation;
        let request = SurveyRequest::of(&plan);
        let splits =
            data::open_views(source.as_ref(), &plan.data, how, &request, &kinds.transforms)?;
        let data = [(Split::Val, Some(splits.val)), (Split::Test, splits.test)];
        let data = data.into_iter().filter(|(split, _)| parts.contains(split)).collect();
        let preprocessor = ObservationPreprocessor::of(&plan, &kinds.transforms)?;
        let simulation =
            Simulation { source: source.as_ref(), preprocessor: preprocessor.as_ref() };
        measure_all(&plan, simulation, data, &mut engine, collective.as_ref(), progress)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RESOLVED;

    #[test]
    fn a_sink_is_told_tags_and_experiment_of_the_newest_start() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path();
        assert_eq!(described(logs), (Map::new(), vec![]));
        let resolved = b"[experiment]\ntags = ['b', 'a']\n[optimizer]\nlr = 0.1\n";
        files::write_atomic(&logs.join(RESOLVED), resolved).unwrap();
        let (config, tags) = described(logs);
        assert_eq!(tags, ["a", "b"]);
        assert_eq!(config["optimizer"]["lr"], 0.1);
    }
}
