//! Sinks of a user's program: a table in Markdown, a tracker behind a network.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;

use ddprun::config::kind::Choice;
use ddprun::event::{Evaluated, Event};
use ddprun::record::{Delivery, SinkStart, Stamped};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{custom_sink, custom_tracker};

fn evaluated(step: u64, loss: f64) -> Stamped {
    let metrics = [("val/loss".to_owned(), loss), ("val/accuracy".to_owned(), 0.5)].into();
    let event = Event::Evaluated(Evaluated { step, epoch: 1, metrics, samples: 8 });
    Stamped { time: Timestamp::UNIX_EPOCH, step, event }
}

#[test]
fn a_users_sink_leaves_out_what_a_resumed_run_says_again() {
    let (kinds, folder) = (custom_sink::kinds(), tempfile::tempdir().expect("a folder"));
    let mut chosen = Choice::named("markdown");
    chosen.set("decimals", 2);
    let sink = kinds.sinks.build(&chosen).expect("it is registered");
    assert_eq!(sink.delivery(), Delivery::Lossless);
    let say = |resumed_from: u64, rows: &[(u64, f64)]| {
        let metrics = vec!["accuracy".to_owned()];
        let mut start =
            SinkStart { resumed_from, total_steps: 30, metrics, ..SinkStart::default() };
        start.run.logs = folder.path().to_owned();
        let mut open = sink.open(&start).expect("a file");
        for &(step, loss) in rows {
            open.record(&evaluated(step, loss)).expect("a row");
        }
        std::fs::read_to_string(open.file().expect("its file")).expect("a table")
    };
    say(0, &[(10, 0.75), (20, 0.5)]);
    let table = say(10, &[(20, 0.25)]);
    let head = "| step | val/loss | val/accuracy |\n|---|---|---|\n";
    assert_eq!(table, format!("{head}| 10 | 0.75 | 0.50 |\n| 20 | 0.25 | 0.50 |\n"));
}

#[test]
fn a_users_tracker_is_told_what_the_run_is() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut chosen = Choice::named("tracker");
    chosen.set("server", listener.local_addr().expect("its address").to_string());
    let sink = custom_tracker::kinds().sinks.build(&chosen).expect("it is registered");
    assert_eq!(sink.delivery(), Delivery::BestEffort);
    let config = json!({ "optimizer": { "lr": 0.1 } });
    let mut start = SinkStart {
        name: "shapes".to_owned(),
        tags: vec!["baseline".to_owned()],
        config: config.as_object().expect("a table").clone(),
        ..SinkStart::default()
    };
    start.run.id = "20260101-120000-3fa2".to_owned();
    let mut open = sink.open(&start).expect("the server listens");
    open.record(&evaluated(10, 0.75)).expect("the server listens");
    drop(open);
    let (stream, _) = listener.accept().expect("a connection");
    let lines = BufReader::new(stream).lines();
    let lines = lines.map(|line| serde_json::from_str(&line.expect("text")).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    let head = &lines[0];
    assert_eq!([&head["run"], &head["name"]], ["20260101-120000-3fa2", "shapes"]);
    assert_eq!((&head["tags"], &head["config"]), (&json!(["baseline"]), &config));
    let metrics = json!({ "val/loss": 0.75, "val/accuracy": 0.5 });
    assert_eq!(lines[1..], [json!({ "step": 10, "metrics": metrics })]);
}
