//! What a test could not do on this machine. `tests/summary.rs` prints it at the end of `cargo
//! test`.
#![expect(clippy::unwrap_used, reason = "a test's helper may stop the test")]

use std::io::Write;
use std::path::PathBuf;

/// Notes that the running test left something out because of `missing`.
///
/// # Panics
///
/// The note cannot be written.
pub fn skipped(missing: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not by `eprintln`, which a passing test does not show.
    let line = format!("SKIPPED: {test}: {missing}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    let notes = notes();
    std::fs::create_dir_all(&notes).unwrap();
    let file = notes.join(test.replace("::", "."));
    #[expect(clippy::disallowed_methods, reason = "a note of the tests, not of a run")]
    std::fs::write(file, format!("{test}: {missing}\n")).unwrap();
}

/// Where notes are: `skipped` beside the folder of the test programs, `target/debug/deps`.
///
/// # Panics
///
/// The program's own path is unknown.
pub fn notes() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("skipped")
}
