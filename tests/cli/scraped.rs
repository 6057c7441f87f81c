//! `/metrics` of `ddprun serve`: what Prometheus scrapes, checked by parsers of others where there
//! are any, and over a thousand runs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::experiments::BASE;
use crate::harness::lab::{Lab, children};
use crate::harness::running::{Running, until};
use crate::skipped;

/// A server of the lab's runs, which ends with the test.
struct Server {
    running: Running,
    port: u16,
    token: String,
}

impl Server {
    fn start(lab: &Lab, words: &[&str]) -> Self {
        let running = lab.start(&[&["serve", "--port", "0"], words].concat());
        until("an address", || running.stdout().contains('\n'));
        let address = running.stdout().trim().to_owned();
        let (place, token) = address.split_once("/?token=").unwrap();
        let port = place.rsplit_once(':').unwrap().1.parse().unwrap();
        Self { port, token: token.to_owned(), running }
    }

    /// The head and the body of the answer.
    fn get(&self, path: &str, header: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn scrape(&self) -> String {
        let header = format!("Authorization: Bearer {}\r\n", self.token);
        let (head, body) = self.get("/metrics", &header);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
        body
    }

    fn end(self) {
        self.running.signal(Signal::TERM);
        self.running.wait().has_code(0);
    }
}

/// The samples of a text, by their names and labels. The text must keep to the format.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let mut family = String::new();
    let mut before = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            rest.split(' ').next().unwrap().clone_into(&mut family);
            assert!(!before.contains(&family), "`{family}` is in two places");
            before.push(family.clone());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert_eq!(rest, format!("{family} gauge"));
        } else {
            assert!(line.starts_with(&format!("{family}{{")), "{line}");
            let (series, value) = line.rsplit_once(' ').unwrap();
            let labels = series.strip_suffix("\"}").unwrap();
            assert!(labels.contains("=\""), "{line}");
            let known = found.insert(series.to_owned(), value.parse().unwrap());
            assert_eq!(known, None, "{series} is there twice");
        }
    }
    assert!(text.ends_with('\n'));
    found
}

/// Gives the text to a program, which must accept it.
fn is_accepted(mut command: Command, text: &str) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
}

/// The parsers of Prometheus' own projects, where they are.
fn is_accepted_by_others(text: &str) {
    if let Some(python) = skipped::python("prometheus_client") {
        let script = "import sys\n\
            from prometheus_client.parser import text_string_to_metric_families as families\n\
            found = list(families(sys.stdin.read()))\n\
            assert len(found) >= 10, found\n\
            assert all(family.type == 'gauge' and family.samples for family in found), found\n";
        let mut command = Command::new(python);
        command.args(["-c", script]);
        is_accepted(command, text);
    }
    if Command::new("promtool").arg("--version").output().is_ok() {
        let mut command = Command::new("promtool");
        command.args(["check", "metrics"]);
        is_accepted(command, text);
    } else {
        skipped::skipped("`promtool`");
    }
}

#[test]
fn a_run_is_scraped_with_its_state_and_its_numbers() {
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    lab.write("failing.toml", BASE.replace("\"small\"", "\"failing\""));
    lab.run_with("backward=kill@1,3", &["failing.toml"]).has_code(5);
    let server = Server::start(&lab, &[]);
    let name = |experiment: &str| {
        let folder = children(&lab.path(&format!("logs/{experiment}"))).remove(0);
        let id = folder.file_name().unwrap().to_str().unwrap().to_owned();
        format!("run=\"{experiment}/{id}\",experiment=\"{experiment}\"")
    };
    let (small, failed) = (name("small"), name("failing"));
    until("both runs", || {
        samples(&server.scrape()).contains_key(&format!("ddprun_run_step{{{failed}}}"))
    });
    let text = server.scrape();
    let found = samples(&text);
    let number = |name: &str, labels: &str| found.get(&format!("{name}{{{labels}}}")).copied();
    for (state, value) in [("finished", 1.0), ("running", 0.0), ("failed", 0.0)] {
        let labels = format!("{small},state=\"{state}\"");
        assert_eq!(number("ddprun_run_state", &labels), Some(value), "{text}");
    }
    assert_eq!(number("ddprun_run_state", &format!("{failed},state=\"failed\"")), Some(1.0));
    assert_eq!(number("ddprun_runs", "state=\"finished\""), Some(1.0));
    assert_eq!(number("ddprun_runs_without_series", "reason=\"unread\""), Some(0.0));
    for (name, value) in [
        ("ddprun_run_step", 12.0),
        ("ddprun_run_total_steps", 12.0),
        ("ddprun_run_epoch", 2.0),
        ("ddprun_run_epochs", 2.0),
        ("ddprun_run_learning_rate", 1e-3),
    ] {
        assert_eq!(number(name, &small), Some(value), "{name}: {text}");
    }
    let folder = children(&lab.path("logs/small")).remove(0);
    let csv = fs::read_to_string(folder.join("metrics.csv")).unwrap();
    let mut rows = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let rows: Vec<_> = rows.collect();
    let last = |column: &str| -> f64 {
        let at = header.iter().position(|name| *name == column).unwrap();
        let mut values = rows.iter().rev().filter_map(|row| row[at].parse().ok());
        values.next().unwrap()
    };
    assert_eq!(number("ddprun_run_loss", &small), Some(last("train/loss")));
    assert_eq!(number("ddprun_run_samples_per_second", &small), Some(last("samples_per_second")));
    for metric in ["val/accuracy", "val/loss", "train/accuracy", "grad_norm"] {
        let labels = format!("{small},metric=\"{metric}\"");
        assert_eq!(number("ddprun_run_metric", &labels), Some(last(metric)), "{metric}");
    }
    let now = jiff::Timestamp::now().as_second() as f64;
    let event = number("ddprun_run_last_event_timestamp_seconds", &small).unwrap();
    let start = number("ddprun_run_start_timestamp_seconds", &small).unwrap();
    assert!(start < event && now - event < 600.0, "{start} {event} {now}");
    is_accepted_by_others(&text);
    server.end();
    lab.is_clean();
}

#[test]
fn only_who_has_the_token_may_scrape() {
    let lab = Lab::new();
    fs::create_dir(lab.path("logs")).unwrap();
    let server = Server::start(&lab, &[]);
    let token = server.token.clone();
    let other = "0".repeat(64);
    for (path, header) in [
        ("/metrics".to_owned(), String::new()),
        (format!("/metrics?token={other}"), String::new()),
        ("/metrics".to_owned(), format!("Authorization: Bearer {other}\r\n")),
        ("/metrics".to_owned(), format!("Authorization: Basic {token}\r\n")),
        // The page itself stays as it was: it is opened by its cookie.
        ("/api/overview".to_owned(), format!("Authorization: Bearer {token}\r\n")),
        (format!("/api/overview?token={token}"), String::new()),
    ] {
        let (head, _) = server.get(&path, &header);
        assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{path} {header}: {head}");
    }
    let (head, body) = server.get(&format!("/metrics?token={token}"), "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert_eq!(samples(&body)["ddprun_runs{state=\"running\"}"], 0.0);
    server.end();
}

#[test]
fn a_token_of_ones_own_stays_the_same_from_start_to_start() {
    let lab = Lab::new();
    fs::create_dir(lab.path("logs")).unwrap();
    lab.run_to(0, &["token", "serve.token"]);
    let token = fs::read_to_string(lab.path("serve.token")).unwrap();
    for _ in 0..2 {
        let server = Server::start(&lab, &["--token-file", "serve.token"]);
        assert_eq!(server.token, token.trim());
        samples(&server.scrape());
        server.end();
    }
    lab.write("open.token", &token);
    lab.run_to(2, &["serve", "--token-file", "open.token"]).says(&["open.token", "chmod 600"]);
    lab.run_to(2, &["serve", "--token-file", "absent"]).says(&["`absent`", "ddprun token"]);
}

#[test]
fn a_thousand_runs_are_scraped_in_a_moment() {
    const N_RUNS: usize = 1000;
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let first = children(&lab.path("logs/small")).remove(0);
    for index in 1..N_RUNS {
        let folder = lab.path(&format!("logs/small/20261130-010203-{index:04}"));
        fs::create_dir(&folder).unwrap();
        for name in ["run.json", "resolved.toml", "events.jsonl", "metrics.csv", "epochs.jsonl"] {
            fs::copy(first.join(name), folder.join(name)).unwrap();
        }
    }
    let server = Server::start(&lab, &[]);
    let mut text = String::new();
    until("all runs", || {
        text = server.scrape();
        samples(&text)["ddprun_runs_without_series{reason=\"unread\"}"] == 0.0
    });
    assert_eq!(text.matches("\nddprun_run_step{").count(), N_RUNS);
    assert!(text.len() < 8 << 20, "{} bytes", text.len());
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1100));
        let began = Instant::now();
        server.scrape();
        fastest = fastest.min(began.elapsed());
    }
    // A look at all files and a text of some megabytes: 0.4 s without optimisation.
    assert!(fastest < Duration::from_secs(5), "{fastest:?}");
    is_accepted_by_others(&text);
    server.end();
}
