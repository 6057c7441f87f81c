//! Runs -> the text that Prometheus scrapes: its exposition format 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>). Pure.

use std::cmp::Reverse;
use std::fmt::Write as _;

use crate::catalog::Census;
use crate::overview::RunView;
use crate::runs::State;

/// Media type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Most runs with series of their own.
const MAX_RUNS: usize = 1000;

/// A number of a run, and what it is.
struct Gauge {
    name: &'static str,
    help: &'static str,
    value: fn(&RunView) -> Option<f64>,
}

const LOSS: &str = "train/loss";
const LEARNING_RATE: &str = "lr";
const SPEED: &str = "samples_per_second";

const GAUGES: [Gauge; 9] = [
    Gauge {
        name: "ddprun_run_step",
        help: "Training steps that are finished.",
        value: |run| Some(run.step as f64),
    },
    Gauge {
        name: "ddprun_run_total_steps",
        help: "Training steps of the whole run; absent if time ends it.",
        value: |run| run.total_steps.map(|steps| steps as f64),
    },
    Gauge {
        name: "ddprun_run_epoch",
        help: "Epoch of the last finished step, from 1.",
        value: |run| Some(run.epoch as f64),
    },
    Gauge {
        name: "ddprun_run_epochs",
        help: "Epochs of the whole run; absent if time ends it.",
        value: |run| run.epochs.map(|epochs| epochs as f64),
    },
    Gauge {
        name: "ddprun_run_loss",
        help: "Training loss of the last recorded step.",
        value: |run| last(run, LOSS),
    },
    Gauge {
        name: "ddprun_run_learning_rate",
        help: "Learning rate of the last recorded step.",
        value: |run| last(run, LEARNING_RATE),
    },
    Gauge {
        name: "ddprun_run_samples_per_second",
        help: "Training samples per second, over all ranks.",
        value: |run| last(run, SPEED),
    },
    Gauge {
        name: "ddprun_run_start_timestamp_seconds",
        help: "Unix time at which the run was first started.",
        value: |run| seconds(run.started),
    },
    Gauge {
        name: "ddprun_run_last_event_timestamp_seconds",
        help: "Unix time of the last event of the run.",
        value: |run| seconds(run.updated),
    },
];

/// The last finite value of a column of `metrics.csv`.
fn last(run: &RunView, column: &str) -> Option<f64> {
    run.metrics.get(column)?.last
}

/// Seconds of these milliseconds since 1970; 0 is not known.
fn seconds(milliseconds: i64) -> Option<f64> {
    (milliseconds > 0).then_some(milliseconds as f64 / 1000.0)
}

/// The whole answer: those who run first, then the newest, up to [`MAX_RUNS`].
pub(crate) fn exposition(census: &Census<'_>) -> String {
    let mut runs = census.runs.clone();
    runs.sort_by_key(|(run, state)| (*state != State::Running, Reverse(run.started)));
    let beyond = runs.len().saturating_sub(MAX_RUNS);
    runs.truncate(MAX_RUNS);
    let mut text = Text::default();
    text.family("ddprun_runs", "Runs by state.");
    for state in State::ALL {
        let count = census.runs.iter().filter(|(_, other)| *other == state).count();
        text.sample("ddprun_runs", &[("state", state.word())], count as f64);
    }
    let name = "ddprun_runs_without_series";
    text.family(name, "Runs without series of their own, by the reason.");
    let reasons = [("limit", beyond), ("unreadable", census.unreadable), ("unread", census.unread)];
    for (reason, count) in reasons {
        text.sample(name, &[("reason", reason)], count as f64);
    }
    text.family("ddprun_run_state", "1 for the state that the run is in, 0 for the others.");
    for (run, state) in &runs {
        let [id, experiment] = labels(run);
        for other in State::ALL {
            let value = f64::from(u8::from(other == *state));
            text.sample("ddprun_run_state", &[id, experiment, ("state", other.word())], value);
        }
    }
    for Gauge { name, help, value } in GAUGES {
        text.family(name, help);
        for (run, _) in &runs {
            if let Some(value) = value(run) {
                text.sample(name, &labels(run), value);
            }
        }
    }
    text.family("ddprun_run_metric", "Last value of each other metric of the run.");
    for (run, _) in &runs {
        let [id, experiment] = labels(run);
        let own = [LOSS, LEARNING_RATE, SPEED];
        for (metric, extent) in run.metrics.iter().filter(|(name, _)| !own.contains(&&***name)) {
            if let Some(value) = extent.last {
                text.sample("ddprun_run_metric", &[id, experiment, ("metric", metric)], value);
            }
        }
    }
    text.0
}

type Label<'a> = (&'static str, &'a str);

/// The run is named by its folder below the served one, which no other has.
fn labels(run: &RunView) -> [Label<'_>; 2] {
    let id = if run.id == "." { &run.run } else { &run.id };
    [("run", id), ("experiment", &run.name)]
}

/// Lines of the format.
#[derive(Default)]
struct Text(String);

impl Text {
    /// The head of all samples of one name, which must stand together.
    fn family(&mut self, name: &str, help: &str) {
        // A string takes all that is written.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge\n");
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: f64) {
        self.0 += name;
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"");
            for letter in text.chars() {
                match letter {
                    '\\' => self.0 += r"\\",
                    '"' => self.0 += "\\\"",
                    '\n' => self.0 += r"\n",
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
        }
        let _ = writeln!(self.0, "}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::curve::Extent;

    fn run(id: &str, name: &str, started: i64) -> RunView {
        let extent = |last: f64| Extent { last: Some(last), min: Some(0.0), max: Some(last) };
        let metrics = [
            (LOSS, extent(0.25)),
            (LEARNING_RATE, extent(1e-7)),
            (SPEED, extent(1234.5)),
            ("val/accuracy", extent(0.5)),
            ("val/loss", Extent::default()),
        ];
        RunView {
            id: id.to_owned(),
            name: name.to_owned(),
            run: "20261130-010203-abcd".to_owned(),
            sweep: None,
            folder: format!("logs/{id}"),
            state: State::Running,
            reason: None,
            step: 7,
            total_steps: None,
            steps_per_epoch: 3,
            epoch: 2,
            epochs: Some(4),
            started,
            updated: started + 500,
            seconds: 1.0,
            devices: vec![],
            tags: vec![],
            problem: None,
            monitor: None,
            series: vec![],
            metrics: metrics.map(|(name, extent)| (name.to_owned(), extent)).into(),
            config: BTreeMap::new(),
        }
    }

    #[test]
    fn a_run_has_each_number_once_and_what_is_not_known_is_left_out() {
        let view = run("a/1", "a", 1_700_000_000_000);
        let census = Census { runs: vec![(&view, State::Failed)], unreadable: 1, unread: 0 };
        let text = exposition(&census);
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("ddprun_run_")).collect();
        assert_eq!(
            lines,
            [
                r#"ddprun_run_state{run="a/1",experiment="a",state="running"} 0"#,
                r#"ddprun_run_state{run="a/1",experiment="a",state="finished"} 0"#,
                r#"ddprun_run_state{run="a/1",experiment="a",state="stopped"} 0"#,
                r#"ddprun_run_state{run="a/1",experiment="a",state="failed"} 1"#,
                r#"ddprun_run_state{run="a/1",experiment="a",state="killed"} 0"#,
                r#"ddprun_run_state{run="a/1",experiment="a",state="pruned"} 0"#,
                r#"ddprun_run_step{run="a/1",experiment="a"} 7"#,
                r#"ddprun_run_epoch{run="a/1",experiment="a"} 2"#,
                r#"ddprun_run_epochs{run="a/1",experiment="a"} 4"#,
                r#"ddprun_run_loss{run="a/1",experiment="a"} 0.25"#,
                r#"ddprun_run_learning_rate{run="a/1",experiment="a"} 0.0000001"#,
                r#"ddprun_run_samples_per_second{run="a/1",experiment="a"} 1234.5"#,
                r#"ddprun_run_start_timestamp_seconds{run="a/1",experiment="a"} 1700000000"#,
                r#"ddprun_run_last_event_timestamp_seconds{run="a/1",experiment="a"} 1700000000.5"#,
                r#"ddprun_run_metric{run="a/1",experiment="a",metric="val/accuracy"} 0.5"#,
            ]
        );
        assert!(text.contains("ddprun_runs{state=\"failed\"} 1\n"), "{text}");
        assert!(text.contains("ddprun_runs_without_series{reason=\"unreadable\"} 1\n"), "{text}");
    }

    #[test]
    fn labels_are_escaped_and_a_run_that_is_served_alone_has_its_name() {
        let views = [run("a\"b\\c\nd", "é", 1), run(".", "x", 2)];
        let runs = views.iter().map(|view| (view, State::Running)).collect();
        let text = exposition(&Census { runs, unreadable: 0, unread: 0 });
        let line = "ddprun_run_step{run=\"a\\\"b\\\\c\\nd\",experiment=\"é\"} 7\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("{run=\"20261130-010203-abcd\",experiment=\"x\"}"), "{text}");
    }

    #[test]
    fn of_very_many_runs_those_that_run_and_the_newest_are_told() {
        let views: Vec<RunView> =
            (0..MAX_RUNS + 5).map(|index| run(&index.to_string(), "a", index as i64)).collect();
        let state = |index: usize| if index == 0 { State::Running } else { State::Finished };
        let runs = views.iter().enumerate().map(|(index, view)| (view, state(index))).collect();
        let text = exposition(&Census { runs, unreadable: 0, unread: 2 });
        let has = |id: usize| text.contains(&format!("ddprun_run_step{{run=\"{id}\","));
        assert!(has(0) && !has(1) && !has(5) && has(6) && has(MAX_RUNS + 4));
        assert!(text.contains("ddprun_runs_without_series{reason=\"limit\"} 5\n"), "{text:.900}");
        assert!(text.contains("ddprun_runs_without_series{reason=\"unread\"} 2\n"));
        assert!(text.contains("ddprun_runs{state=\"finished\"} 1004\n"));
        assert!(text.len() < 3 << 20, "{} bytes", text.len());
    }
}
