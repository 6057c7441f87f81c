//! Places at which a test ends, stops or hangs a process. Without the feature `failpoints` they are
//! nothing.
//!
//! ```text
//! DDPRUN_FP="backward=kill@1,7; checkpoint.rename=panic@0,*,*"
//!                    point    action @ rank, step, restart, hit
//! ```
//!
//! A rank is a number or `parent`; `*` is any, which also stands for what is left away, except that
//! without a word about restarts only the first attempt fails. Actions: `kill`, `stop` (SIGSTOP),
//! `panic`, `hang`, `exit(n)`, `term` and `hup` (SIGTERM, SIGHUP), `kill(parent)`, `term(parent)`,
//! `sleep(ms)`, `flip` (a bit) at `weights`, `optimizer_state`, `averages`, at `gradient` and at
//! `reduced` (the same after its reduction), and at `samples` (a rank takes one that is another's),
//! `oom` (the error of a GPU without memory) at `memory`, and `wait` (for the disk, so that each
//! checkpoint is there before the next step) at `checkpoint.queued`. Points are the phases of a
//! rank (`launch::Phase`), and what calls [`reach`] by another name.
//!
//! `DDPRUN_FILE_CALLS=calls.jsonl` has every change of the file system written down, for tests that
//! cut the power.

#[cfg(feature = "failpoints")]
mod armed;
#[cfg(feature = "failpoints")]
mod rule;

#[cfg(feature = "failpoints")]
pub use armed::{check, enter_step, flips, note, reach, runs_out, waits};

/// Checks that `DDPRUN_FP` can be read; the error says why not.
#[cfg(not(feature = "failpoints"))]
pub fn check() -> Result<(), String> {
    Ok(())
}

/// Sets the step that this process is in.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn enter_step(_step: u64) {}

/// A place with this name: the caller makes it fail here.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn reach(_point: &str) {}

/// True if a bit is to be flipped here.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn flips(_point: &str) -> bool {
    false
}

/// True if a device is to have no memory left here.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn runs_out(_point: &str) -> bool {
    false
}

/// True if the work that was begun here is to be waited for.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn waits(_point: &str) -> bool {
    false
}

/// Notes a change of the file system.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn note(_call: &str, _paths: &[&std::path::Path], _bytes: &[u8]) {}
