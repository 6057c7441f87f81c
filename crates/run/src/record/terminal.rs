//! Events on stderr: a bar with lines above it on a terminal, plain lines elsewhere. Nothing that
//! happens to the terminal, not even its end, disturbs the training.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::event_line::{Context, line, step_numbers};
use super::stderr::{canvas, erase_bars, say, say_above_bars, takes_words};
use super::text::{self, duration, time_left};
use crate::event::{Event, Started, StepDone};
use crate::launch::rank_env;
use crate::terminal::escape;

/// Two lines, so that neither is cut at 80 columns.
const BAR: &str = "{prefix} {wide_bar} {pos}/{len}\n{msg}";

/// Style of the output on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// A bar, and lines above it.
    Bar,
    /// Lines only, without escape codes.
    Plain,
    /// Nothing.
    Silent,
}

impl Screen {
    /// A bar if stderr is a terminal that can move its cursor and `NO_COLOR`, given here, is unset
    /// or empty (<https://no-color.org>).
    pub fn detect(no_color: Option<&str>) -> Self {
        let is_wanted = no_color.is_none_or(str::is_empty);
        // A terminal without cursor movement (`TERM=dumb`) counts as hidden.
        let is_able = std::io::stderr().is_terminal() && !ProgressDrawTarget::stderr().is_hidden();
        if is_wanted && is_able { Self::Bar } else { Self::Plain }
    }

    /// Prints `text` above the bars of this process or another.
    pub(crate) fn say(self, text: &str) {
        match self {
            Self::Bar => say_above_bars(text),
            Self::Plain => say(text),
            Self::Silent => {}
        }
    }

    /// Removes the bars of a process that is gone.
    pub(crate) fn erase_bars(self) {
        if self == Self::Bar {
            erase_bars();
        }
    }
}

/// The style of this process's output on stderr.
pub fn screen() -> Screen {
    Screen::detect(rank_env::no_color().as_deref())
}

/// Prints text for a person, unless that would block this process.
pub fn to_stderr(text: &str) {
    screen().say(&escape(text));
}

/// A progress bar on stderr in the form `line`, if a person watches.
pub fn progress_bar(line: &str) -> ProgressBar {
    if screen() != Screen::Bar {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, canvas());
    if let Ok(style) = ProgressStyle::with_template(line) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

/// The terminal of rank 0.
pub(crate) struct Terminal {
    screen: Screen,
    bar: ProgressBar,
    context: Context,
    pace: StepRate,
    /// True once a recorded step has put its numbers beside the bar.
    has_numbers: bool,
}

impl Terminal {
    pub(crate) fn new(screen: Screen) -> Self {
        let bar = ProgressBar::hidden();
        let pace = StepRate::from(0, Instant::now());
        Self { screen, bar, context: Context::default(), pace, has_numbers: false }
    }

    /// Shows an event. Returns its text for the log of rank 0.
    pub(crate) fn show(&mut self, event: &Event) -> Option<String> {
        self.prepare(event);
        let text = line(event, &self.context);
        match (event, &text) {
            (Event::StepDone(done), _) if self.screen == Screen::Bar => self.update(done),
            (_, Some(text)) => self.print(text),
            _ => {}
        }
        if let (Event::Started(started), Screen::Bar) = (event, self.screen) {
            self.bar = new_bar(started, &self.context);
            if takes_words() {
                self.bar.tick();
            }
        }
        text
    }

    /// Writes lines above the bar.
    pub(crate) fn print(&self, text: &str) {
        match self.screen {
            // The bar is drawn again below them.
            Screen::Bar if takes_words() => self.bar.suspend(|| self.screen.say(text)),
            Screen::Bar => {}
            Screen::Plain | Screen::Silent => self.screen.say(text),
        }
    }

    /// Moves the bar to a step that is not recorded, of this loss.
    pub(crate) fn advance(&mut self, step: u64, loss: f64) {
        self.count(step);
        if self.screen == Screen::Bar && takes_words() {
            if !self.has_numbers && loss.is_finite() {
                self.bar.set_message(format!("loss {}", text::loss(loss)));
            }
            self.move_bar(step);
        }
    }

    /// Shows the progress of an evaluation in place of the steps, until the next step.
    pub(crate) fn evaluating(&mut self, what: &str, done: u64, batches: u64) {
        if self.screen == Screen::Bar && takes_words() {
            self.bar.set_length(batches);
            self.bar.set_prefix(what.to_owned());
            self.bar.set_position(done);
        }
    }

    /// Removes the bar.
    pub(crate) fn close(&mut self) {
        if takes_words() {
            self.bar.finish_and_clear();
        }
        self.bar = ProgressBar::hidden();
    }

    fn prepare(&mut self, event: &Event) {
        match event {
            Event::Started(started) => {
                self.context = Context::of(started);
                self.pace = StepRate::from(started.resumed_from, Instant::now());
            }
            Event::StepDone(done) => self.count(done.step),
            Event::StepSkipped { step, .. } => self.advance(*step, f64::NAN),
            Event::Finished(_) | Event::Failed { .. } => self.close(),
            _ => {}
        }
    }

    fn count(&mut self, step: u64) {
        self.pace.count(step, Instant::now());
        let remaining = self.context.total_steps.saturating_sub(step);
        let is_bounded = self.context.is_bounded();
        let pace = if is_bounded { self.pace.seconds_per_step() } else { None };
        self.context.time_left = time_left(pace, remaining);
    }

    fn update(&mut self, done: &StepDone) {
        self.has_numbers = true;
        if takes_words() {
            self.bar.set_message(step_numbers(done));
            self.move_bar(done.step);
        }
    }

    fn move_bar(&self, step: u64) {
        let (epoch, position) = self.context.place_of(step);
        self.bar.set_length(self.context.steps_of(epoch));
        self.bar.set_prefix(prefix(epoch, &self.context));
        self.bar.set_position(position);
    }
}

/// Exponentially fading mean of the time per step, pauses between steps included.
struct StepRate {
    /// The newest step, and when it was done.
    last: (u64, Instant),
    /// Both with weights that fade.
    seconds: f64,
    steps: f64,
}

impl StepRate {
    /// Time after which the weight of a step has fallen to 1/e.
    const MEMORY: Duration = Duration::from_mins(2);

    fn from(step: u64, now: Instant) -> Self {
        Self { last: (step, now), seconds: 0.0, steps: 0.0 }
    }

    fn count(&mut self, step: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.last.1).as_secs_f64();
        let fade = (-passed / Self::MEMORY.as_secs_f64()).exp();
        self.seconds = self.seconds * fade + passed;
        self.steps = self.steps * fade + step.saturating_sub(self.last.0) as f64;
        self.last = (step, now);
    }

    /// `None` before the first step.
    fn seconds_per_step(&self) -> Option<f64> {
        (self.steps > 0.0).then(|| self.seconds / self.steps)
    }
}

/// The epoch, and the time that the whole run still takes.
fn prefix(epoch: u64, context: &Context) -> String {
    let left = context.time_left.map(|left| format!("  ETA {}", duration(left.as_secs_f64())));
    context.epoch(epoch) + &left.unwrap_or_default()
}

fn new_bar(started: &Started, context: &Context) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
    let (epoch, position) = context.place_of(started.resumed_from + 1);
    let bar = ProgressBar::with_draw_target(Some(context.steps_of(epoch)), canvas());
    bar.set_style(style.progress_chars("━╸ "));
    bar.set_prefix(prefix(epoch, context));
    bar.set_position(position - 1);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example_events;

    #[test]
    fn the_template_of_the_bar_is_valid() {
        assert!(ProgressStyle::with_template(BAR).is_ok());
    }

    #[test]
    fn no_color_means_plain_lines() {
        assert_eq!(Screen::detect(Some("1")), Screen::Plain);
    }

    #[test]
    fn a_step_of_a_resumed_run_has_an_eta_from_its_own_steps() {
        let mut terminal = Terminal::new(Screen::Silent);
        terminal.show(&Event::Started(example_events::started(30)));
        assert!(terminal.context.time_left.is_none());
        let line = terminal.show(&Event::StepDone(example_events::step_done(40))).unwrap();
        assert!(line.starts_with("epoch 2/3  step 40/50  "), "{line}");
        assert!(line.ends_with("  ETA 0.00 s"), "{line}");
        terminal.show(&Event::StepDone(example_events::step_done(50)));
        assert_eq!(prefix(3, &terminal.context), "epoch 3/3");
    }

    #[test]
    fn the_bar_and_the_time_left_move_with_each_step() {
        let mut terminal = Terminal::new(Screen::Bar);
        terminal.show(&Event::Started(example_events::started(0)));
        terminal.bar.set_draw_target(ProgressDrawTarget::hidden());
        terminal.advance(1, 2.5);
        assert_eq!((terminal.bar.position(), terminal.bar.message()), (1, "loss 2.5000".into()));
        assert!(terminal.bar.prefix().starts_with("epoch 1/3  ETA "), "{}", terminal.bar.prefix());
        terminal.show(&Event::StepDone(example_events::step_done(2)));
        terminal.advance(21, 2.5);
        assert_eq!((terminal.bar.position(), terminal.bar.length()), (1, Some(20)));
        assert!(terminal.bar.prefix().starts_with("epoch 2/3"), "{}", terminal.bar.prefix());
        assert!(terminal.bar.message().starts_with("loss 0.5000  accuracy"), "the recorded step's");
        terminal.evaluating("validation", 3, 7);
        let bar = (terminal.bar.position(), terminal.bar.length(), terminal.bar.prefix());
        assert_eq!(bar, (3, Some(7), "validation".into()));
        terminal.advance(45, 2.5);
        assert!(terminal.bar.prefix().starts_with("epoch 3/3"), "{}", terminal.bar.prefix());
        assert_eq!((terminal.bar.position(), terminal.bar.length()), (5, Some(10)));
    }

    #[test]
    fn the_pace_follows_the_newest_steps() {
        let start = Instant::now();
        let mut pace = StepRate::from(100, start);
        assert_eq!(pace.seconds_per_step(), None);
        let slow = |step: u64| start + Duration::from_secs(10 * (step - 100));
        (101..=110).for_each(|step| pace.count(step, slow(step)));
        assert!((pace.seconds_per_step().unwrap() - 10.0).abs() < 1e-9);
        let fast = |step: u64| slow(110) + Duration::from_secs(step - 110);
        (111..=700).for_each(|step| pace.count(step, fast(step)));
        assert!(
            (pace.seconds_per_step().unwrap() - 1.0).abs() < 0.1,
            "the slow ones are forgotten"
        );
    }
}
