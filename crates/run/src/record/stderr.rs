//! Text for a person, on stderr. A pipe without a reader, or a terminal that is held (Ctrl-S) or
//! gone, must not hold up the training: text that cannot be written now is dropped. The logs have
//! it.
//!
//! Drawing a bar leaves the cursor at its first line, and the next write clears the screen from
//! there down. So no part of a bar stays on the screen, even if another process drew it, `^C` was
//! echoed into it, or a narrower terminal wrapped it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use console::{Term, truncate_str};
use indicatif::{ProgressDrawTarget, TermLike};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// Bytes that a pipe takes at once if it takes any.
const PIECE: usize = 4096;
/// Time to wait, once, for a slow reader.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum redraws of the bars per second.
const FRAMES: u8 = 20;

/// Moves to the beginning of the line and clears the screen from there.
const ERASE: &str = "\r\x1b[J";

/// True if the last text could not be written.
static IS_BLOCKED: AtomicBool = AtomicBool::new(false);

/// Writes `text` and a line feed, or as much of them as can be written within [`WRITE_TIMEOUT`].
pub(crate) fn say(text: &str) {
    offer(format!("{text}\n").as_bytes());
}

/// Like [`say`], but clears the bars first; the process that owns them redraws them below.
pub(crate) fn say_above_bars(text: &str) {
    offer(format!("{ERASE}{text}\n").as_bytes());
}

/// Removes bars whose process is gone.
pub(crate) fn erase_bars() {
    offer(ERASE.as_bytes());
}

/// Returns true if stderr can be written now. Waits a moment for room, but not again until a write
/// has succeeded.
pub fn takes_words() -> bool {
    let takes = is_ready(patience());
    if !takes {
        IS_BLOCKED.store(true, Ordering::Relaxed);
    }
    takes
}

/// Draw target for progress bars: stderr. Any frame may be dropped. Suspend the bars to print lines
/// above them.
pub fn canvas() -> ProgressDrawTarget {
    let canvas = Canvas { size: Term::stderr(), picture: Mutex::default(), show: offer };
    ProgressDrawTarget::term_like_with_hz(Box::new(canvas), FRAMES)
}

/// Time to wait for room: zero after a failed write, until one succeeds again.
fn patience() -> Duration {
    if IS_BLOCKED.load(Ordering::Relaxed) { Duration::ZERO } else { WRITE_TIMEOUT }
}

/// Writes as much of `bytes` as can be written within [`patience`].
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

/// Stderr, opened once more if it is a pipe or a terminal: `O_NONBLOCK` belongs to the open file
/// description, and that of stderr is shared with every process that writes there.
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

/// Writes to a descriptor that does not block. Returns true if all bytes were written: a terminal
/// may report room and then take only a part.
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

/// Writes to stderr where it cannot be opened once more.
fn offer_pieces(bytes: &[u8]) -> bool {
    bytes.chunks(PIECE).all(|piece| {
        let takes = takes_words();
        if takes {
            let _ = io::stderr().lock().write_all(piece);
        }
        takes
    })
}

/// True if a write would not block within `time`: there is room, or an immediate error.
fn is_ready(time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let stderr = io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    // If that is unknown, the write itself will tell.
    rustix::event::poll(&mut fds, Some(&time)).map_or(true, |ready| ready > 0)
}

/// A terminal for bars: collects a frame and writes it at once.
#[derive(Debug)]
struct Canvas {
    size: Term,
    picture: Mutex<Picture>,
    show: fn(&[u8]),
}

/// Rows of bars.
#[derive(Debug, Default)]
struct Picture {
    rows: Vec<String>,
    /// True if indicatif's next write pads the last row with blanks, which are dropped.
    is_open: bool,
}

impl Canvas {
    fn picture(&self) -> MutexGuard<'_, Picture> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TermLike for Canvas {
    fn width(&self) -> u16 {
        self.size.size().1
    }

    fn height(&self) -> u16 {
        self.size.size().0
    }

    // The cursor rests at the first row of the last picture, which is erased as a whole.
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.picture().rows.push(text.to_owned());
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        let mut picture = self.picture();
        if !picture.is_open {
            picture.rows.push(text.to_owned());
        }
        picture.is_open = !picture.is_open;
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let Picture { rows, .. } = std::mem::take(&mut *self.picture());
        (self.show)(drawn(&rows, usize::from(self.width())).as_bytes());
        Ok(())
    }
}

/// Returns the bytes that erase the last frame, draw these rows, cut at `width`, and move the
/// cursor back to the first row.
fn drawn(rows: &[String], width: usize) -> String {
    let cut: Vec<_> = rows.iter().map(|row| truncate_str(row, width, "")).collect();
    let back = match rows.len() {
        0 | 1 => String::new(),
        n => format!("\x1b[{}A", n - 1),
    };
    format!("{ERASE}{}\r{back}", cut.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use indicatif::{ProgressBar, ProgressStyle};
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
    fn rows_are_cut_and_the_cursor_goes_back_to_the_first() {
        let of = |rows: &[&str]| {
            let rows: Vec<String> = rows.iter().map(|&row| row.to_owned()).collect();
            drawn(&rows, 5)
        };
        assert_eq!(of(&[]), "\r\x1b[J\r");
        assert_eq!(of(&["━━╸ "]), "\r\x1b[J━━╸ \r");
        assert_eq!(of(&["1234567", "a", "b"]), "\r\x1b[J12345\r\na\r\nb\r\x1b[2A");
    }

    #[test]
    fn a_bar_is_drawn_from_where_the_cursor_rests_and_erased_from_there() {
        static SHOWN: Mutex<String> = Mutex::new(String::new());
        let show: fn(&[u8]) =
            |bytes| SHOWN.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        let canvas = Canvas { size: Term::stderr(), picture: Mutex::default(), show };
        let target = ProgressDrawTarget::term_like(Box::new(canvas));
        let bar = ProgressBar::with_draw_target(Some(3), target);
        bar.set_style(ProgressStyle::with_template("{pos}/{len}\n{msg}").unwrap());
        bar.set_message("loss 1");
        assert_eq!(*SHOWN.lock().unwrap(), "\r\x1b[J0/3\r\nloss 1\r\x1b[1A");
        bar.suspend(|| SHOWN.lock().unwrap().push_str("saved\n"));
        bar.finish_and_clear();
        drop(bar);
        let shown = SHOWN.lock().unwrap().clone();
        let end = "\r\x1b[J\rsaved\n\r\x1b[J0/3\r\nloss 1\r\x1b[1A\r\x1b[J\r";
        assert!(shown.ends_with(end), "{shown:?}");
    }
}
