//! Runs and sweeps -> one file that shows them without a server.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::details::Details;
use super::page;
use super::watched::Watched;
use crate::transport;

/// Points of a curve, and lines of a log.
const POINTS: usize = 600;
const LINES: usize = 300;

/// The page of all runs and sweeps below `folder`, which may be one itself; `None` if there are
/// none.
pub fn html(folder: &Path) -> std::io::Result<Option<String>> {
    let mut watched = Watched::new(folder);
    watched.look();
    while watched.read_some(usize::MAX).is_some() {}
    while watched.read_one_long().is_some() {}
    if watched.is_empty() {
        return Ok(None);
    }
    let overview = watched.overview();
    let metrics: BTreeSet<&String> = overview.runs.iter().flat_map(|run| &run.series).collect();
    let mut series = Map::new();
    for metric in metrics {
        let mut found = watched.series(metric, POINTS, (0, u64::MAX));
        series.insert(metric.clone(), found["runs"].take());
    }
    let mut details = Map::new();
    for id in watched.ids() {
        let Some(folder) = watched.folder(id) else { continue };
        let found = Details::read(folder, id).map(|details| details.alone(folder, LINES));
        let value = match found {
            Ok(found) => serde_json::to_value(found).unwrap_or_default(),
            Err(error) => json!({ "problem": error.to_string() }),
        };
        details.insert(id.clone(), value);
    }
    let timelines = watched.timelines();
    let data: Value = json!({
        "overview": overview, "series": series, "timelines": timelines, "details": details,
    });
    let nonce = transport::new_token()?;
    Ok(Some(page::whole(&data, nonce.trim())))
}
