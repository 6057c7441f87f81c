//! `tensorboard` in `logging.sinks`
//!
//! `events.out.tfevents.*`: the numbers of a run for TensorBoard (`tensorboard --logdir logs`).
//!
//! A record is the length of what follows, its masked CRC-32C, the bytes, and theirs,
//! little-endian; the bytes are an `Event` of TensorFlow's `event.proto`. Each start of a run makes
//! a file of its own, since readers give up a file at a record that a killed process left
//! unfinished; its second record, `SessionLog.START`, has them forget the points of steps that are
//! done again, as `SummaryWriter(purge_step=...)` does.

use std::fs;
use std::path::{Path, PathBuf};

use crc::{CRC_32_ISCSI, Crc};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::event::{Evaluated, Event, Finished, StepDone};
use crate::files::{self, AppendFile};
use crate::launch;
use crate::record::Error;
use crate::record::sink::{OpenSink, Sink, SinkStart, Stamped};

/// Prefix of the file's name; seconds since 1970 and the machine's name follow.
const PREFIX: &str = "events.out.tfevents.";

/// `SessionLog.START`
const START: u64 = 1;

/// event files for TensorBoard: `tensorboard --logdir logs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tensorboard {
    /// folder in which each run has one of its own, `NAME/ID` as in `logging.dir`. Default: the
    /// run's folder for logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "output-path", "examples" = ["tb"]))]
    pub dir: Option<PathBuf>,
}

impl Kind for Tensorboard {
    const NAME: &'static str = "tensorboard";
}

impl Sink for Tensorboard {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        let SinkStart { run, name, resumed_from, .. } = start;
        let folder = match &self.dir {
            Some(dir) => dir.join(name).join(&run.id),
            None => run.logs.clone(),
        };
        files::create_folder(&folder)?;
        Ok(Box::new(EventFile(open(&folder, *resumed_from, Timestamp::now())?)))
    }
}

struct EventFile(AppendFile);

impl OpenSink for EventFile {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        match record(&stamped.event, stamped.time) {
            Some(record) => Ok(self.0.append(&record)?),
            None => Ok(()),
        }
    }

    fn file(&self) -> Option<&Path> {
        Some(self.0.path())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(self.0.sync()?)
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        Some(("tensorboard", self.0.path().to_owned()))
    }
}

/// Opens the file of a start that resumes from step `resumed_from`; 0 for a fresh run.
fn open(folder: &Path, resumed_from: u64, now: Timestamp) -> Result<AppendFile, Error> {
    let file = AppendFile::open(&free_name(folder, now)?)?;
    let version = Message::at(now, 0).bytes(3, b"brain.Event:2");
    let again = Message::at(now, resumed_from + 1).message(7, &Message::default().int(1, START));
    file.append(&[version.record(), again.record()].concat())?;
    Ok(file)
}

/// The record of an event; `None` for events without numbers.
fn record(event: &Event, now: Timestamp) -> Option<Vec<u8>> {
    let (step, points) = scalars(event)?;
    let summary = points.iter().fold(Message::default(), |summary, (tag, value)| {
        let point = Message::default().bytes(1, tag.as_bytes()).float(2, *value as f32);
        summary.message(1, &point)
    });
    Some(Message::at(now, step).message(5, &summary).record())
}

/// Step and numbers of an event; `None` for events without numbers.
pub(super) fn scalars(event: &Event) -> Option<(u64, Vec<(&str, f64)>)> {
    match event {
        Event::StepDone(done) => Some((done.step, of_step(done))),
        Event::Evaluated(at) | Event::Tested(at) => Some((at.step, of_evaluation(at))),
        _ => None,
    }
}

/// Returns a name behind those of earlier starts, even if the clock went back: TensorBoard reads
/// files in the order of their names.
fn free_name(folder: &Path, now: Timestamp) -> Result<PathBuf, Error> {
    let entries = fs::read_dir(folder).map_err(files::Error::io("read", folder))?;
    let newest =
        entries.flatten().filter_map(|entry| second_of(&entry.file_name().to_string_lossy())).max();
    let second = newest.map_or(0, |newest| newest + 1).max(now.as_second());
    let host = launch::host();
    Ok(folder.join(format!("{PREFIX}{second:010}.{host}")))
}

fn second_of(name: &str) -> Option<i64> {
    name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

/// Scalars of a step, named as the columns of `metrics.csv`; the part before a `/` is a group.
fn of_step(done: &StepDone) -> Vec<(&str, f64)> {
    let always = [
        ("train/loss", Some(done.loss)),
        ("train/accuracy", done.accuracy),
        ("lr", Some(done.lr)),
        ("grad_norm", Some(done.grad_norm)),
        ("loss_scale", done.loss_scale),
        ("samples_per_second", Some(done.samples_per_second)),
    ];
    always.into_iter().filter_map(|(tag, value)| Some((tag, value?))).collect()
}

/// Scalars of an evaluation, without the means over the steps of an epoch: each step is there
/// already.
fn of_evaluation(evaluated: &Evaluated) -> Vec<(&str, f64)> {
    let own = evaluated.metrics.iter().filter(|(tag, _)| !tag.starts_with("train/"));
    own.map(|(tag, value)| (tag.as_str(), *value)).collect()
}

/// An encoded protocol buffer. Field numbers are below 16.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// An `Event` of this time and step.
    fn at(now: Timestamp, step: u64) -> Self {
        let seconds = now.as_millisecond() as f64 / 1000.0;
        let event = Self::default().field(1, 1, &seconds.to_le_bytes());
        if step == 0 { event } else { event.int(2, step) }
    }

    fn field(mut self, number: u8, wire_type: u8, bytes: &[u8]) -> Self {
        self.0.push(number << 3 | wire_type);
        self.0.extend_from_slice(bytes);
        self
    }

    fn int(self, number: u8, value: u64) -> Self {
        self.field(number, 0, &varint(value))
    }

    fn float(self, number: u8, value: f32) -> Self {
        self.field(number, 5, &value.to_le_bytes())
    }

    fn bytes(self, number: u8, bytes: &[u8]) -> Self {
        let mut field = self.field(number, 2, &varint(bytes.len() as u64));
        field.0.extend_from_slice(bytes);
        field
    }

    fn message(self, number: u8, message: &Self) -> Self {
        self.bytes(number, &message.0)
    }

    fn record(&self) -> Vec<u8> {
        let length = (self.0.len() as u64).to_le_bytes();
        let parts = [&length[..], &masked(&length), &self.0, &masked(&self.0)];
        parts.concat()
    }
}

/// Encodes a number as seven bits per byte, the lowest first; all bytes but the last have the high
/// bit.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// TensorFlow's `MaskedCrc`: a sum of bytes that hold sums is no good otherwise.
fn masked(bytes: &[u8]) -> [u8; 4] {
    static CRC_32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
    CRC_32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example_events;

    fn now() -> Timestamp {
        Timestamp::from_millisecond(1_763_847_523_125).unwrap()
    }

    #[test]
    fn records_are_those_of_tensorboards_own_writer() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(folder.path(), 20, now()).unwrap();
        let summary = Message::default()
            .message(1, &Message::default().bytes(1, b"train/loss").float(2, 0.5))
            .message(1, &Message::default().bytes(1, b"lr").float(2, 0.05));
        file.append(&Message::at(now(), 300).message(5, &summary).record()).unwrap();
        // `RecordWriter` of tensorboard 2.21.0, with the same three events.
        let bytes = fs::read(file.path()).unwrap();
        insta::assert_snapshot!(bytes.escape_ascii(), @r#"\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7fK\"\t\x00\x00\xc8X\x8bH\xdaA\x1a\rbrain.Event:2\xe7\x1f\x04\xbb\x0f\x00\x00\x00\x00\x00\x00\x00mS+\t\t\x00\x00\xc8X\x8bH\xdaA\x10\x15:\x02\x08\x01\x1c\xf0\xc8\x04,\x00\x00\x00\x00\x00\x00\x00\xf4\xae\xccE\t\x00\x00\xc8X\x8bH\xdaA\x10\xac\x02*\x1e\n\x11\n\ntrain/loss\x15\x00\x00\x00?\n\t\n\x02lr\x15\xcd\xccL=\xf9\xb6o\xe2"#);
    }

    #[test]
    fn steps_and_evaluations_have_all_their_numbers_and_other_events_none() {
        let text = |event: &Event| {
            record(event, now()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let step = StepDone { loss_scale: Some(65536.0), ..example_events::step_done(3) };
        let step = text(&Event::StepDone(step)).unwrap();
        for tag in
            ["train/loss", "train/accuracy", "lr", "grad_norm", "loss_scale", "samples_per_second"]
        {
            assert!(step.contains(tag), "{tag}: {step}");
        }
        let mut evaluated = example_events::evaluated(20);
        evaluated.metrics.insert("train/loss".into(), 0.5);
        let tested = text(&Event::Tested(evaluated)).unwrap();
        assert!(tested.contains("val/loss") && tested.contains("val/accuracy"), "{tested}");
        assert!(!tested.contains("train/loss"), "{tested}");
        assert_eq!(text(&Event::EpochDone(example_events::epoch_done(1))), None);
    }

    #[test]
    fn files_are_named_in_the_order_of_their_starts_though_the_clock_went_back() {
        let folder = tempfile::tempdir().unwrap();
        let earlier = Timestamp::from_second(1_700_000_000).unwrap();
        let names = [now(), now(), earlier].map(|now| {
            let file = open(folder.path(), 0, now).unwrap();
            file.path().file_name().unwrap().to_string_lossy().into_owned()
        });
        assert!(names.is_sorted(), "{names:?}");
        assert!(names[2].starts_with("events.out.tfevents.1763847525."), "{names:?}");
    }
}
