//! `strace`, with which tests have system calls of a run fail.

use std::process::{Command, Stdio};

use crate::harness::bits::{Bits, bits};
use crate::harness::experiments::four_steps;
use crate::harness::lab::Lab;

/// What no system call can be stopped at without.
pub(crate) const TRACER: &str = "no `strace`, or it may not trace";

/// Whether this machine has an `strace` that may trace.
pub(crate) fn can_trace() -> bool {
    let mut command = Command::new("strace");
    command.args(["-f", "-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// An undisturbed run of [`four_steps`]: the data that the others use, and what they must end
/// with.
pub(crate) fn undisturbed() -> (Lab, String, Bits) {
    let lab = Lab::with(&four_steps());
    let data = format!("data.dir={}", lab.path("data/shapes").display());
    lab.run_to(0, &["small.toml", &data]);
    let expected = bits(&lab);
    (lab, data, expected)
}
