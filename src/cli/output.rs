//! What goes to stdout, and what to stderr.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::refusal::Refusal;
use crate::launch::exit_code as exit;
use crate::record::{Screen, canvas};
use crate::terminal::escape;

/// Data goes to stdout; a reader that has seen enough (`| head`) is no failure.
pub(crate) fn to_stdout(text: &str) -> Result<u8, Refusal> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Refusal::of(exit::STORAGE, &error, None))
        }
        _ => Ok(0),
    }
}

/// Everything that is not data goes to stderr, unless that would hold us up.
pub(crate) fn to_stderr(text: &str) {
    screen().say(&escape(text));
}

/// How this process writes to stderr.
pub(crate) fn screen() -> Screen {
    let no_color = std::env::var_os("NO_COLOR").map(|value| value.to_string_lossy().into_owned());
    Screen::detect(no_color.as_deref())
}

/// A bar on stderr, written as `line`, where a person watches.
pub(crate) fn progress_bar(line: &str) -> ProgressBar {
    if screen() != Screen::Bar {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, canvas());
    if let Ok(style) = ProgressStyle::with_template(line) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

/// Says why this process ends, to a reader who may take all the time there is.
pub(crate) fn last_words(text: &str) {
    // There is no way to tell the user if stderr is closed.
    drop(writeln!(io::stderr(), "{text}"));
}
