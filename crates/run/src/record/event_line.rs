//! `Event` -> one or more lines of plain text, without colour or escape codes. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::text::{self, duration, escape, loss, percent, rate, short};
use crate::event::{
    EpochDone, Evaluated, Event, Partitioned, Saved, Started, StepDone, Straggler, Unreadable,
};
use crate::metric::naive_forecast_warning;
use crate::plan::NO_STEP_LIMIT;

/// Numbers of the whole run that the text of an event needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Context {
    pub steps_per_epoch: u64,
    /// Last step of the run.
    pub total_steps: u64,
    /// Estimate for the rest of the run.
    pub time_left: Option<Duration>,
}

impl Context {
    /// The numbers of a run that begins.
    pub fn of(started: &Started) -> Self {
        Self {
            steps_per_epoch: started.steps_per_epoch,
            total_steps: started.total_steps,
            time_left: None,
        }
    }

    /// Epochs of the run; an incomplete last one counts.
    pub fn epochs(&self) -> u64 {
        self.total_steps.div_ceil(self.steps_per_epoch.max(1))
    }

    /// Steps of the epoch, counted from 1; the last one may be cut short.
    pub fn steps_of(&self, epoch: u64) -> u64 {
        let before = epoch.saturating_sub(1) * self.steps_per_epoch;
        self.total_steps.saturating_sub(before).min(self.steps_per_epoch)
    }

    /// True if the run has a last step, and does not end by time alone.
    pub(crate) fn is_bounded(&self) -> bool {
        self.total_steps < NO_STEP_LIMIT
    }

    /// `epoch 2/3`
    pub(crate) fn epoch(&self, epoch: u64) -> String {
        let last = if self.is_bounded() { format!("/{}", self.epochs()) } else { String::new() };
        format!("epoch {epoch}{last}")
    }

    /// `step 30/50`
    fn step(&self, step: u64) -> String {
        let last = if self.is_bounded() { format!("/{}", self.total_steps) } else { String::new() };
        format!("step {step}{last}")
    }

    /// The epoch of a step and its index in the epoch; both from 1.
    pub fn place_of(&self, step: u64) -> (u64, u64) {
        let before = step.saturating_sub(1);
        let per_epoch = self.steps_per_epoch.max(1);
        (before / per_epoch + 1, before % per_epoch + 1)
    }

    /// True if an epoch ends at this step, complete or not.
    fn closes_an_epoch(&self, step: u64) -> bool {
        let is_whole = self.steps_per_epoch > 0 && step.is_multiple_of(self.steps_per_epoch);
        is_whole || step == self.total_steps
    }
}

/// The text of an event for users; `None` if another event or the summary of the run contains it.
pub fn line(event: &Event, context: &Context) -> Option<String> {
    let text = match event {
        Event::Started(started) => first_lines(started),
        Event::StepDone(done) => step_line(done, context),
        Event::StepSkipped { step, loss_scale } => skipped(*step, *loss_scale),
        // At the end of an epoch, and of the run, `EpochDone` carries these numbers.
        Event::Evaluated(at) if context.closes_an_epoch(at.step) => return None,
        Event::Evaluated(evaluated) => evaluation(evaluated, context),
        Event::Tested(tested) => test_line(tested),
        Event::EpochDone(epoch) => epoch_line(epoch, context),
        Event::Saved(saved) => saved_line(saved),
        Event::Straggler(straggler) => straggler_line(straggler),
        Event::Unreadable(unreadable) => unreadable_lines(unreadable),
        Event::Warned { message } => format!("warning: {message}"),
        Event::Failed { rank, step, message } => {
            format!("rank {rank} failed at step {step}: {message}")
        }
        // For the log alone.
        Event::Partitioned(_) | Event::RankStats(_) | Event::Finished(_) => return None,
    };
    Some(escape(&text).into_owned())
}

/// The text of an event for the log alone; `None` for events with a [`line()`].
pub(crate) fn quiet_line(event: &Event) -> Option<String> {
    let Event::Partitioned(Partitioned { epoch, ranks, samples, left_out, repeated, .. }) = event
    else {
        return None;
    };
    let rest = match (left_out, repeated) {
        (0, 0) => String::new(),
        (left_out, 0) => format!(", {left_out} left out"),
        (_, repeated) => format!(", {repeated} of them twice"),
    };
    let ranks = if *ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    Some(format!("epoch {epoch}: {samples} samples for {ranks}, disjoint and complete{rest}"))
}

fn straggler_line(straggler: &Straggler) -> String {
    let Straggler { rank, step, lag_seconds, data_seconds, step_seconds } = straggler;
    let lag = 1e3 * lag_seconds;
    let data = 1e3 * data_seconds;
    let whole = 1e3 * step_seconds;
    let why = if 2.0 * data_seconds >= *lag_seconds {
        format!(
            "it waits {data:.1} ms for its data (raise `data.num_workers`, or use a faster disk)"
        )
    } else {
        "its cores or its device are slower, not its data loading".to_owned()
    };
    format!(
        "warning: rank {rank} reaches the all-reduce {lag:.1} ms after the others (up to step \
         {step}; a step takes {whole:.1} ms): {why}"
    )
}

/// The number of unreadable samples, then the first of them, one per line.
fn unreadable_lines(found: &Unreadable) -> String {
    let Unreadable { split, epoch, samples, unreadable, first, .. } = found;
    let done = match split.as_str() {
        "training" => format!("were replaced in epoch {epoch}"),
        _ => "were left out".to_owned(),
    };
    let mut lines =
        format!("warning: {unreadable} of {samples} {split} samples cannot be read and {done}");
    for problem in first {
        let _ = write!(lines, "\n  {problem}");
    }
    let more = unreadable.saturating_sub(first.len() as u64);
    if more > 0 && !first.is_empty() {
        let _ = write!(lines, "\n  and {more} more");
    }
    lines
}

/// `Use device (DDP): cpu, rank 0/2`
pub fn device_line(device: &str, rank: usize, world_size: usize) -> String {
    format!("Use device (DDP): {device}, rank {rank}/{world_size}")
}

/// The numbers of a step beside the bar.
pub(crate) fn step_numbers(done: &StepDone) -> String {
    let mut numbers = format!("loss {}", loss(done.loss));
    push_accuracy(&mut numbers, done.accuracy);
    let _ = write!(numbers, "  lr {}  grad norm {}", short(done.lr), short(done.grad_norm));
    let _ = write!(numbers, "  {}", rate(done.samples_per_second));
    if let Some(scale) = done.loss_scale {
        let _ = write!(numbers, "  loss scale {scale}");
    }
    numbers
}

fn first_lines(started: &Started) -> String {
    let mut lines = vec![format!("{}  {}  ddprun {}", started.name, started.run, started.version)];
    lines.extend(started.arithmetic.iter().cloned());
    let world_size = started.devices.len();
    let devices = started.devices.iter().enumerate();
    lines.extend(devices.map(|(rank, device)| device_line(device, rank, world_size)));
    if started.resumed_from > 0 {
        lines.push(format!("resumed after step {}", started.resumed_from));
    }
    // Those before the last stand further up in the log.
    lines.extend(started.restarts.last().map(|cause| restart(started.restarts.len(), cause)));
    lines.join("\n")
}

/// `restart 1, because of rank 1 (step 17, forward): rank 1 was killed by SIGKILL`
pub(crate) fn restart(number: usize, cause: &str) -> String {
    format!("restart {number}, because of {cause}")
}

fn step_line(done: &StepDone, context: &Context) -> String {
    let mut line = format!("{}  {}  ", context.epoch(done.epoch), context.step(done.step));
    line += &step_numbers(done);
    if let Some(left) = context.time_left {
        let _ = write!(line, "  ETA {}", duration(left.as_secs_f64()));
    }
    line
}

fn skipped(step: u64, loss_scale: Option<f64>) -> String {
    let scale = loss_scale.map(|scale| format!("; loss scale now {scale}"));
    format!("step {step} skipped: a gradient is not finite{}", scale.unwrap_or_default())
}

/// `step 30/50  train loss 0.3000  val loss 0.5500 acc 72.50 %  (1000 samples)`
fn evaluation(evaluated: &Evaluated, context: &Context) -> String {
    let Evaluated { step, metrics, samples, .. } = evaluated;
    let mut line = context.step(*step);
    for split in SPLITS {
        push_split(&mut line, split, metrics);
    }
    format!("{line}  ({samples} samples)")
}

/// `test loss 0.5000 mae 0.4000  (weights of step 20, 1000 samples)`, for a forecast with the
/// errors of naive ones.
fn test_line(tested: &Evaluated) -> String {
    let Evaluated { step, metrics, samples, .. } = tested;
    let (naive, own): (BTreeMap<_, _>, BTreeMap<_, _>) =
        metrics.clone().into_iter().partition(|(name, _)| name.contains("naive_"));
    let mut line = String::new();
    push_split(&mut line, "test", &own);
    let mut line = format!("{}  (weights of step {step}, {samples} samples)", line.trim_start());
    if !naive.is_empty() {
        let mut errors = String::new();
        push_split(&mut errors, "test", &naive);
        let errors = errors.trim_start().trim_start_matches("test ");
        let _ = write!(line, "\nwithout a model: {errors}");
    }
    let warning = naive_forecast_warning("test", metrics).map(|what| format!("\nwarning: {what}"));
    line + &warning.unwrap_or_default()
}

/// Fits into 80 columns, with two metrics beside the loss into 90; the learning rate is shown with
/// the steps.
fn epoch_line(epoch: &EpochDone, context: &Context) -> String {
    let mut line = context.epoch(epoch.epoch);
    let mut metrics = epoch.metrics.clone();
    let usual = [
        ("train/loss", Some(epoch.train_loss)),
        ("train/accuracy", epoch.train_accuracy),
        ("val/loss", epoch.val_loss),
        ("val/accuracy", epoch.val_accuracy),
    ];
    metrics.extend(usual.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    for split in SPLITS {
        push_split(&mut line, split, &metrics);
    }
    line + "  " + &duration(epoch.seconds)
}

/// Prefixes of metric names, in the order of a line.
const SPLITS: [&str; 3] = ["train", "val", "val_weights"];

/// Appends the metrics of one split: the loss, then the others by name.
fn push_split(line: &mut String, split: &str, metrics: &BTreeMap<String, f64>) {
    let own = |name: &str| name.strip_prefix(split)?.strip_prefix('/').map(str::to_owned);
    let mut of_split: Vec<(String, &String, f64)> =
        metrics.iter().filter_map(|(name, value)| Some((own(name)?, name, *value))).collect();
    of_split.sort_by_key(|(short_name, ..)| short_name != "loss");
    if of_split.is_empty() {
        return;
    }
    // The weights beside their average, which is what `val` measures then.
    let words = if split == "val_weights" { "(weights:" } else { split };
    let _ = write!(line, "  {words}");
    for (short_name, name, value) in of_split {
        let short_name = match short_name.as_str() {
            "accuracy" => "acc",
            name => name.strip_suffix("_accuracy").unwrap_or(name),
        };
        let _ = write!(line, " {short_name} {}", text::metric(name, value));
    }
    if split == "val_weights" {
        line.push(')');
    }
}

/// Without the path, which is long: the last lines name it, and `resume` finds it.
fn saved_line(saved: &Saved) -> String {
    let best = if saved.best { ", best so far" } else { "" };
    let took = duration(saved.seconds);
    let stall = 1e3 * saved.stall_seconds;
    let mut line = format!("saved step {}{best} ({} in {took}", saved.step, saved.size);
    let _ = write!(line, ", training blocked for {stall:.1} ms)");
    if saved.replaced > 0 {
        let saves = if saved.replaced == 1 { "save" } else { "saves" };
        let _ = write!(line, " (skipped {} earlier {saves}: disk busy)", saved.replaced);
    }
    line
}

fn push_accuracy(line: &mut String, accuracy: Option<f64>) {
    if let Some(accuracy) = accuracy {
        let _ = write!(line, "  accuracy {}", percent(accuracy));
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::record::example_events;
    use crate::units::{Bytes, Rank};

    fn check(event: &Event) -> String {
        let context = Context {
            steps_per_epoch: 20,
            total_steps: 50,
            time_left: Some(Duration::from_secs(754)),
        };
        line(event, &context).unwrap()
    }

    #[test]
    fn the_first_lines_state_the_arithmetic_and_every_ranks_device() {
        assert_snapshot!(check(&Event::Started(example_events::started(0))), @r"
        shapes  20261120-132556-3fa2  ddprun 0.1.0
        128 = 32 x 2 ranks x 2 passes
        lr 0.05 = 0.1 x 128/256 (linear)
        Use device (DDP): cpu, rank 0/2
        Use device (DDP): cpu, rank 1/2
        ");
    }

    #[test]
    fn a_continued_run_says_from_where() {
        let lines = check(&Event::Started(example_events::started(30)));
        assert_eq!(lines.lines().last(), Some("resumed after step 30"));
    }

    #[test]
    fn a_step_shows_its_place_and_the_numbers_of_the_global_batch() {
        assert_snapshot!(check(&Event::StepDone(example_events::step_done(30))),
            @"epoch 2/3  step 30/50  loss 0.5000  accuracy 75.00 %  lr 0.05  grad norm 1.25  1234 samples/s  ETA 12m 34s");
        let half =
            StepDone { accuracy: None, loss_scale: Some(65536.0), ..example_events::step_done(10) };
        assert_snapshot!(check(&Event::StepDone(half)),
            @"epoch 1/3  step 10/50  loss 0.5000  lr 0.05  grad norm 1.25  1234 samples/s  loss scale 65536  ETA 12m 34s");
    }

    #[test]
    fn a_run_that_only_time_ends_has_no_last_step() {
        let context = Context { total_steps: NO_STEP_LIMIT, steps_per_epoch: 20, time_left: None };
        let text = line(&Event::StepDone(example_events::step_done(30)), &context).unwrap();
        assert!(text.starts_with("epoch 2  step 30  loss 0.5000"), "{text}");
    }

    #[test]
    fn an_epoch_shows_train_and_val_in_one_line() {
        assert_snapshot!(check(&Event::EpochDone(example_events::epoch_done(2))),
            @"epoch 2/3  train loss 0.6000 acc 70.00 %  val loss 0.5500 acc 72.50 %  12.3 s");
        let without = EpochDone {
            val_loss: None,
            val_accuracy: None,
            train_accuracy: None,
            ..example_events::epoch_done(1)
        };
        assert_snapshot!(check(&Event::EpochDone(without.clone())), @"epoch 1/3  train loss 0.8000  12.3 s");
        let metrics = [("val/mae".to_owned(), 0.25), ("val/mse".to_owned(), 0.125)].into();
        let regression = EpochDone { val_loss: Some(0.5), metrics, ..without };
        assert_snapshot!(check(&Event::EpochDone(regression)),
            @"epoch 1/3  train loss 0.8000  val loss 0.5000 mae 0.2500 mse 0.1250  12.3 s");
    }

    #[test]
    fn an_evaluation_is_shown_unless_the_epochs_line_shows_it() {
        assert_snapshot!(check(&Event::Evaluated(example_events::evaluated(30))),
            @"step 30/50  val loss 0.5500 acc 72.50 %  (1000 samples)");
        let context = Context { steps_per_epoch: 20, total_steps: 50, time_left: None };
        for step in [40, 50] {
            let evaluated = Event::Evaluated(example_events::evaluated(step));
            assert_eq!(line(&evaluated, &context), None);
        }
    }

    #[test]
    fn the_weights_stand_beside_a_young_average() {
        let metrics =
            [("val_weights/loss".to_owned(), 0.25), ("val_weights/accuracy".to_owned(), 0.98)];
        let epoch = EpochDone { metrics: metrics.into(), ..example_events::epoch_done(2) };
        assert_snapshot!(check(&Event::EpochDone(epoch)),
            @"epoch 2/3  train loss 0.6000 acc 70.00 %  val loss 0.5500 acc 72.50 %  (weights: loss 0.2500 acc 98.00 %)  12.3 s");
    }

    #[test]
    fn metrics_stand_with_their_part_of_the_data() {
        let metrics = [("train/loss", 0.3), ("val/loss", 0.2), ("val/mse", 0.1)];
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
        let evaluated = Evaluated { metrics, ..example_events::evaluated(30) };
        assert_snapshot!(check(&Event::Evaluated(evaluated)),
            @"step 30/50  train loss 0.3000  val loss 0.2000 mse 0.1000  (1000 samples)");
        let metrics = [("test/mae".to_owned(), 0.4), ("test/loss".to_owned(), 0.5)].into();
        let tested = Evaluated { metrics, ..example_events::evaluated(20) };
        assert_snapshot!(check(&Event::Tested(tested)),
            @"test loss 0.5000 mae 0.4000  (weights of step 20, 1000 samples)");
    }

    #[test]
    fn a_forecast_is_compared_with_naive_ones() {
        let of = |mae| {
            let metrics = [("test/mae", mae), ("test/naive_mae", 0.5), ("test/naive_mse", 0.4)];
            let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
            check(&Event::Tested(Evaluated { metrics, ..example_events::evaluated(20) }))
        };
        let better = of(0.4);
        let lines: Vec<&str> = better.lines().collect();
        assert_eq!(lines[0], "test mae 0.4000  (weights of step 20, 1000 samples)");
        assert_eq!(lines[1..], ["without a model: naive_mae 0.5000 naive_mse 0.4000"]);
        assert!(of(0.6).lines().nth(2).unwrap().starts_with("warning: the forecast is worse than"));
    }

    #[test]
    fn saves_skips_warnings_and_failures_have_their_line() {
        let saved = Saved {
            step: 20,
            path: "checkpoints/shapes/r/step-00000020".into(),
            best: true,
            size: Bytes(46_758_048),
            seconds: 0.123,
            stall_seconds: 0.0042,
            replaced: 0,
            surplus: None,
        };
        assert_snapshot!(check(&Event::Saved(saved.clone())),
            @"saved step 20, best so far (44.59 MiB in 0.12 s, training blocked for 4.2 ms)");
        assert_snapshot!(check(&Event::Saved(Saved { replaced: 2, best: false, ..saved })),
            @"saved step 20 (44.59 MiB in 0.12 s, training blocked for 4.2 ms) (skipped 2 earlier saves: disk busy)");
        assert_snapshot!(check(&Event::StepSkipped { step: 7, loss_scale: Some(32768.0) }),
            @"step 7 skipped: a gradient is not finite; loss scale now 32768");
        assert_snapshot!(check(&Event::Warned { message: "`a\x1b[2J.png` is \nempty".into() }), @r"
        warning: `a\u{1b}[2J.png` is 
        empty
        ");
        let failed = Event::Failed { rank: Rank(1), step: 7, message: "out of memory".into() };
        assert_snapshot!(check(&failed), @"rank 1 failed at step 7: out of memory");
    }

    #[test]
    fn samples_that_cannot_be_read_are_counted_and_the_first_of_them_named() {
        let first = vec!["sample 3: cannot decode `a\u{1b}.png`: the file is empty".to_owned()];
        let found = Unreadable {
            split: "validation".into(),
            step: 20,
            epoch: 1,
            samples: 40,
            unreadable: 3,
            first,
        };
        assert_snapshot!(check(&Event::Unreadable(found.clone())), @r"
        warning: 3 of 40 validation samples cannot be read and were left out
          sample 3: cannot decode `a\u{1b}.png`: the file is empty
          and 2 more
        ");
        let training = Unreadable { split: "training".into(), first: vec![], ..found };
        assert_snapshot!(check(&Event::Unreadable(training)),
            @"warning: 3 of 40 training samples cannot be read and were replaced in epoch 1");
    }

    #[test]
    fn the_last_epoch_may_be_cut_short() {
        let context = Context { steps_per_epoch: 20, total_steps: 50, time_left: None };
        assert_eq!((context.epochs(), context.steps_of(1), context.steps_of(3)), (3, 20, 10));
        assert_eq!(context.steps_of(9), 0);
    }
}
