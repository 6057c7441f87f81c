//! `run.json` -> what all versions of ddprun have written there in the same form.

use std::path::Path;

use serde_json::Value;

use super::{Error, known_format, read_if_there};
use crate::plan::Mode;
use crate::plan::NO_STEP_LIMIT;
use crate::record::{DESCRIPTION, DESCRIPTION_FORMAT, newest_of};

/// A run's numbers; what its start has not yet written, or an old version did not know, is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Description {
    pub(super) name: Option<String>,
    pub(super) steps_per_epoch: Option<u64>,
    /// Absent if time ends the run.
    pub(super) total_steps: Option<u64>,
    pub(super) monitor: Option<String>,
    pub(super) mode: Option<Mode>,
    pub(super) devices: Vec<String>,
}

impl Description {
    /// That of the newest start of the run in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, Error> {
        let path = newest_of(folder, DESCRIPTION);
        let Some(bytes) = read_if_there(&path)? else { return Ok(Self::default()) };
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|error| Error::damaged(&path, &error))?;
        known_format(&path, value.get("format").and_then(Value::as_u64), DESCRIPTION_FORMAT)?;
        let text = |place: &str| value.pointer(place)?.as_str().map(str::to_owned);
        let number = |place: &str| value.pointer(place)?.as_u64();
        let mode = value.pointer("/plan/checkpoint/mode").cloned();
        let devices = value.pointer("/plan/distributed/devices").and_then(Value::as_array);
        let word =
            |device: &Value| device.as_str().map_or_else(|| device.to_string(), str::to_owned);
        Ok(Self {
            name: text("/plan/name"),
            steps_per_epoch: number("/plan/length/steps_per_epoch"),
            total_steps: number("/plan/length/total_steps").filter(|&steps| steps < NO_STEP_LIMIT),
            monitor: text("/plan/checkpoint/monitor"),
            mode: mode.and_then(|mode| serde_json::from_value(mode).ok()),
            devices: devices.into_iter().flatten().map(word).collect(),
        })
    }
}
