//! Write times of checkpoints.

use std::io::BufReader;
use std::path::Path;

use serde::Deserialize;

use super::{FolderScan, find};
use crate::files;
use crate::record::EVENTS;

/// The fields of an event that matter here.
#[derive(Deserialize)]
struct Line {
    event: String,
    #[serde(default)]
    seconds: f64,
}

/// The newest run below `folder` with a checkpoint, and its longest write time in seconds.
pub fn longest_save(folder: &Path) -> Option<(String, f64)> {
    let FolderScan { runs, .. } = find(folder);
    runs.iter().rev().find_map(|run| {
        let id = run.file_name()?.to_string_lossy().into_owned();
        Some((id, longest_of(run)?))
    })
}

fn longest_of(run: &Path) -> Option<f64> {
    let mut file = BufReader::new(files::open(&run.join(EVENTS)).ok()?);
    let mut text = Vec::new();
    let mut longest = None::<f64>;
    while files::read_line(&mut file, &mut text).is_ok_and(|n| n > 0) {
        if let Some(seconds) = saved_in(&text) {
            longest = Some(longest.map_or(seconds, |longest| longest.max(seconds)));
        }
        text.clear();
    }
    longest
}

/// Write time from a line about a saved checkpoint.
fn saved_in(line: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(line).ok().filter(|text| text.contains("\"saved\""))?;
    let line: Line = serde_json::from_str(text).ok()?;
    (line.event == "saved").then_some(line.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RESOLVED;

    #[test]
    fn the_newest_run_that_has_saved_counts() {
        let logs = tempfile::tempdir().unwrap();
        let run = |id: &str, events: &str| {
            let folder = logs.path().join(id);
            files::create_folder(&folder).unwrap();
            files::write_atomic(&folder.join(RESOLVED), b"").unwrap();
            files::write_atomic(&folder.join(EVENTS), events.as_bytes()).unwrap();
        };
        assert_eq!(longest_save(logs.path()), None);
        run("20260101-a", "{\"event\":\"saved\",\"seconds\":90}\n");
        let said = "{\"event\":\"warned\",\"text\":\"\\\"saved\\\"\",\"seconds\":99}";
        let saves = [3.5, 41.25, 2.0].map(|s| format!("{{\"event\":\"saved\",\"seconds\":{s}}}"));
        run("20260201-b", &format!("{said}\n{}\n{{\"event\":\"sav", saves.join("\n")));
        run("20260301-c", "{\"event\":\"step_done\",\"seconds\":7}\n");
        assert_eq!(longest_save(logs.path()), Some(("20260201-b".to_owned(), 41.25)));
    }
}
