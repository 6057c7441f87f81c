//! Events -> stderr: a bar with lines above it where a person watches, plain lines where a file does.
//! Nothing that happens to the terminal, not even its end, disturbs the training.

use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::line::{Context, line, step_numbers};
use super::stderr::{say, takes_words};
use super::text::{duration, time_left};
use crate::event::{Event, Started, StepDone};

/// Two lines, so that neither is cut at 80 columns.
const BAR: &str = "{prefix} {wide_bar} {pos}/{len}\n{msg}";

/// How the terminal is written.
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
    /// A bar if stderr is a terminal that can move its cursor and `NO_COLOR`, given here, is unset or
    /// empty (<https://no-color.org>).
    pub fn detect(no_color: Option<&str>) -> Self {
        let is_wanted = no_color.is_none_or(str::is_empty);
        // A terminal without cursor movement (`TERM=dumb`) counts as hidden.
        let is_able = std::io::stderr().is_terminal() && !ProgressDrawTarget::stderr().is_hidden();
        if is_wanted && is_able { Self::Bar } else { Self::Plain }
    }
}

/// The terminal of rank 0.
pub(crate) struct Terminal {
    screen: Screen,
    bar: ProgressBar,
    context: Context,
    /// When this process's part of the run began, and after which step.
    start: (Instant, u64),
}

impl Terminal {
    pub(crate) fn new(screen: Screen) -> Self {
        let bar = ProgressBar::hidden();
        Self { screen, bar, context: Context::default(), start: (Instant::now(), 0) }
    }

    /// Shows what an event says, and gives it back as text for the log of rank 0.
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
        }
        text
    }

    /// Writes lines above the bar.
    pub(crate) fn print(&self, text: &str) {
        match self.screen {
            // The bar is drawn again below them.
            Screen::Bar if takes_words() => self.bar.suspend(|| say(text)),
            Screen::Plain => say(text),
            Screen::Bar | Screen::Silent => {}
        }
    }

    /// Moves the bar to a step that is not recorded.
    pub(crate) fn advance(&self, step_in_epoch: u64) {
        if takes_words() {
            self.bar.set_position(step_in_epoch);
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
                self.start = (Instant::now(), started.resumed_from);
            }
            Event::StepDone(done) => {
                let finished = done.step.saturating_sub(self.start.1);
                let remaining = self.context.total_steps.saturating_sub(done.step);
                self.context.time_left = time_left(self.start.0.elapsed(), finished, remaining);
            }
            Event::Finished(_) | Event::Failed { .. } => self.close(),
            _ => {}
        }
    }

    fn update(&self, done: &StepDone) {
        if !takes_words() {
            return;
        }
        self.bar.set_prefix(prefix(done.epoch, &self.context));
        self.bar.set_length(self.context.steps_of(done.epoch));
        self.bar.set_message(step_numbers(done));
        self.bar.set_position(done.step_in_epoch);
    }
}

/// The epoch, and the time that the whole run still takes.
fn prefix(epoch: u64, context: &Context) -> String {
    let left = context.time_left.map(|left| format!("  ETA {}", duration(left.as_secs_f64())));
    format!("epoch {epoch}/{}{}", context.epochs(), left.unwrap_or_default())
}

fn new_bar(started: &Started, context: &Context) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
    let per_epoch = started.steps_per_epoch.max(1);
    let epoch = started.resumed_from / per_epoch + 1;
    let bar =
        ProgressBar::with_draw_target(Some(context.steps_of(epoch)), ProgressDrawTarget::stderr());
    bar.set_style(style.progress_chars("━╸ "));
    bar.set_prefix(prefix(epoch, context));
    bar.set_position(started.resumed_from % per_epoch);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::examples;

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
        terminal.show(&Event::Started(examples::started(30)));
        assert!(terminal.context.time_left.is_none());
        let line = terminal.show(&Event::StepDone(examples::step_done(40))).unwrap();
        assert!(line.starts_with("epoch 2/3  step 40/50  "), "{line}");
        assert!(line.ends_with("  ETA 0.00 s"), "{line}");
        terminal.show(&Event::StepDone(examples::step_done(50)));
        assert_eq!(prefix(3, &terminal.context), "epoch 3/3");
    }
}
