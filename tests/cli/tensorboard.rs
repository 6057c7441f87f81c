//! What TensorBoard finds in a run's folder, read as it reads.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::experiments::SLOW;
use crate::harness::lab::{Lab, SAVED, children};

/// Values by tag and step.
type Points = BTreeMap<(String, u64), f32>;

#[test]
fn tensorboard_sees_every_number_once_though_a_rank_was_killed() {
    let lab = Lab::with(SLOW);
    let sinks = "logging.sinks=[jsonl,csv,{name=tensorboard,dir=tb}]";
    let args = ["small.toml", "fault.max_restarts=1", sinks];
    let ended = lab.run_with(&format!("{SAVED}; backward=kill@1,20"), &args);
    ended.has_code(0);
    let run = lab.run_folder();
    let own = run.strip_prefix(lab.path("logs")).unwrap();
    let files = event_files(&lab.path("tb").join(own));
    assert_eq!(files.len(), 2, "a file of each start: {files:?}");
    ended.says(&["tensorboard  ", &files[1].file_name().unwrap().to_string_lossy()]);
    let points = points(&files);
    assert_eq!(points.keys().filter(|(tag, _)| tag == "samples_per_second").count(), 60);
    assert_eq!(without_speed(points), rows(&lab.run_folder().join("metrics.csv")));
    lab.is_clean();
}

fn event_files(folder: &Path) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| path.to_string_lossy().contains("tfevents");
    let mut files: Vec<PathBuf> = children(folder).into_iter().filter(is_one).collect();
    files.sort();
    files
}

/// The points of files that are read in this order; each start takes back those of its first step
/// and later ones.
fn points(files: &[PathBuf]) -> Points {
    let mut points = Points::new();
    for file in files {
        for event in records(&fs::read(file).unwrap()) {
            let event = fields(event);
            let step = of(&event, 2).next().map_or(0, |bytes| varint(bytes).0);
            if of(&event, 7).next().is_some() {
                points.retain(|(_, earlier), _| *earlier < step);
            }
            for summary in of(&event, 5) {
                let values = fields(summary);
                points.extend(of(&values, 1).map(|value| point(value, step)));
            }
        }
    }
    points
}

fn point(value: &[u8], step: u64) -> ((String, u64), f32) {
    let value = fields(value);
    let tag = String::from_utf8(of(&value, 1).next().unwrap().to_vec()).unwrap();
    ((tag, step), f32::from_le_bytes(of(&value, 2).next().unwrap().try_into().unwrap()))
}

fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        let Some(record) = rest.get(4..4 + length) else { break };
        records.push(record);
        bytes = rest.get(8 + length..).unwrap_or_default();
    }
    records
}

/// The fields of a protocol buffer: their numbers and bytes.
fn fields(mut message: &[u8]) -> Vec<(u8, &[u8])> {
    let mut fields = Vec::new();
    while let Some((key, rest)) = message.split_first() {
        let (start, length) = match key & 7 {
            0 => (0, varint(rest).1),
            1 => (0, 8),
            2 => (varint(rest).1, varint(rest).0 as usize),
            5 => (0, 4),
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, &rest[start..start + length]));
        message = &rest[start + length..];
    }
    fields
}

fn of<'a>(fields: &[(u8, &'a [u8])], number: u8) -> impl Iterator<Item = &'a [u8]> {
    fields.iter().filter(move |field| field.0 == number).map(|field| field.1)
}

/// A number, and how many bytes it takes.
fn varint(bytes: &[u8]) -> (u64, usize) {
    let length = 1 + bytes.iter().take_while(|byte| **byte >= 128).count();
    let digits = bytes[..length].iter().rev();
    (digits.fold(0, |value, byte| value << 7 | u64::from(byte & 127)), length)
}

/// The same from a table with a column for each tag, whose speeds are rounded.
fn rows(path: &Path) -> Points {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let header = reader.headers().unwrap().clone();
    let mut points = Points::new();
    for row in reader.records() {
        let row = row.unwrap();
        let step = row[0].parse().unwrap();
        let cells = header.iter().zip(&row).skip(2).filter(|(_, cell)| !cell.is_empty());
        points.extend(
            cells.map(|(tag, cell)| ((tag.to_owned(), step), cell.parse::<f64>().unwrap() as f32)),
        );
    }
    without_speed(points)
}

fn without_speed(mut points: Points) -> Points {
    points.retain(|(tag, _), _| tag != "samples_per_second");
    points
}
