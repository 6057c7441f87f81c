//! Words for a person: on stderr as long as they are read. A pipe without a reader, a terminal that
//! is held (Ctrl-S) or gone must not hold up the training: what cannot be written now is left out.
//! The logs have it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressDrawTarget, TermLike};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// Most bytes that a pipe which takes any takes at once.
const PIECE: usize = 4096;
/// Longest wait for a reader who is merely slow, once.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);
/// Pictures of a bar per second, at most.
const FRAMES: u8 = 20;

/// Whether the last words were not taken.
static IS_BLOCKED: AtomicBool = AtomicBool::new(false);

/// Writes `text` and a line feed, or as much of it as is taken without waiting for longer than a
/// moment.
pub(crate) fn say(text: &str) {
    offer(format!("{text}\n").as_bytes());
}

/// Whether stderr takes words now. Waits for them a moment, but not again and again.
pub(crate) fn takes_words() -> bool {
    let takes = is_ready(patience());
    if !takes {
        IS_BLOCKED.store(true, Ordering::Relaxed);
    }
    takes
}

/// Where bars are drawn: stderr, one picture after the other, each of which may be left out.
pub(crate) fn canvas() -> ProgressDrawTarget {
    let canvas = Canvas { size: Term::stderr(), picture: Mutex::default() };
    ProgressDrawTarget::term_like_with_hz(Box::new(canvas), FRAMES)
}

/// How long to wait for room: once words were not taken, until some are again, not at all.
fn patience() -> Duration {
    if IS_BLOCKED.load(Ordering::Relaxed) { Duration::ZERO } else { WRITE_TIMEOUT }
}

/// Writes as much of `bytes` as is taken without waiting for longer than a moment.
fn offer(bytes: &[u8]) {
    if !takes_words() {
        return;
    }
    let taken = match own() {
        Some(own) => offer_to(own, bytes, Instant::now() + patience()),
        None => offer_pieces(bytes),
    };
    IS_BLOCKED.store(!taken, Ordering::Relaxed);
}

/// A pipe or a terminal, opened once more: that it does not wait is a property of the opening, and
/// that of stderr is shared with everybody who writes there.
fn own() -> Option<&'static OwnedFd> {
    static OWN: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let open = || {
        let mode = rustix::fs::fstat(io::stderr()).ok()?.st_mode;
        let kind = FileType::from_raw_mode(mode);
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let can_wait = matches!(kind, FileType::Fifo | FileType::CharacterDevice);
        can_wait.then(|| rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()).ok())?
    };
    OWN.get_or_init(open).as_ref()
}

/// Whether all were taken: a terminal may say that it takes words and then take a part of them
/// only.
fn offer_to(own: &OwnedFd, bytes: &[u8], until: Instant) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(own, rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            // A terminal that is gone is no reason to stop, nor to wait.
            Err(error) => return error != Errno::AGAIN,
        }
    }
    true
}

/// As [`offer_to`], to what cannot be opened once more.
fn offer_pieces(bytes: &[u8]) -> bool {
    bytes.chunks(PIECE).all(|piece| {
        let takes = takes_words();
        if takes {
            let _ = io::stderr().lock().write_all(piece);
        }
        takes
    })
}

/// Whether a write would not wait: there is room, or an error at once.
fn is_ready(time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let stderr = io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    // If that is unknown, the write itself will tell.
    rustix::event::poll(&mut fds, Some(&time)).map_or(true, |ready| ready > 0)
}

/// A terminal for bars. A picture is kept until it is whole, and then offered at once.
#[derive(Debug)]
struct Canvas {
    size: Term,
    picture: Mutex<String>,
}

impl Canvas {
    fn add(&self, text: &str) {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    /// Moves the cursor `n` places.
    fn go(&self, n: usize, letter: char) {
        if n > 0 {
            self.add(&format!("\x1b[{n}{letter}"));
        }
    }
}

impl TermLike for Canvas {
    fn width(&self) -> u16 {
        self.size.size().1
    }

    fn height(&self) -> u16 {
        self.size.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.go(n, 'A');
        Ok(())
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.go(n, 'B');
        Ok(())
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.go(n, 'C');
        Ok(())
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.go(n, 'D');
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(text);
        self.add("\n");
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add("\r\x1b[2K");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let picture =
            std::mem::take(&mut *self.picture.lock().unwrap_or_else(PoisonError::into_inner));
        if !picture.is_empty() {
            offer(picture.as_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    use super::*;

    #[test]
    fn a_pipe_that_is_full_is_left_after_a_moment_with_what_it_took() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let room = fcntl_setpipe_size(&writer, 4096).unwrap();
        let began = Instant::now();
        assert!(!offer_to(&writer, &vec![b'x'; room + 999], began + Duration::from_millis(20)));
        assert!(began.elapsed() >= Duration::from_millis(20));
        let mut taken = vec![0; 2 * room];
        assert_eq!(rustix::io::read(&reader, &mut taken).unwrap(), room);
        assert!(offer_to(&writer, b"and on", Instant::now()));
        assert_eq!(rustix::io::read(&reader, &mut taken).unwrap(), 6);
    }

    #[test]
    fn a_picture_is_kept_until_it_is_whole() {
        let canvas = Canvas { size: Term::stderr(), picture: Mutex::default() };
        canvas.move_cursor_up(2).unwrap();
        canvas.clear_line().unwrap();
        canvas.write_line("a").unwrap();
        canvas.move_cursor_down(0).unwrap();
        assert_eq!(*canvas.picture.lock().unwrap(), "\x1b[2A\r\x1b[2Ka\n");
    }
}
