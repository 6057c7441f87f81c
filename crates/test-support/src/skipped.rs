//! Notes of tests that need something this machine does not have. `tests/summary.rs` prints them at
//! the end of `cargo test`.
#![expect(clippy::unwrap_used, reason = "a test's helper may stop the test")]

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

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

/// Path of a file or folder of real data, `../shared/<path>` from the root of the repository; `None`,
/// which is noted, where it is absent.
///
/// # Panics
///
/// The note cannot be written.
pub fn shared(path: &str) -> Option<PathBuf> {
    let packages = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = packages.ancestors().nth(2).unwrap();
    let found = root.join("../shared").join(path);
    if !found.exists() {
        skipped(&format!("`../shared/{path}`"));
        return None;
    }
    Some(found)
}

/// The Python that `PYTHON` names, or else `python3`, if it has these modules (`numpy, PIL`); else
/// notes that they are missing.
#[expect(clippy::disallowed_methods, reason = "of the tests, not of a run")]
pub fn python(modules: &str) -> Option<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let tried = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
    let has_all = tried.is_ok_and(|output| output.status.success());
    if !has_all {
        skipped(&format!("a Python with {modules} (`PYTHON` names it)"));
    }
    has_all.then_some(python)
}

/// The folder of notes: `skipped` beside the folder of the test programs, `target/debug/deps`.
///
/// # Panics
///
/// The program's own path is unknown.
pub fn notes() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("skipped")
}
