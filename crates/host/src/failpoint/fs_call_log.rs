//! Log of changes of the file system: a line of JSON for each call, in the file that
//! `DDPRUN_FILE_CALLS` names.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

/// Opened once; the environment of a process does not change.
static LOG: OnceLock<Option<File>> = OnceLock::new();

fn open() -> Option<File> {
    let path = std::env::var_os("DDPRUN_FILE_CALLS")?;
    File::options().create(true).append(true).open(path).ok()
}

/// Notes `call`, which has been made: a lost line is a change that was not waited for.
pub fn note(call: &str, paths: &[&Path], bytes: &[u8]) {
    let Some(mut log) = LOG.get_or_init(open).as_ref() else { return };
    let paths: Vec<_> = paths.iter().filter_map(|path| std::path::absolute(path).ok()).collect();
    let line = serde_json::json!({ "call": call, "paths": paths, "bytes": bytes });
    // One write, so that the lines of all processes stay apart.
    let _ = log.write_all(format!("{line}\n").as_bytes());
}
