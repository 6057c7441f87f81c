//! The learning-rate range test (Smith 2017, section 3.3, <https://arxiv.org/abs/1506.01186>): one
//! run whose rate rises by the same factor at every step, its loss over the rate, and a rate to
//! begin with.
//!
//! Two rates are named: where the smoothed loss falls fastest (fastai's "steepest"), which is
//! suggested, and a tenth of where it is least (fastai's "minimum"). Rates are those of
//! `optimizer.lr`, before `lr_scaling`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use crate::config::sweep::change_of;
use crate::event::Event;
use crate::files::{self, RunLock, lock_holder};
use crate::launch::Signals;
use crate::record::text::short;
use crate::record::{self, EVENTS};
use crate::report::canvas::{Area, Canvas, Drawn, FAINT_INK};
use crate::report::picture::{self, Picture};
use crate::sweep::chart::{BLUE, Entry, Frame, GREY, ORANGE, Scale, legend, line};
use crate::sweep::folder::{prepared_folder, refuse_runs};
use crate::sweep::method::LrRange;
use crate::sweep::request::{Cause, Job, Outcome, SweepEnd, SweepRequest, Trainer};
use crate::sweep::results::{BEST, JSON};
use crate::sweep::{Error, journal};
use crate::transport::Waker;

/// Name of the table of the curve. A test that begins makes it, so that its folder is known as a
/// test's; until it has ended, it has no rows.
const CURVE: &str = "lr_range.csv";
/// Name of the picture of the curve.
const PICTURE: &str = "lr_range.png";
/// First line of the table.
const COLUMNS: &str = "lr,loss,smooth\n";
/// Share of the smoothed loss that stays at each step.
const SMOOTHING: f64 = 0.9;
/// Points skipped at the beginning, while the smoothing settles.
const SKIPPED_POINTS: usize = 5;

/// One step of the test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// `optimizer.lr` of the step.
    pub lr: f64,
    /// Loss of the step's batch.
    pub loss: f64,
    /// Exponential mean of the losses up to here.
    pub smooth: f64,
}

/// Result of a range test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeTestResult {
    /// Rate at which the smoothed loss falls fastest: a rate to begin with.
    pub suggested: Option<f64>,
    /// A tenth of the rate at which the smoothed loss is least.
    pub tenth_of_minimum: Option<f64>,
    /// All steps until the loss was not finite any more.
    pub points: Vec<Point>,
}

/// Changes that turn the base into a range test.
pub(crate) fn changes(range: &LrRange) -> Vec<String> {
    let gamma = (range.max / range.min).powf(1.0 / (range.steps - 1).max(1) as f64);
    let mut changes = vec![
        change_of("optimizer.lr", &range.min.into()),
        change_of("scheduler.gamma", &gamma.into()),
        format!("train.steps={}", range.steps),
    ];
    let fixed = [
        "scheduler.name=exponential",
        "scheduler.interval=step",
        "scheduler.warmup=never",
        "logging.every=1 step",
        "logging.sinks=[jsonl]",
        "validation.every=never",
        "checkpoint.every=never",
        "checkpoint.keep_best=0",
        "~checkpoint.monitor",
        "~checkpoint.mode",
        "~early_stopping.patience",
        "~expect",
        "~train.epochs",
        "~train.time",
    ];
    changes.extend(fixed.map(str::to_owned));
    changes
}

/// Runs the test and writes `lr_range.csv`, `sweep.json`, `lr_range.png` and `best.toml`, the base
/// with the rate that it suggests. A test is short: one that was interrupted begins again.
pub fn run(
    order: &SweepRequest<'_>,
    range: &LrRange,
    trainer: &dyn Trainer,
) -> Result<(SweepEnd, Option<RangeTestResult>), Error> {
    let mut all = order.sweep.changes.clone();
    all.extend(changes(range));
    all.push(format!("distributed.devices={}", order.sweep.search.devices_per_trial));
    if let Err(why) = trainer.check(&all) {
        return Err(Error::Refused { trials: vec![why] });
    }
    let folder = order.folder();
    refuse_trials(&folder)?;
    refuse_runs(&folder)?;
    let _lock: RunLock = prepared_folder(&folder)?;
    if !is_in(&folder) {
        files::write_atomic(&folder.join(CURVE), COLUMNS.as_bytes())?;
    }
    let folders = order.folders(1);
    let waker = Waker::new().map_err(Error::system("make a waker"))?;
    let events = folders.logs.join(EVENTS);
    let cores = order.machine.cores;
    let gpus = (0..order.machine.gpus).collect();
    let waker = Arc::new(waker);
    let is_pruned = AtomicBool::new(false);
    let job = Job { folders, changes: all, cores, gpus, resume: false, waker, is_pruned };
    let (outcome, interrupted) = trained(trainer, &job)?;
    trainer.report(&job);
    match outcome {
        Outcome::Stopped | Outcome::Lost => {
            return Ok((SweepEnd::Stopped { interrupted }, None));
        }
        // A rate at which the loss explodes is what the test looks for.
        Outcome::Done | Outcome::Failed { cause: Cause::Diverged, .. } => {}
        Outcome::Failed { error, .. } => return Err(Error::Refused { trials: vec![error] }),
    }
    let result = find(&steps(&events, range)?);
    write_results(order, &folder, &result)?;
    Ok((SweepEnd::Done { failed: 0 }, Some(result)))
}

/// Trains the test. Returns the outcome, and true if Ctrl-C came meanwhile.
fn trained(trainer: &dyn Trainer, job: &Job) -> Result<(Outcome, bool), Error> {
    let interruption = Signals::of_interruption();
    let mut interruption = interruption.map_err(Error::system("listen to signals"))?;
    let mut interrupted = false;
    let outcome = trainer.train(job, &mut |_| {
        interrupted |= interruption.take() > 0;
        // It may have come before there were ranks that could hear it.
        if interrupted {
            job.waker.wake();
        }
    });
    interrupted |= interruption.take() > 0;
    let outcome = if interrupted { outcome.when_stopping() } else { outcome };
    Ok((outcome, interrupted))
}

/// Refuses the folder of a sweep: its first trial and its results have the names of a test's.
fn refuse_trials(folder: &Path) -> Result<(), Error> {
    if journal::read(folder)?.is_none() {
        return Ok(());
    }
    let held = "the trials of a sweep";
    let asked = "a learning-rate range test";
    Err(Error::Occupied { folder: folder.to_owned(), held, asked })
}

/// Refuses the folder of a test to a sweep: the test's run has the name of the first trial.
pub(super) fn refuse(folder: &Path) -> Result<(), Error> {
    if !is_in(folder) {
        return Ok(());
    }
    let held = "a learning-rate range test";
    let asked = "a sweep";
    Err(Error::Occupied { folder: folder.to_owned(), held, asked })
}

/// Returns true for the folder of a range test, finished or not.
pub fn is_in(folder: &Path) -> bool {
    folder.join(CURVE).is_file()
}

/// Reads the result of the test in `folder`; `None` if none has finished.
pub fn read(folder: &Path) -> Option<RangeTestResult> {
    serde_json::from_slice(&files::read(&folder.join(JSON)).ok()?).ok()
}

/// Rate and loss of each step since the last fresh start.
fn steps(events: &Path, range: &LrRange) -> Result<Vec<(f64, f64)>, Error> {
    let log = record::read_events(events)?;
    let pairs: Vec<(f64, f64)> = log
        .effective()
        .into_iter()
        .filter_map(|stamped| match &stamped.event {
            Event::StepDone(done) => Some((done.lr, done.loss)),
            _ => None,
        })
        .collect();
    // The rates of the log are scaled by `lr_scaling`; the first is known unscaled.
    let scale = pairs.first().map_or(1.0, |(lr, _)| lr / range.min);
    Ok(pairs.into_iter().map(|(lr, loss)| (lr / scale, loss)).collect())
}

/// Finds the suggested rates from the steps of a test.
pub fn find(steps: &[(f64, f64)]) -> RangeTestResult {
    let mut points: Vec<Point> = Vec::new();
    let (mut mean, mut weight) = (0.0, 0.0);
    for &(lr, loss) in steps.iter().take_while(|(_, loss)| loss.is_finite()) {
        mean = SMOOTHING * mean + (1.0 - SMOOTHING) * loss;
        weight = SMOOTHING * weight + (1.0 - SMOOTHING);
        points.push(Point { lr, loss, smooth: mean / weight });
    }
    let settled = points.get(SKIPPED_POINTS..).unwrap_or_default();
    let least = settled.iter().min_by(|a, b| a.smooth.total_cmp(&b.smooth));
    let falling: Vec<&Point> = settled
        .iter()
        .take_while(|point| least.is_some_and(|least| point.lr <= least.lr))
        .collect();
    // All steps are equally far apart by ratio, so that differences stand for slopes; two steps
    // even out noise.
    let slope = |three: &[&Point]| three[2].smooth - three[0].smooth;
    let steepest = falling
        .windows(3)
        .min_by(|a, b| slope(a).total_cmp(&slope(b)))
        .filter(|three| slope(three) < 0.0)
        .map(|three| three[1].lr);
    let tenth = least.filter(|_| steepest.is_some()).map(|least| least.lr / 10.0);
    RangeTestResult { suggested: steepest, tenth_of_minimum: tenth, points }
}

fn write_results(
    order: &SweepRequest<'_>,
    folder: &Path,
    result: &RangeTestResult,
) -> Result<(), Error> {
    let row = |point: &Point| format!("{},{},{}\n", point.lr, point.loss, point.smooth);
    let rows: String = result.points.iter().map(row).collect();
    files::write_atomic(&folder.join(CURVE), format!("{COLUMNS}{rows}").as_bytes())?;
    let json =
        serde_json::to_vec_pretty(result).map_err(|reason| Error::Encode { what: JSON, reason })?;
    files::write_atomic(&folder.join(JSON), &json)?;
    picture::write(&Curve(result), folder, [PICTURE, "lr_range.svg"])?;
    if let Some(lr) = result.suggested {
        let mut experiment = order.base.experiment.clone();
        // Three digits: a curve of single batches does not say more.
        experiment.optimizer.lr = format!("{lr:.2e}").parse().unwrap_or(lr);
        let head = format!(
            "# The learning-rate range test of `{}` suggests this `optimizer.lr`.\n",
            order.sweep.name
        );
        if let Ok(text) = crate::config::resolved(&experiment) {
            files::write_atomic(&folder.join(BEST), (head + &text).as_bytes())?;
        }
    }
    Ok(())
}

/// The result in words.
pub fn words(result: &RangeTestResult) -> String {
    let points = &result.points;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return "the loss was not finite at the first step\n".to_owned();
    };
    let mut text =
        format!("{} steps from {} to {}\n", points.len(), short(first.lr), short(last.lr));
    match (result.suggested, result.tenth_of_minimum) {
        (Some(lr), Some(tenth)) => {
            text += &format!(
                "suggested optimizer.lr {}, where the loss falls fastest\n\
                 a tenth of the rate of the lowest loss: {}\n",
                short(lr),
                short(tenth)
            );
        }
        _ => text += "the loss never falls: start at a lower rate, or take more steps\n",
    }
    text
}

/// Status of the test in `folder`, for the terminal.
pub fn page(folder: &Path) -> String {
    let head = format!("`{}` holds a learning-rate range test, ", folder.display());
    if let Some(holder) = lock_holder(folder) {
        return format!("{head}running as {holder}\n");
    }
    let Some(result) = read(folder) else {
        return format!("{head}which has not ended: its command begins it again\n");
    };
    format!("{head}which is one run\n{}{}\n", words(&result), files_of(folder, &result))
}

/// The line that names the files of a test.
pub fn files_of(folder: &Path, result: &RangeTestResult) -> String {
    let best = result.suggested.map_or(String::new(), |_| format!("{BEST}, "));
    format!("{best}{PICTURE}, {CURVE} and {JSON} are in `{}`", folder.display())
}

struct Curve<'a>(&'a RangeTestResult);

impl Picture for Curve<'_> {
    fn size(&self) -> (u32, u32) {
        (900, 480)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, canvas: Canvas) -> Drawn<DB> {
        let points = &self.0.points;
        let ends = points.first().zip(points.last());
        let Some((first, last)) = ends.filter(|(first, last)| first.lr < last.lr) else {
            return Ok(());
        };
        let x = Scale::of_logarithms(first.lr.ln(), last.lr.ln());
        let y = self.losses();
        let frame = Frame { left: 90.0, top: 76.0, width: 780.0, height: 324.0, x: &x, y: &y };
        frame.draw(area, canvas, "training loss", "optimizer.lr")?;
        let through = |value: fn(&Point) -> f64| {
            points.iter().map(|point| frame.at(point.lr.ln(), value(point))).collect::<Vec<_>>()
        };
        line(area, canvas, through(|point| point.loss), canvas.line(GREY, 1.0))?;
        line(area, canvas, through(|point| point.smooth), canvas.line(BLUE, 2.6))?;
        let mut entries =
            vec![Entry::line("loss of each step", GREY), Entry::line("smoothed", BLUE)];
        let marks = [
            ("suggested", self.0.suggested, ORANGE),
            ("minimum / 10", self.0.tenth_of_minimum, FAINT_INK),
        ];
        let marks = marks.into_iter().filter_map(|(name, lr, color)| Some((name, lr?, color)));
        for (name, lr, color) in marks {
            let ends = [frame.at(lr.ln(), y.low), frame.at(lr.ln(), y.high)];
            line(area, canvas, ends, canvas.line(color, 2.0))?;
            entries.push(Entry::line(format!("{name}: {lr:.2e}"), color));
        }
        // Above the frame, where no line passes.
        legend(area, canvas, (frame.left, 28.0), &entries)
    }
}

impl Curve<'_> {
    /// The axis of all losses, from the least of single steps to the highest of the smoothed ones.
    fn losses(&self) -> Scale {
        let points = &self.0.points;
        // Where the loss explodes it says nothing more: four times the first is enough to see it.
        let most = 4.0 * points.first().map_or(0.0, |first| first.smooth.abs()).max(1e-9);
        let smooth: Vec<f64> = points.iter().map(|point| point.smooth.min(most)).collect();
        let top = smooth.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let single = points.iter().map(|point| point.loss.min(top));
        Scale::of(single.chain(smooth.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::example_sweeps::{SweepFixture, subject};
    use crate::sweep::journal::Journal;
    use crate::sweep::trial::Length;
    use crate::user_error::UserError;

    /// Nothing is to be trained.
    struct Idle;

    impl Trainer for Idle {
        fn check(&self, _: &[String]) -> Result<Length, String> {
            Ok(Length { steps_per_epoch: 1, total_steps: 100 })
        }

        fn train(&self, _: &Job, _: &mut dyn FnMut(u64)) -> Outcome {
            panic!("the first trial would be trained over")
        }
    }

    #[test]
    fn the_folder_of_a_sweep_with_trials_is_refused() {
        let lab = SweepFixture::new("lr_range", 1);
        let folder = lab.folder.path().join("s");
        files::create_folder(&folder).unwrap();
        let mut of_trials = subject();
        of_trials.search["method"] = "tpe".into();
        Journal::open(&folder).unwrap().opened(&of_trials).unwrap();
        let error = run(&lab.order(), &LrRange::default(), &Idle).err().unwrap();
        assert!(error.is_refusal() && error.help().unwrap().contains("another `sweep.name`"));
        let words = error.to_string();
        assert!(words.contains("s` holds the trials of a sweep: a learning-rate"), "{words}");
    }

    #[test]
    fn the_folder_of_a_test_is_refused_to_a_sweep_also_before_the_test_has_ended() {
        let lab = SweepFixture::new("random", 1);
        let folder = lab.folder.path().join("s");
        files::create_folder(&folder).unwrap();
        files::write_atomic(&folder.join(CURVE), COLUMNS.as_bytes()).unwrap();
        let words = page(&folder);
        assert!(words.ends_with("which has not ended: its command begins it again\n"), "{words}");
        let error = crate::sweep::run(lab.order(), &Idle).err().unwrap();
        assert!(error.is_refusal() && error.help().unwrap().contains("another `sweep.name`"));
        assert!(error.to_string().contains("holds a learning-rate range test: a sweep would"));
    }

    #[test]
    fn what_a_test_found_is_read_and_told_by_its_folder() {
        let lab = SweepFixture::new("lr_range", 1);
        let (folder, result) = (lab.folder.path(), find(&curve()));
        write_results(&lab.order(), folder, &result).unwrap();
        assert_eq!(read(folder).unwrap().points.len(), result.points.len());
        let words = page(folder);
        assert!(
            words.contains("suggested optimizer.lr") && words.contains("lr_range.png"),
            "{words}"
        );
    }

    /// A loss that falls from 1e-4 on, is least at 1e-1, and explodes.
    fn curve() -> Vec<(f64, f64)> {
        (0..120)
            .map(|step| {
                let exponent = -6.0 + 0.06 * f64::from(step);
                let fall = 1.0 / (1.0 + (-(exponent + 2.5) * 3.0).exp());
                let rise = ((exponent + 0.5) * 6.0).exp();
                (10f64.powf(exponent), 2.3 - 1.5 * fall + rise)
            })
            .collect()
    }

    #[test]
    fn the_rate_of_the_steepest_fall_is_suggested() {
        let result = find(&curve());
        let exponent = result.suggested.unwrap().log10();
        // The smoothing lags behind by some steps of 0.06 decades.
        assert!((-2.6..-1.7).contains(&exponent), "{exponent}");
        let tenth = result.tenth_of_minimum.unwrap().log10();
        assert!((-2.3..-1.5).contains(&tenth), "{tenth}");
        assert!(words(&result).contains("suggested optimizer.lr"));
    }

    #[test]
    fn a_loss_that_is_not_finite_ends_the_curve_and_one_that_only_rises_suggests_nothing() {
        let mut steps = curve();
        steps[80].1 = f64::NAN;
        assert_eq!(find(&steps).points.len(), 80);
        let rising: Vec<(f64, f64)> = (1..50).map(|n| (f64::from(n), f64::from(n))).collect();
        assert_eq!((find(&rising).suggested, find(&[]).suggested), (None, None));
        assert!(words(&find(&rising)).contains("never falls"));
        assert!(words(&find(&[])).contains("not finite"));
    }

    #[test]
    fn rates_rise_by_one_factor_to_the_last() {
        let range = LrRange { min: 1e-5, max: 1e-1, steps: 5 };
        let changes = changes(&range);
        let gamma = changes.iter().find_map(|change| change.strip_prefix("scheduler.gamma="));
        let gamma: f64 = gamma.unwrap().parse().unwrap();
        assert!((gamma - 10.0).abs() < 1e-9, "{gamma}");
    }

    #[test]
    fn the_axis_holds_the_least_loss_of_a_step() {
        let mut steps = curve();
        steps[60].1 = -1.0;
        let result = find(&steps);
        let scale = Curve(&result).losses();
        assert!(scale.low <= -1.0 && scale.high > 2.3, "{scale:?}");
    }

    #[test]
    fn the_curve_is_drawn_with_its_suggestion() {
        let svg = picture::draw_svg(&Curve(&find(&curve())), "lr_range.svg").unwrap();
        for words in ["training loss", "optimizer.lr", "suggested: ", "minimum / 10: ", "smoothed"]
        {
            assert!(svg.contains(words), "`{words}` is missing");
        }
    }
}
