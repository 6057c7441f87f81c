//! Terminal output of a running sweep: a bar for each running trial and one for all of them, or
//! plain lines. The scheduling thread draws them, so nothing here waits for a terminal: output that
//! it does not take now is dropped.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::config::schema::Mode;
use crate::config::sweep::Sweep;
use crate::record::text::{duration, escape, hyperparameter, metric, short};
use crate::record::{Screen, canvas, takes_words};
use crate::sweep::ranking::{Ranking, best};
use crate::sweep::repeats::reached;
use crate::sweep::trial::{Report, State, Trial};

const BAR: &str = "{prefix} {bar:24} {pos}/{len}  {wide_msg}";

/// The terminal of a sweep.
pub(crate) struct View {
    screen: Screen,
    metric: String,
    goal: Mode,
    ranking: Ranking,
    total: usize,
    /// Number of concurrent trials as last printed.
    concurrent: usize,
    began: Instant,
    /// Number of trials that had ended before this process began.
    before: usize,
    /// Number of trials whose end was printed, and those before: a pruned one ends with its ranks.
    done: usize,
    bars: MultiProgress,
    sum: ProgressBar,
    running: Vec<(u32, ProgressBar)>,
}

impl View {
    pub(crate) fn new(screen: Screen, sweep: &Sweep, ranking: Ranking, total: usize) -> Self {
        let target = match screen {
            Screen::Bar => canvas(),
            Screen::Plain | Screen::Silent => ProgressDrawTarget::hidden(),
        };
        let bars = MultiProgress::with_draw_target(target);
        let sum = bars.add(bar(total as u64));
        Self {
            screen,
            metric: sweep.search.metric.clone(),
            goal: sweep.search.goal,
            ranking,
            total,
            concurrent: 1,
            began: Instant::now(),
            before: 0,
            done: 0,
            bars,
            sum,
            running: Vec::new(),
        }
    }

    /// Prints the first lines; `open` describes trials that have started and not ended.
    pub(crate) fn opened(
        &mut self,
        folder: &Path,
        concurrent: usize,
        trials: &[Trial],
        n_retried: usize,
        open: &str,
    ) {
        (self.concurrent, self.before) = (concurrent, n_done(trials));
        self.done = self.before;
        let goal = if self.goal == Mode::Max { "maximizing" } else { "minimizing" };
        let noun = if self.total == 1 { "trial" } else { "trials" };
        let mut text = format!(
            "sweep `{}`: {} {noun} {goal} {}, {concurrent} concurrent",
            folder.display(),
            self.total,
            self.metric
        );
        if !trials.is_empty() {
            let n_open = trials.len() - self.before - n_retried;
            text += &format!("; {} done, {n_open} {open}", self.before);
        }
        if n_retried > 0 {
            text += &format!(", {n_retried} failed and retried");
        }
        self.say(&text);
        self.update(trials);
    }

    /// Adds a running trial; `how` is "started", "resumed" ...
    pub(crate) fn started(&mut self, trial: &Trial, how: &str) {
        let values = values_of(trial);
        self.say(&format!("trial {} {how}: {values}", trial.number));
        let bar = self.bars.insert_before(&self.sum, bar(trial.length.total_steps));
        bar.set_prefix(format!("trial {:>4}", trial.number));
        bar.set_message(values);
        self.running.push((trial.number, bar));
    }

    pub(crate) fn step(&self, number: u32, step: u64) {
        if let Some(bar) = self.bar(number) {
            bar.set_position(step);
        }
    }

    pub(crate) fn reported(&self, number: u32, report: &Report) {
        if let Some(bar) = self.bar(number) {
            bar.set_message(format!("{} {}", self.metric, self.shown(report.value)));
        }
    }

    /// A trial was stopped by a signal; a second Ctrl-C does not leave it the time to save.
    pub(crate) fn interrupted(&mut self, trial: &Trial) {
        self.remove(trial.number);
        self.say(&format!(
            "trial {} interrupted; it resumes from its newest checkpoint",
            trial.number
        ));
    }

    /// The worker of a trial is gone, or leaves.
    pub(crate) fn lost(&mut self, trial: &Trial) {
        self.remove(trial.number);
        self.say(&format!("trial {} has lost its worker; another one resumes it", trial.number));
    }

    /// Prints the number of concurrent trials if it has changed.
    pub(crate) fn has_capacity(&mut self, concurrent: usize) {
        if concurrent != self.concurrent {
            self.concurrent = concurrent;
            self.say(&format!("{concurrent} concurrent trials now"));
        }
    }

    pub(crate) fn ended(&mut self, number: u32, trials: &[Trial]) {
        self.remove(number);
        self.done += 1;
        if let Some(trial) = trials.iter().find(|trial| trial.number == number) {
            self.say(&self.line(trial, trials));
        }
        self.update(trials);
    }

    pub(crate) fn close(&mut self) {
        self.running.drain(..).for_each(|(_, bar)| bar.finish_and_clear());
        self.sum.finish_and_clear();
    }

    /// The outcome of a trial, and the best trial so far.
    fn line(&self, trial: &Trial, trials: &[Trial]) -> String {
        let time = duration(trial.seconds);
        let value = self.shown(trial.value(self.goal));
        let what = match trial.state {
            State::Finished => format!("{} {value} in {time}", self.metric),
            State::Pruned => {
                let value = self.shown(trial.reports.last().and_then(|report| report.value));
                format!("pruned after {}: {} {value}, in {time}", self.spent(trial), self.metric)
            }
            State::Diverged => format!("diverged after {time}"),
            State::Running => "is running".to_owned(),
            State::Failed => {
                let error = trial.error.as_deref().unwrap_or("unknown reason");
                format!("failed: {error}")
            }
        };
        let best = match best(trials, self.goal) {
            Some(best) if best.number == trial.number => "  best so far".to_owned(),
            Some(best) => format!("  (best {}, trial {})", self.reached(best, trials), best.number),
            None => String::new(),
        };
        format!("trial {} {what}{best}  [{} of {}]", trial.number, self.done, self.total)
    }

    fn update(&self, trials: &[Trial]) {
        let done = self.done;
        self.sum.set_position(done as u64);
        self.sum.set_prefix("all trials");
        let mut message = match best(trials, self.goal) {
            Some(best) => {
                let value = self.reached(best, trials);
                format!("best {} {value} (trial {})", self.metric, best.number)
            }
            None => String::new(),
        };
        if let Some(left) = self.time_left(done) {
            message += &format!("  ETA {}", duration(left.as_secs_f64()));
        }
        self.sum.set_message(message);
    }

    /// Time left if the remaining trials take as long as those of this process.
    fn time_left(&self, done: usize) -> Option<Duration> {
        let here = done.checked_sub(self.before).filter(|here| *here > 0)?;
        let left = self.total.saturating_sub(done);
        Some(self.began.elapsed().mul_f64(left as f64 / here as f64))
    }

    /// `1 epoch`, `2.5 epochs`, `500 steps`
    fn spent(&self, trial: &Trial) -> String {
        let spent = self.ranking.spent(trial);
        let unit = self.ranking.unit_name();
        let unit = if spent == 1.0 { unit.trim_end_matches('s') } else { unit };
        format!("{} {unit}", short(spent))
    }

    fn shown(&self, value: Option<f64>) -> String {
        value.map_or_else(|| "not finite".to_owned(), |value| metric(&self.metric, value))
    }

    fn reached(&self, trial: &Trial, trials: &[Trial]) -> String {
        reached(trial, trials, self.goal, &self.metric)
    }

    fn bar(&self, number: u32) -> Option<&ProgressBar> {
        self.running.iter().find(|(known, _)| *known == number).map(|(_, bar)| bar)
    }

    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(index) = self.running.iter().position(|(known, _)| *known == number) {
            let (_, bar) = self.running.remove(index);
            bar.finish_and_clear();
            self.bars.remove(&bar);
        }
    }

    /// A line above the bars.
    pub(crate) fn say(&self, text: &str) {
        let text = escape(text);
        match self.screen {
            // The bars are drawn again below.
            Screen::Bar if takes_words() => self.bars.suspend(|| self.screen.say(&text)),
            Screen::Bar => {}
            Screen::Plain | Screen::Silent => self.screen.say(&text),
        }
    }
}

fn n_done(trials: &[Trial]) -> usize {
    trials.iter().filter(|trial| trial.state != State::Running).count()
}

/// The values of a trial, numbers with four digits.
pub fn values_of(trial: &Trial) -> String {
    let words = trial.values.iter().map(|(key, value)| format!("{key}={}", hyperparameter(value)));
    words.collect::<Vec<String>>().join(" ")
}

fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR);
    let bar = ProgressBar::new(length);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸ "));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::example_sweeps::{SweepFixture, trial};

    #[test]
    fn a_trial_that_is_given_up_counts_when_its_ranks_have_ended() {
        let lab = SweepFixture::new("random", 2);
        let ranking = Ranking::plain(Mode::Min);
        let mut view = View::new(Screen::Silent, &lab.sweep, ranking, 2);
        view.opened(lab.folder.path(), 2, &[], 0, "interrupted");
        let trials = [trial(1, State::Pruned, &[0.5]), trial(2, State::Finished, &[0.25])];
        // The first was given up before the second ended, and its ranks leave after it.
        let mut lines = Vec::new();
        for number in [2, 1] {
            view.ended(number, &trials);
            lines.push(view.line(&trials[number as usize - 1], &trials));
        }
        assert!(lines[0].ends_with("[1 of 2]") && lines[1].ends_with("[2 of 2]"), "{lines:?}");
    }

    #[test]
    fn the_template_of_the_bars_is_valid() {
        assert!(ProgressStyle::with_template(BAR).is_ok());
    }
}
