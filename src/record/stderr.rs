//! Words for a person: on stderr as long as somebody takes them. A pipe that nobody reads, a terminal that is held
//! (Ctrl-S) or gone must not hold up the training: what cannot be written now is left out. The logs have it.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

/// Most bytes that a pipe which takes any takes at once.
const PIECE: usize = 4096;
/// Longest wait for a reader who is merely slow, once.
const PATIENCE: Duration = Duration::from_millis(200);

/// Whether the last words were not taken.
static IS_BLOCKED: AtomicBool = AtomicBool::new(false);

/// Writes `text` and a line feed, or as much of it as is taken without waiting for longer than a moment.
pub(crate) fn say(text: &str) {
    let line = format!("{text}\n");
    for piece in line.as_bytes().chunks(PIECE) {
        if !takes_words() {
            return;
        }
        // A terminal that is gone is no reason to stop.
        let _ = std::io::stderr().lock().write_all(piece);
    }
}

/// Whether stderr takes words now. Waits for them a moment, but not again and again.
pub(crate) fn takes_words() -> bool {
    let was_blocked = IS_BLOCKED.load(Ordering::Relaxed);
    let takes = is_ready(if was_blocked { Duration::ZERO } else { PATIENCE });
    IS_BLOCKED.store(!takes, Ordering::Relaxed);
    takes
}

/// Whether a write would not wait: there is room, or an error at once.
fn is_ready(time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    // If nobody can tell, the write itself will.
    rustix::event::poll(&mut fds, Some(&time)).map_or(true, |ready| ready > 0)
}
