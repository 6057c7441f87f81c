//! What stands in `run-ID.wandb`, by a reader that shares no code with the writer. What W&B's own
//! client makes of it is in `tests/cli/wandb.rs`.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::event::{Evaluated, StepDone};
use crate::plan::RunFolders;
use crate::record::example_events;

/// CRC-32, bit by bit.
fn crc_32(bytes: &[u8]) -> u32 {
    let shifted = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shifted(crc)))
}

/// The records of a file whose every byte is as `log_format.md` of `leveldb` says.
fn read(file: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(&file[..7], b":W&B\xe1\xbe\0");
    let (mut records, mut is_open, mut at) = (Vec::<Vec<u8>>::new(), false, 7);
    while at < file.len() {
        let room = 32_768 - at % 32_768;
        if room < 7 {
            assert!(file[at..at + room].iter().all(|byte| *byte == 0));
            at += room;
            continue;
        }
        let head = &file[at..at + 7];
        let length = usize::from(u16::from_le_bytes([head[4], head[5]]));
        assert!(7 + length <= room, "a chunk stays in its block");
        let (sum, checked) = (&head[..4], &file[at + 6..at + 7 + length]);
        assert_eq!(sum, crc_32(checked).to_le_bytes());
        match head[6] {
            1 | 2 => {
                assert!(!is_open);
                records.push(checked[1..].to_vec());
            }
            3 | 4 => {
                assert!(is_open);
                records.last_mut().unwrap().extend(&checked[1..]);
            }
            other => panic!("a chunk of type {other}"),
        }
        is_open = matches!(head[6], 2 | 3);
        at += 7 + length;
    }
    assert!(!is_open);
    records
}

fn start(folder: &Path, resumed_from: u64) -> SinkStart {
    let run = RunFolders {
        id: "20261120-132556-3fa2".into(),
        logs: folder.to_owned(),
        checkpoints: folder.join("none"),
    };
    let config = json!({"train": {"epochs": 2}, "optimizer": {"lr": 0.1}});
    SinkStart {
        run,
        name: "small".into(),
        tags: vec!["a".into(), "b/c".into()],
        config: config.as_object().unwrap().clone(),
        resumed_from,
        total_steps: 6,
        ..SinkStart::default()
    }
}

/// Opens the sink for a start at the second `at`.
fn open(start: &SinkStart, at: i64) -> Tracker {
    let options = Wandb { project: Some("animals".into()), ..Wandb::default() };
    Tracker::open(&options, start, second(at)).unwrap()
}

fn second(at: i64) -> Timestamp {
    Timestamp::from_second(1_796_007_000 + at).unwrap()
}

/// Records the steps of `range`, one a second, with an evaluation after every second one.
fn train(tracker: &mut Tracker, range: std::ops::RangeInclusive<u64>, mut at: i64) {
    for step in range {
        let loss = 1.0 / step as f64;
        let done = StepDone { loss, grad_norm: f64::NAN, ..example_events::step_done(step) };
        tracker.record(&stamped(at, Event::StepDone(done))).unwrap();
        if step % 2 == 0 {
            let evaluated = Event::Evaluated(example_events::evaluated(step));
            tracker.record(&stamped(at, evaluated)).unwrap();
        }
        at += 1;
    }
}

fn stamped(at: i64, event: Event) -> Stamped {
    Stamped { time: second(at), step: 0, event }
}

fn tested() -> Event {
    let metrics = [("test/accuracy".to_owned(), 0.7)].into();
    Event::Tested(Evaluated { metrics, ..example_events::evaluated(4) })
}

fn finished(reason: Reason) -> Event {
    Event::Finished(Finished { reason, ..example_events::finished() })
}

/// The only file below `folder/wandb`.
fn file(folder: &Path) -> Vec<u8> {
    fs::read(path(folder)).unwrap()
}

fn path(folder: &Path) -> PathBuf {
    let (run, id) = earlier(&folder.join(FOLDER)).unwrap().unwrap();
    run.join(format!("run-{id}.wandb"))
}

fn decoded(file: &[u8]) -> Vec<Record> {
    let records = read(file);
    assert_eq!(records, super::records(file), "both readers agree");
    records.iter().map(|bytes| Record::decode(bytes.as_slice()).unwrap()).collect()
}

fn rows(file: &[u8]) -> Vec<Row> {
    let histories = decoded(file).into_iter().filter_map(|record| record.history);
    histories.map(|history| Row::read(&history.item).unwrap()).collect()
}

/// Rows as text: NaN differs from itself.
fn shown(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| format!("{} {:?}", row.step, row.metrics)).collect()
}

/// The rows of a run that nothing has interrupted.
fn undisturbed() -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut tracker = open(&start(folder.path(), 0), 0);
    train(&mut tracker, 1..=6, 0);
    tracker.finish().unwrap();
    shown(&rows(&file(folder.path())))
}

#[test]
fn records_are_those_of_wandbs_own_writer() {
    let entries = [("lr", "0.05"), ("train/loss", "NaN"), ("_runtime", "1.5"), ("_step", "300")];
    let entries = entries.into_iter().chain([("_timestamp", "1763847523.125")]);
    let row = entries.map(|(key, value)| item(key, value.to_owned())).collect();
    let history = Some(History { item: row, step: Some(Step { num: 300 }) });
    let version = VersionInfo { producer: "ddprun".into(), min_consumer: "0.70.0".into() };
    let exit = Some(Exit { exit_code: 255, runtime: 2 });
    let records = [
        Record { header: Some(Header { version_info: Some(version) }), ..Record::default() },
        Record { history, ..Record::default() },
        runtime_in_summary(2),
        Record { exit, ..Record::default() },
    ];
    let (mut chunks, mut bytes) = (Chunks::new(), HEADER.to_vec());
    for (num, record) in (1..).zip(records) {
        chunks.push(&Record { num, ..record }.encode_to_vec(), &mut bytes);
    }
    // `DataStore` of wandb 0.19.11, with the same four records.
    insta::assert_snapshot!(bytes.escape_ascii(), @r#":W&B\xe1\xbe\x00zKF\x9e\x17\x00\x01\x08\x01\xaa\x01\x12\n\x10\n\x06ddprun\x12\x060.70.0\xa5\xb1\xd4ej\x00\x01\x08\x02\x12f\n\x0b\n\x02lr\x82\x01\x040.05\n\x12\n\ntrain/loss\x82\x01\x03NaN\n\x10\n\x08_runtime\x82\x01\x031.5\n\r\n\x05_step\x82\x01\x03300\n\x1d\n\n_timestamp\x82\x01\x0e1763847523.125\x12\x03\x08\xac\x02\x82\x987\x84\x1b\x00\x01\x08\x03\x1a\x17\n\x15\x12\x06_wandb\x12\x07runtime\x82\x01\x012%\x02V4\n\x00\x01\x08\x04\x92\x01\x05\x08\xff\x01\x10\x02"#);
}

#[test]
fn a_run_is_that_of_wandbs_own_writer() {
    let config = [("train".to_owned(), json!({"epochs": 2}))].into_iter().collect();
    let run = RunRecord {
        run_id: "r".into(),
        project: "p".into(),
        config: Some(Items { update: items(&config) }),
        run_group: "g".into(),
        job_type: "train".into(),
        display_name: "p r".into(),
        tags: vec!["a".into(), "b".into()],
        host: "h".into(),
        start_time: Some(Time { seconds: 5, nanos: 7 }),
        ..RunRecord::default()
    };
    let bytes = Record { num: 2, run: Some(run), ..Record::default() }.encode_to_vec();
    // `Record.SerializeToString` of wandb 0.19.11.
    insta::assert_snapshot!(bytes.escape_ascii(), @r#"\x08\x02\x8a\x01?\n\x01r\x1a\x01p\"\x18\n\x16\n\x05train\x82\x01\x0c{\"epochs\":2}2\x01g:\x05trainB\x03p rR\x01aR\x01bj\x01h\x8a\x01\x04\x08\x05\x10\x07"#);
}

#[test]
fn records_of_any_length_are_read_back_wherever_a_block_ends() {
    let lengths = (32_740..32_770).chain([0, 1, 7, 100_000, 65_536, 3]);
    let lengths: Vec<usize> = lengths.chain((0..40).map(|at| 32_600 + 3 * at)).collect();
    let (mut chunks, mut bytes) = (Chunks::new(), HEADER.to_vec());
    let expected: Vec<Vec<u8>> = (1..).zip(lengths).map(|(byte, n)| vec![byte; n]).collect();
    for record in &expected {
        chunks.push(record, &mut bytes);
    }
    assert!(read(&bytes) == expected && records(&bytes) == expected);
}

#[test]
fn a_run_has_its_configuration_a_row_for_each_step_and_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut tracker = open(&start(folder.path(), 0), 0);
    train(&mut tracker, 1..=6, 1);
    tracker.record(&stamped(7, tested())).unwrap();
    tracker.record(&stamped(8, finished(Reason::Completed))).unwrap();
    tracker.finish().unwrap();
    let place = tracker.summary_entry(&example_events::finished()).unwrap();
    assert_eq!(place.0, "wandb sync");
    assert!(place.1.join("files").is_dir());
    let name = place.1.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("offline-run-2026") && name.ends_with("-20261120-132556-3fa2"));

    let records = decoded(&file(folder.path()));
    let numbers: Vec<i64> = records.iter().map(|record| record.num).collect();
    assert!(numbers.is_sorted() && numbers[0] == 1, "{numbers:?}");
    let run = records[1].run.clone().unwrap();
    assert_eq!((run.run_id.as_str(), run.project.as_str()), ("20261120-132556-3fa2", "animals"));
    assert_eq!(
        (run.display_name.as_str(), &run.tags[..]),
        ("small 20261120-132556-3fa2", &["a".to_owned(), "b/c".into()][..])
    );
    assert_eq!(
        (run.run_group.as_str(), run.job_type.as_str(), run.entity.as_str()),
        ("", "train", "")
    );
    let config = run.config.unwrap().update;
    assert_eq!(config[0], item("train", r#"{"epochs":2}"#.to_owned()));
    assert_eq!(records.last().unwrap().exit.unwrap(), Exit { exit_code: 0, runtime: 7 });

    let rows = rows(&file(folder.path()));
    assert_eq!(rows.iter().map(|row| row.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(rows[2].metrics["train/loss"], 1.0 / 3.0);
    assert!(rows[2].metrics["grad_norm"].is_nan());
    assert_eq!((rows[2].timestamp, rows[2].runtime), (1_796_007_003.0, 2.0));
    assert_eq!(rows[1].metrics["val/loss"], 0.55);
    // Tested was an earlier step than the last, but a row cannot be added to.
    assert_eq!(rows[5].metrics["test/accuracy"], 0.7);
    let names: BTreeSet<&str> = rows[5].metrics.keys().map(String::as_str).collect();
    let expected = ["epoch", "grad_norm", "lr", "samples_per_second", "test/accuracy"];
    let expected = expected.into_iter().chain(["train/accuracy", "train/loss"]);
    assert_eq!(names, expected.chain(["val/accuracy", "val/loss"]).collect());
}

#[test]
fn a_run_says_how_it_ended() {
    for (event, expected) in [
        (finished(Reason::EarlyStopped), 0),
        (finished(Reason::Stopped), 255),
        (Event::Failed { rank: crate::units::Rank(0), step: 2, message: "no memory".into() }, 1),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut tracker = open(&start(folder.path(), 0), 0);
        train(&mut tracker, 1..=2, 0);
        tracker.record(&stamped(2, event)).unwrap();
        tracker.finish().unwrap();
        let records = decoded(&file(folder.path()));
        assert_eq!(records.last().unwrap().exit.unwrap().exit_code, expected);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut tracker = open(&start(folder.path(), 0), 0);
    train(&mut tracker, 1..=2, 0);
    tracker.finish().unwrap();
    let records = decoded(&file(folder.path()));
    assert!(records.iter().all(|record| record.exit.is_none()), "it goes on, or has failed");
    assert_eq!(rows(&file(folder.path())).len(), 2);
}

#[test]
fn a_resumed_run_has_each_step_once_under_the_same_id() {
    let expected = undisturbed();
    // Killed after a row, saved after its evaluation, stopped, ended without a word.
    for (last, ended, resumed_from) in
        [(5, None, 2), (4, None, 4), (4, Some(Reason::Stopped), 4), (3, Some(Reason::Abandoned), 2)]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut first = open(&start(folder.path(), 0), 0);
        train(&mut first, 1..=last, 0);
        if let Some(reason) = ended {
            first.record(&stamped(last as i64, finished(reason))).unwrap();
            first.finish().unwrap();
        }
        let known = path(folder.path());
        files::write_atomic(&known.with_extension("wandb.synced"), b"").unwrap();
        drop(first);
        let mut second = open(&start(folder.path(), resumed_from), 1000);
        assert_eq!(path(folder.path()), known);
        assert!(!known.with_extension("wandb.synced").exists(), "it has news");
        train(&mut second, resumed_from + 1..=6, 1010);
        second.finish().unwrap();
        let rows = rows(&file(folder.path()));
        assert_eq!(shown(&rows), expected, "{last} {ended:?} {resumed_from}");
        // The pause does not count.
        assert_eq!(rows[5].runtime, (resumed_from - 1) as f64 + (5 - resumed_from) as f64);
        let records = decoded(&file(folder.path()));
        let runs: Vec<RunRecord> = records.into_iter().filter_map(|record| record.run).collect();
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].start_time.unwrap().seconds, second_of_the_first_start());
    }
}

fn second_of_the_first_start() -> i64 {
    second(0).as_second()
}

#[test]
fn an_evaluation_that_was_broken_off_is_in_the_row_of_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = open(&start(folder.path(), 0), 0);
    train(&mut first, 1..=3, 0);
    first.record(&stamped(4, Event::StepDone(example_events::step_done(4)))).unwrap();
    first.finish().unwrap();
    drop(first);
    let mut second = open(&start(folder.path(), 4), 1000);
    second.record(&stamped(1001, Event::Evaluated(example_events::evaluated(4)))).unwrap();
    second.finish().unwrap();
    let rows = rows(&file(folder.path()));
    assert_eq!(rows.iter().map(|row| row.step).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!((rows[3].metrics["train/loss"], rows[3].metrics["val/loss"]), (0.5, 0.55));
}

#[test]
fn a_run_that_goes_on_after_its_test_has_not_been_tested() {
    for (total_steps, expected) in [(6, true), (8, false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut first = open(&start(folder.path(), 0), 0);
        train(&mut first, 1..=6, 0);
        first.record(&stamped(6, tested())).unwrap();
        first.record(&stamped(6, finished(Reason::Completed))).unwrap();
        drop(first);
        let resumed = SinkStart { total_steps, ..start(folder.path(), 6) };
        let mut second = open(&resumed, 1000);
        second.finish().unwrap();
        let rows = rows(&file(folder.path()));
        assert_eq!(rows[5].metrics.contains_key("test/accuracy"), expected);
    }
}

#[test]
fn a_run_that_begins_anew_keeps_nothing_but_its_id() {
    let folder = tempfile::tempdir().unwrap();
    train(&mut open(&start(folder.path(), 0), 0), 1..=5, 0);
    let known = path(folder.path());
    let mut again = open(&start(folder.path(), 0), 50);
    train(&mut again, 1..=6, 51);
    again.finish().unwrap();
    assert_eq!(path(folder.path()), known);
    assert_eq!(shown(&rows(&file(folder.path()))), undisturbed());
}

#[test]
fn a_file_that_ends_anywhere_or_is_damaged_has_its_rows_up_to_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut tracker = open(&start(folder.path(), 0), 0);
    train(&mut tracker, 1..=6, 0);
    tracker.record(&stamped(6, finished(Reason::Completed))).unwrap();
    let whole = file(folder.path());
    let all = read(&whole);
    let mut counts = BTreeSet::new();
    for length in 0..=whole.len() {
        let found = records(&whole[..length]);
        assert_eq!(found[..], all[..found.len()]);
        counts.insert(found.len());
        let kept = EarlierRecords::of(found, 6, false);
        let last = kept.row.map_or(0, |row| row.step);
        assert!(kept.records.len() <= all.len() && last <= 6);
    }
    assert_eq!(counts, (0..=all.len()).collect());
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        let found = records(&damaged);
        assert!(found.len() < all.len() && found[..] == all[..found.len()], "byte {at}");
    }
}

#[test]
fn a_run_resumes_from_a_file_that_was_cut_short_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    train(&mut open(&start(folder.path(), 0), 0), 1..=6, 0);
    let whole = file(folder.path());
    let known = path(folder.path());
    let expected = undisturbed();
    for length in (0..whole.len()).step_by(61).chain([whole.len() - 1, whole.len()]) {
        files::write_atomic(&known, &whole[..length]).unwrap();
        let kept = rows_and_last(&whole[..length], 4);
        let mut tracker = open(&start(folder.path(), 4), 1000);
        train(&mut tracker, 5..=6, 1001);
        tracker.finish().unwrap();
        let shown = shown(&rows(&file(folder.path())));
        assert_eq!(shown.len(), kept + 2, "{length}");
        assert_eq!(shown[kept..], expected[4..], "{length}");
        if kept == 4 && whole.len() - length < 100 {
            assert_eq!(shown, expected);
        }
    }
}

/// Number of steps up to `until` of which a part of a file knows something.
fn rows_and_last(part: &[u8], until: u64) -> usize {
    let records = records(part).into_iter().map(|bytes| Record::decode(&bytes[..]).unwrap());
    let summaries = records.filter_map(|record| Row::read(&record.summary?.update));
    summaries.map(|row| row.step).filter(|step| *step <= until).collect::<BTreeSet<_>>().len()
}

#[test]
fn a_trial_has_the_group_of_its_sweep_and_an_id_of_its_own() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let runs = folders.each_ref().map(|folder| {
        let mut start = SinkStart { sweep: Some("tune".into()), ..start(folder.path(), 0) };
        start.run.id = "trial-0001".into();
        drop(open(&start, 0));
        // A second start of the trial.
        start.resumed_from = 2;
        drop(open(&start, 10));
        decoded(&file(folder.path()))[1].run.clone().unwrap()
    });
    for run in &runs {
        assert_eq!(
            (run.run_group.as_str(), run.display_name.as_str()),
            ("tune", "tune trial-0001")
        );
        assert!(run.run_id.starts_with("tune-trial-0001-"), "{}", run.run_id);
    }
    assert_ne!(runs[0].run_id, runs[1].run_id);
}

#[test]
fn numbers_are_written_as_python_reads_them() {
    let values = [1.0, 0.1, 1e-7, -3.5e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let text = values.map(number);
    assert_eq!(text, ["1.0", "0.1", "1e-7", "-3.5e+300", "NaN", "Infinity", "-Infinity"]);
    for (value_of, text) in values.into_iter().zip(&text) {
        assert!(value(text) == value_of || value_of.is_nan() && value(text).is_nan(), "{text}");
    }
}
