//! The training loop of one rank: steps, and what happens at their edges.

use std::collections::BTreeMap;

use crate::checkpoint::{self, Importance, Overdue};
use crate::data::audit::{Partition, SampleDigest, audit};
use crate::data::loader::{Loader, Request, Settings};
use crate::data::sampler::EpochOrder;
use crate::engine::{self, Clock, Evaluation, PendingEvaluation, Split, StepReport};
use crate::event::{EpochDone, Evaluated, Event, Finished, Partitioned, Reason, StepDone};
use crate::failpoint;
use crate::launch::{Phase, Stop};
use crate::memory;
use crate::plan::Interval;
use crate::worker::batch_source::BatchSource;
use crate::worker::broadcast_state::broadcast_value;
use crate::worker::build::snapshot;
use crate::worker::test::test;
use crate::worker::triggers::{self, StepBoundary};
use crate::worker::unreadable::{self, report_epoch, report_refused};
use crate::worker::{Error, RankRun};

/// The end of a rank's part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The run is over.
    Done(Reason),
    /// Left because of this request.
    Left(Stop),
}

impl Ending {
    /// True if the state is saved before it: all but a second Ctrl-C leave time for that.
    fn saves(self) -> bool {
        self != Self::Left(Stop::Abandon)
    }
}

/// Trains from where the engine stands to the end of the run. One that was over when it was saved
/// is only finished: by the same decision, so that each start of it ends in the same way.
pub(crate) fn train(run: &mut RankRun) -> Result<Ending, Error> {
    if let Some(ending) = complete_step(run)? {
        return finish(run, ending);
    }
    let ending = match triggers::over(run.engine.state(), &run.plan) {
        Some(reason) => {
            let message = triggers::nothing_left(reason, run.engine.state());
            run.record(&Event::Warned { message })?;
            complete_late(run)?.unwrap_or(Ending::Done(reason))
        }
        None => epochs(run)?,
    };
    finish(run, ending)
}

/// Makes the evaluation that an earlier start broke off.
fn complete_step(run: &mut RankRun) -> Result<Option<Ending>, Error> {
    let Some(left) = run.engine.state().left else { return Ok(None) };
    let boundary = StepBoundary::after(run.engine.state().step, &run.plan.length);
    let ending = finish_boundary(run, &boundary, left, None)?;
    let is_over = run.engine.state().step >= run.plan.length.total_steps;
    Ok(ending.or(is_over.then_some(Ending::Done(Reason::Completed))))
}

fn epochs(run: &mut RankRun) -> Result<Ending, Error> {
    while run.engine.state().step < run.plan.length.total_steps {
        if let Some(early) = epoch(run)? {
            return Ok(early);
        }
    }
    Ok(Ending::Done(Reason::Completed))
}

/// Runs the rest of the epoch at hand. `Some` = the run ends here.
fn epoch(run: &mut RankRun) -> Result<Option<Ending>, Error> {
    let length = run.plan.length;
    let done = run.engine.state().step;
    let epoch = done / length.steps_per_epoch;
    let first = done % length.steps_per_epoch;
    let last = (length.total_steps - epoch * length.steps_per_epoch).min(length.steps_per_epoch);
    let order = epoch_order(run, epoch);
    audit_partition(run, &order, epoch)?;
    let mut batches = training_batches(run, &order, epoch, first..last)?;
    run.epoch_clock = Clock::start();
    let stop_requests = run.stop_requests();
    for step in first..last {
        let passes = order.passes(step as usize, run.rank);
        let report = run.engine.step(&passes, &mut || batches.next(), &|| stop_requests.now());
        if let Err(error) = &report {
            report_refused(run, error, &batches)?;
        }
        let report = report?;
        let is_last = step + 1 == last;
        if is_last {
            report_epoch(run, &batches)?;
        }
        if let Some(ending) = after_step(run, &report)? {
            if !is_last && ending.saves() {
                report_epoch(run, &batches)?;
            }
            return Ok(Some(ending));
        }
    }
    Ok(None)
}

fn epoch_order(RankRun { plan, sample_weights, .. }: &RankRun, epoch: u64) -> EpochOrder {
    let world = plan.distributed.world_size;
    let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, epoch);
    match sample_weights {
        Some(sample_weights) => order.with_weighted_draws(sample_weights, plan.seed, epoch),
        None => order,
    }
}

/// Has all ranks say which samples they are about to take, and records that each belongs to one of
/// them.
fn audit_partition(run: &mut RankRun, order: &EpochOrder, epoch: u64) -> Result<(), Error> {
    let wrong = |what: String| Error::Partition { epoch: epoch + 1, what };
    let mut mine = SampleDigest::by(order, run.rank);
    if failpoint::flips("samples") {
        mine.add(0);
    }
    let bytes = serde_json::to_vec(&mine).map_err(|error| wrong(error.to_string()))?;
    run.report_waiting();
    let all: Vec<SampleDigest> = run
        .collective
        .all_gather(&bytes)?
        .iter()
        .map(|bytes| serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string())))
        .collect::<Result<_, _>>()?;
    let Partition { samples, left_out, repeated } =
        audit(order, run.plan.data.n_train, &all).map_err(wrong)?;
    let step = run.engine.state().step;
    let ranks = run.plan.world_size().get();
    let epoch = epoch + 1;
    let partitioned = Partitioned { epoch, step, ranks, samples, left_out, repeated };
    run.record(&Event::Partitioned(partitioned))
}

fn training_batches(
    run: &RankRun,
    order: &EpochOrder,
    epoch: u64,
    steps: std::ops::Range<u64>,
) -> Result<BatchSource, Error> {
    let order = order.clone();
    let rank = run.rank;
    let requests = steps.flat_map(move |step| {
        order.passes(step as usize, rank).into_iter().filter(|pass| !pass.samples.is_empty()).map(
            move |pass| Request {
                samples: pass.samples,
                partners: pass.partners,
                copies: pass.copies,
                step,
                epoch: Some(epoch),
            },
        )
    });
    let settings = Settings::new(&run.plan.data, run.plan.seed);
    let loader = Loader::start(run.splits.train.clone(), requests, settings)?;
    Ok(BatchSource::new(loader).observed_by(&run.link).for_engine(&run.engine)?)
}

/// Everything between two steps: record, evaluate, close the epoch, save, and perhaps leave.
fn after_step(run: &mut RankRun, report: &StepReport) -> Result<Option<Ending>, Error> {
    let boundary = StepBoundary::after(report.step, &run.plan.length);
    if report.stop_request == Some(Stop::Abandon) {
        report_saves(run, Wait::No)?;
        record_step(run, report, &boundary)?;
        return Ok(ending(run, report.stop_request, &boundary));
    }
    if boundary.is_due(run.plan.compare_weights) {
        run.engine.compare_weights()?;
    }
    report_saves(run, Wait::No)?;
    if let Some(straggler) = run.engine.take_straggler() {
        run.record(&Event::Straggler(straggler))?;
    }
    if let Some(stats) = run.engine.take_rank_stats() {
        run.record(&Event::RankStats(stats))?;
    }
    if let Some(message) = run.engine.take_notice() {
        run.record(&Event::Warned { message })?;
    }
    record_step(run, report, &boundary)?;
    let left = PendingEvaluation {
        lr: report.lr,
        has_accuracy: report.accuracy.is_some(),
        epoch_is_closed: false,
    };
    finish_boundary(run, &boundary, left, report.stop_request)
}

/// Evaluates, closes the epoch, saves, and perhaps leaves, after a step that is recorded. An
/// evaluation that is broken off is made when the run goes on.
fn finish_boundary(
    run: &mut RankRun,
    boundary: &StepBoundary,
    mut left: PendingEvaluation,
    mut asked: Option<Stop>,
) -> Result<Option<Ending>, Error> {
    let mut is_best = false;
    let best = run.engine.state().best.clone();
    let is_second = left.epoch_is_closed;
    let is_due = boundary.is_due(run.plan.validate_every) && !is_second;
    // Of a run that was over when this was left.
    let again = run.engine.state_mut().left.take();
    let was_over = again.and_then(|_| triggers::over(run.engine.state(), &run.plan));
    if let Some(stop) = asked
        && is_due
        && stop.is_urgent()
    {
        return leave_to_do(run, left, stop).map(Some);
    }
    if boundary.ends_run
        && let Err(stop) = complete_average(run)?
    {
        return leave_to_do(run, left, stop).map(Some);
    }
    if is_due {
        match evaluate(run, boundary)? {
            Ok(found) => (is_best, asked) = (found.is_best, asked.max(found.stop_request)),
            Err(stop) => return leave_to_do(run, left, stop).map(Some),
        }
    }
    if (boundary.ends_epoch || boundary.ends_run) && !is_second {
        close_epoch(run, left, boundary)?;
        left.epoch_is_closed = true;
    }
    let ending = ending(run, asked, boundary).or(was_over.map(Ending::Done));
    if matches!(ending, Some(Ending::Done(_))) {
        let has_average = match complete_average(run)? {
            Ok(has_average) => has_average,
            Err(stop) => return leave_to_do(run, left, stop).map(Some),
        };
        if has_average {
            // What the weights have just reached is not what is saved.
            run.engine.state_mut().best = best;
        }
        // A run may be out of time where no evaluation is due.
        if has_average || is_second || run.engine.state().evaluated_at != boundary.step {
            match evaluate_once_more(run, boundary)? {
                Ok(found) => is_best = found.is_best,
                Err(stop) => return leave_to_do(run, left, stop).map(Some),
            }
        }
    }
    let leaving = ending.is_some();
    let keeps_best = is_best && run.plan.checkpoint.keep_best > 0;
    if leaving {
        say_unwatched(run, asked)?;
    }
    if ending == Some(Ending::Left(Stop::Abandon)) {
        return Ok(ending);
    }
    if leaving || boundary.ends_run {
        // The last state replaces none, and none replaces it.
        report_saves(run, Wait::ForDisk)?;
    }
    let is_due = leaving || keeps_best || boundary.is_due(run.plan.checkpoint.every);
    if is_due || boundary.ends_run && outlives_a_checkpoint(run)? {
        save(run, if keeps_best { Importance::Best } else { Importance::Regular })?;
    }
    Ok(ending)
}

/// Saves the state before an evaluation that was broken off, and leaves.
fn leave_to_do(run: &mut RankRun, left: PendingEvaluation, stop: Stop) -> Result<Ending, Error> {
    let ending = Ending::Left(stop);
    if ending.saves() {
        say_unwatched(run, Some(stop))?;
        let message = "the evaluation is broken off; it is made when the run continues";
        run.record(&Event::Warned { message: message.to_owned() })?;
        report_saves(run, Wait::ForDisk)?;
        run.engine.state_mut().left = Some(left);
        save(run, Importance::Regular)?;
    }
    Ok(ending)
}

fn say_unwatched(run: &mut RankRun, asked: Option<Stop>) -> Result<(), Error> {
    if asked != Some(Stop::Unwatched) {
        return Ok(());
    }
    let message = "no heartbeat from the parent process for `distributed.timeout` (is it \
                   suspended?): saving and exiting";
    run.record(&Event::Warned { message: message.to_owned() })
}

fn record_step(
    run: &mut RankRun,
    report: &StepReport,
    boundary: &StepBoundary,
) -> Result<(), Error> {
    run.samples += report.samples;
    if !report.updated {
        // Its numbers are not finite: nothing that a curve could show.
        let step = report.step;
        let loss_scale = report.loss_scale;
        return run.record(&Event::StepSkipped { step, loss_scale });
    }
    if !boundary.is_due(run.plan.logging.every) && !boundary.ends_epoch {
        run.logger.advance(report.step, report.loss);
        return Ok(());
    }
    let samples_per_second = run.pace();
    run.record(&Event::StepDone(StepDone {
        step: report.step,
        epoch: boundary.epoch,
        step_in_epoch: boundary.step_in_epoch,
        loss: report.loss,
        accuracy: report.accuracy,
        lr: report.lr,
        grad_norm: report.grad_norm,
        loss_scale: report.loss_scale,
        samples_per_second,
    }))
}

/// Result of an evaluation on the validation set.
struct Validated {
    /// True if it is the best so far.
    is_best: bool,
    /// Request to stop that came meanwhile.
    stop_request: Option<Stop>,
}

/// Evaluates on the whole validation set; the inner error is the request to stop that broke it off.
fn evaluate(run: &mut RankRun, boundary: &StepBoundary) -> Result<Result<Validated, Stop>, Error> {
    let clock = Clock::start();
    run.link.progress(boundary.step, Phase::Evaluating);
    failpoint::reach("validate");
    let data = run.splits.val.clone();
    let evaluated = match unreadable::evaluate(run, Split::Val, data.clone()) {
        Err(Error::Engine(engine::Error::BrokenOff(stop))) => return Ok(Err(stop)),
        evaluated => evaluated?,
    };
    let Evaluation { mut metrics, samples, stop_request, .. } = evaluated;
    if run.engine.has_young_average() {
        match unreadable::evaluate_weights(run, Split::Val, data) {
            Err(Error::Engine(engine::Error::BrokenOff(stop))) => return Ok(Err(stop)),
            evaluated => metrics.extend(evaluated?),
        }
    }
    metrics.extend(running_metrics(run));
    run.engine.time_mut().evaluation += clock.seconds();
    let is_best = run.engine.evaluated(metrics.clone());
    run.record(&Event::Evaluated(Evaluated {
        step: boundary.step,
        epoch: boundary.epoch,
        metrics,
        samples,
    }))?;
    run.pause_pace();
    Ok(Ok(Validated { is_best, stop_request }))
}

/// Evaluates the average that takes the place of the weights of the last evaluation.
fn evaluate_once_more(
    run: &mut RankRun,
    boundary: &StepBoundary,
) -> Result<Result<Validated, Stop>, Error> {
    if run.plan.validate_every == Interval::Never {
        return Ok(Ok(Validated { is_best: false, stop_request: None }));
    }
    evaluate(run, boundary)
}

/// Gives the average of the weights, if one is open, the statistics of an epoch, which is the one
/// that would come next. Returns true if it did, or the request to stop that broke it off.
fn complete_average(run: &mut RankRun) -> Result<Result<bool, Stop>, Error> {
    if !run.engine.has_open_average() {
        return Ok(Ok(false));
    }
    let clock = Clock::start();
    let steps = run.plan.length.steps_per_epoch;
    let epoch = run.engine.state().step.div_ceil(steps);
    let order = epoch_order(run, epoch);
    let mut batches = training_batches(run, &order, epoch, 0..steps)?;
    let mut passes = (0..steps).map(|step| order.passes(step as usize, run.rank));
    let stop_requests = run.stop_requests();
    match run.engine.update_bn(&mut passes, &mut || batches.next(), &|| stop_requests.now()) {
        Err(engine::Error::BrokenOff(stop)) => return Ok(Err(stop)),
        done => done?,
    }
    run.engine.time_mut().evaluation += clock.seconds();
    run.pause_pace();
    Ok(Ok(true))
}

/// Completes and evaluates the average of a run that did not end where it was saved, but is over
/// now, and saves it in the place of that checkpoint.
fn complete_late(run: &mut RankRun) -> Result<Option<Ending>, Error> {
    match complete_average(run)? {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(stop) => return Ok(Some(Ending::Left(stop))),
    }
    let boundary = StepBoundary::after(run.engine.state().step, &run.plan.length);
    if run.engine.state().best.as_ref().is_some_and(|best| best.step == boundary.step) {
        let folder = &run.folders.checkpoints;
        let plan = &run.plan.checkpoint;
        let others = || checkpoint::best_until(folder, plan, boundary.step.saturating_sub(1));
        let best = if run.rank.is_first() { others()? } else { None };
        run.report_waiting();
        run.engine.state_mut().best = broadcast_value(run.collective.as_ref(), &best)?;
    }
    // One that is broken off is made by the next start, which finds the average open again.
    if let Err(stop) = evaluate_once_more(run, &boundary)? {
        return Ok(Some(Ending::Left(stop)));
    }
    save(run, Importance::Regular)?;
    Ok(None)
}

/// `train/loss` and `train/accuracy` over the epoch so far, so that they can be monitored too.
fn running_metrics(run: &RankRun) -> Vec<(String, f64)> {
    let sums = run.engine.state().sums;
    let mut metrics = Vec::new();
    if let Some(loss) = sums.mean_loss() {
        metrics.push(("train/loss".to_owned(), loss));
        if run.plan.loss.has_classes() {
            metrics.push(("train/accuracy".to_owned(), sums.accuracy()));
        }
    }
    metrics
}

fn close_epoch(
    run: &mut RankRun,
    last: PendingEvaluation,
    boundary: &StepBoundary,
) -> Result<(), Error> {
    let steps_before = (boundary.epoch - 1) * run.plan.length.steps_per_epoch;
    let seconds = run.epoch_clock.seconds();
    let state = run.engine.state_mut();
    let evaluated = state.evaluated_at > steps_before;
    let metric = |name: &str| if evaluated { state.metrics.get(name).copied() } else { None };
    let sums = state.sums;
    let done = EpochDone {
        epoch: boundary.epoch,
        step: boundary.step,
        train_loss: sums.mean_loss().unwrap_or(f64::NAN),
        train_accuracy: last.has_accuracy.then(|| sums.accuracy()),
        val_loss: metric("val/loss"),
        val_accuracy: metric("val/accuracy"),
        metrics: if evaluated { other_metrics(&state.metrics) } else { BTreeMap::new() },
        lr: last.lr,
        seconds,
    };
    if boundary.ends_epoch {
        // The last epoch of a run may be cut short; it goes on if the run is given more steps.
        state.sums = engine::EpochSums::default();
    }
    failpoint::reach("epoch");
    run.record(&Event::EpochDone(done))
}

/// Metrics of the validation beside loss and accuracy.
fn other_metrics(metrics: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let is_other = |name: &str| {
        let is_usual = name == "val/loss" || name == "val/accuracy";
        (name.starts_with("val/") || name.starts_with("val_weights/")) && !is_usual
    };
    let others = metrics.iter().filter(|(name, _)| is_other(name));
    others.map(|(name, value)| (name.clone(), *value)).collect()
}

/// The reason to end the run at this step boundary before its last step, if any.
fn ending(run: &RankRun, stop_request: Option<Stop>, boundary: &StepBoundary) -> Option<Ending> {
    match stop_request {
        Some(stop) if stop.is_urgent() => Some(Ending::Left(stop)),
        // A run that is over anyway needs neither more time nor another number of ranks.
        _ if boundary.ends_run => None,
        Some(Stop::EndOfTime) => Some(Ending::Done(Reason::OutOfTime)),
        _ if run.engine.state().is_stuck(&run.plan) => Some(Ending::Done(Reason::EarlyStopped)),
        stop => stop.map(Ending::Left),
    }
}

/// Copies the state on rank 0, to be written while training goes on. Every rank calls it: rank 0
/// needs the optimizer's state that others keep; running statistics are rank 0's. What is saved was
/// compared, so that a restart never continues from the rank that differs.
fn save(run: &mut RankRun, importance: Importance) -> Result<(), Error> {
    run.link.progress(run.engine.state().step, Phase::Saving);
    run.engine.compare_everything()?;
    run.engine.gather_optimizer_state(0..1)?;
    let Some(writer) = &run.writer else { return Ok(()) };
    let clock = Clock::start();
    run.link.progress(run.engine.state().step, Phase::Saving);
    if run.plan.length.time.is_some() {
        run.engine.state_mut().seconds = Some(run.spent().as_secs_f64());
    }
    run.engine.copy_optimizer_state_to_host()?;
    writer.save(&snapshot(&run.plan, &run.engine), importance)?;
    let overdue = writer.overdue();
    run.engine.release_optimizer_state();
    run.engine.time_mut().checkpoint += clock.seconds();
    if let Some(Overdue { time, due }) = overdue {
        let message = format!(
            "the disk has been writing one checkpoint for {:.0} s, while {due} more were due: does \
             `{}` respond? Nothing newer is saved until then",
            time.as_secs_f64(),
            run.folders.checkpoints.display()
        );
        run.record(&Event::Warned { message })?;
    }
    Ok(())
}

/// True if there is a checkpoint at the end of a run that has none to make: it would stay the
/// newest one, from which others would start and evaluate, and each `resume` would train on.
fn outlives_a_checkpoint(run: &RankRun) -> Result<bool, Error> {
    let mine = run.rank.is_first() && has_checkpoint(run)?;
    run.report_waiting();
    broadcast_value(run.collective.as_ref(), &mine)
}

fn has_checkpoint(run: &RankRun) -> Result<bool, Error> {
    Ok(!checkpoint::all(&run.folders.checkpoints)?.is_empty())
}

/// Wait of a report of saves until everything is on disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    ForDisk,
}

/// Reports checkpoints that have reached the disk. One that could not be written ends the run.
fn report_saves(run: &mut RankRun, wait: Wait) -> Result<(), Error> {
    let Some(writer) = &run.writer else { return Ok(()) };
    let step = run.engine.state().step;
    let saved = if wait == Wait::No {
        writer.saved()
    } else {
        let clock = Clock::start();
        run.link.progress(step, Phase::Saving);
        let saved = writer.finish_observed(&mut || run.link.still_moving());
        run.engine.time_mut().checkpoint += clock.seconds();
        saved
    };
    for mut saved in saved.inspect_err(|_| run.link.progress(step, Phase::Saving))? {
        let surplus = saved.surplus.take();
        run.record(&Event::Saved(saved))?;
        run.link.saved();
        if let Some(why) = surplus {
            let message = format!(
                "an older checkpoint could not be deleted: {why}; it is tried again after the next \
                 checkpoint"
            );
            run.record(&Event::Warned { message })?;
        }
    }
    Ok(())
}

/// Waits for the disk and for all ranks, so that no rank leaves while rank 0 still saves; then the
/// test, where the run is over, and the last words. A test that is broken off is made when the run
/// is resumed.
fn finish(run: &mut RankRun, mut ending: Ending) -> Result<Ending, Error> {
    if ending.saves() {
        report_saves(run, Wait::ForDisk)?;
    }
    run.link.progress(run.engine.state().step, Phase::Finishing);
    run.collective.barrier().map_err(engine::Error::from)?;
    if run.samples > 0 {
        let stats = run.engine.rank_stats()?;
        run.record(&Event::RankStats(stats))?;
    }
    if matches!(ending, Ending::Done(_)) {
        match test(run) {
            Err(Error::Engine(engine::Error::BrokenOff(stop))) => ending = Ending::Left(stop),
            tested => tested?,
        }
    }
    if matches!(ending, Ending::Done(_))
        && let Some(missed) = run.missed_expectations()
    {
        let message = format!("the run missed what `[expect]` asks for: {missed}");
        run.record(&Event::Warned { message })?;
    }
    let reason = match ending {
        Ending::Done(reason) => reason,
        // The run is not over: these would not be its last words.
        Ending::Left(Stop::Resize) => return Ok(ending),
        Ending::Left(Stop::Abandon) => Reason::Abandoned,
        Ending::Left(_) => Reason::Stopped,
    };
    let is_over = matches!(ending, Ending::Done(_));
    let time = run.engine.time();
    let training = time.data + time.forward + time.backward + time.communication + time.optimizer;
    run.record(&Event::Finished(Finished {
        reason,
        step: run.engine.state().step,
        best: run.engine.state().best.clone(),
        seconds: run.clock.seconds(),
        samples_per_second: run.samples as f64 / training.max(f64::MIN_POSITIVE),
        time,
        peak_memory: memory::most_resident(),
        no_checkpoint: is_over && run.rank.is_first() && !has_checkpoint(run).unwrap_or(true),
    }))?;
    Ok(ending)
}
