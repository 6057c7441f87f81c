//! `mlflow` in `logging.sinks`
//!
//! MLflow's REST API (`/api/2.0/mlflow`, the same in versions 1 to 3): a run is found by its tag
//! `ddprun.run`, so that a resumed run goes on with its curves; numbers are sent in batches.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use ureq::Agent;

use super::tensorboard::scalars;
use crate::config::kind::Kind;
use crate::config::leaves_of;
use crate::event::{Event, Finished, Reason};
use crate::launch::rank_env;
use crate::record::sink::{Delivery, OpenSink, Sink, SinkStart, Stamped};
use crate::record::{Error, to_stderr};

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two batches, and how many numbers one has at most, which is the server's limit.
const INTERVAL: Duration = Duration::from_secs(2);
const BATCH: usize = 1000;
/// Parameters of one request, and characters of a value: limits of the server.
const N_PARAMS: usize = 100;
const VALUE: usize = 500;
/// Most numbers that are kept while the server does not answer; older ones are dropped.
const MAX_WAITING: usize = 50_000;
/// The tag that tells a run.
const TAG: &str = "ddprun.run";

/// a tracking server of MLflow: `mlflow server`. It gets all numbers of `metrics.csv`, the
/// configuration as parameters, tags, and how the run ended. A server that does not answer costs no
/// step. A password is taken from `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`, or
/// `MLFLOW_TRACKING_TOKEN`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mlflow {
    /// address of the server. Default: `MLFLOW_TRACKING_URI`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"http://127.0.0.1:5000")]
    pub tracking_uri: Option<String>,
    /// experiment on the server, made if needed. Default: `experiment.name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"animals")]
    pub experiment: Option<String>,
}

impl Kind for Mlflow {
    const NAME: &'static str = "mlflow";
}

impl Sink for Mlflow {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        let uri = self.tracking_uri.clone().or_else(|| rank_env::variable("MLFLOW_TRACKING_URI"));
        let Some(uri) = uri.filter(|uri| uri.starts_with("http")) else {
            let why = "no address of a server: set `tracking_uri` in `logging.sinks`, or `MLFLOW_TRACKING_URI`";
            return Err(failed("reach", "mlflow", why));
        };
        let server = Server::new(&uri);
        let experiment = self.experiment.as_deref().unwrap_or(&start.name).to_owned();
        let tracker = Tracker {
            server,
            experiment,
            start: start.clone(),
            run: None,
            waiting: Vec::new(),
            sent: Instant::now(),
            has_warned: false,
        };
        Ok(Box::new(tracker))
    }

    fn delivery(&self) -> Delivery {
        Delivery::BestEffort
    }
}

/// A tracking server.
struct Server {
    uri: String,
    agent: Agent,
    /// Value of the header `Authorization`.
    authorization: Option<String>,
}

/// A request that failed: MLflow's error code, empty if there was no answer, and words for the user.
#[derive(Debug)]
struct Failure {
    code: String,
    words: String,
}

impl Server {
    fn new(uri: &str) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .user_agent(concat!("ddprun/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let word = rank_env::variable;
        let basic = word("MLFLOW_TRACKING_USERNAME").map(|name| {
            let password = word("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
            basic(&name, &password)
        });
        let token = word("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        Self { uri: uri.trim_end_matches('/').to_owned(), agent, authorization: basic.or(token) }
    }

    fn post(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        let mut request = self.agent.post(format!("{}/api/2.0/mlflow/{method}", self.uri));
        request = request.header("Content-Type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let unreached =
            |error: ureq::Error| Failure { code: String::new(), words: error.to_string() };
        let mut answer = request.send(body.to_string()).map_err(unreached)?;
        let text = answer.body_mut().read_to_string().map_err(unreached)?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        if answer.status().is_success() {
            return Ok(value);
        }
        let word =
            |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let message = word("message");
        let line = message.lines().next().unwrap_or_default();
        Err(Failure {
            code: word("error_code"),
            words: format!("it answers {} {line}", answer.status()),
        })
    }
}

/// A run on the server.
struct Tracker {
    server: Server,
    experiment: String,
    start: SinkStart,
    /// The id that the server gave the run, once it has answered.
    run: Option<String>,
    /// Numbers that were not sent yet.
    waiting: Vec<Value>,
    /// Time of the last attempt to send.
    sent: Instant,
    /// True once a warning was printed about a server that does not answer.
    has_warned: bool,
}

impl OpenSink for Tracker {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        if let Some((step, points)) = scalars(&stamped.event) {
            let time = stamped.time.as_millisecond();
            // JSON has no NaN.
            let finite = points.into_iter().filter(|(_, value)| value.is_finite());
            self.waiting.extend(finite.map(
                |(key, value)| json!({"key": key, "value": value, "timestamp": time, "step": step}),
            ));
        }
        let status = match &stamped.event {
            Event::Finished(finished) => Some(match finished.reason {
                Reason::Completed | Reason::EarlyStopped | Reason::OutOfTime => "FINISHED",
                Reason::Stopped | Reason::Abandoned => "KILLED",
            }),
            Event::Failed { .. } => Some("FAILED"),
            _ => None,
        };
        let is_due =
            self.run.is_none() || self.sent.elapsed() >= INTERVAL || self.waiting.len() >= BATCH;
        if status.is_none() && !is_due {
            return Ok(());
        }
        let sent = self.send(status, stamped.time.as_millisecond());
        self.sent = Instant::now();
        match sent {
            Ok(()) => self.has_warned = false,
            Err(failure) if status.is_some() => {
                return Err(failed("reach", &self.server.uri, &failure.words));
            }
            Err(failure) => self.keep(&failure),
        }
        Ok(())
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        Some(("mlflow", PathBuf::from(&self.server.uri)))
    }
}

impl Tracker {
    /// Sends what waits, and how the run has ended, if it has.
    fn send(&mut self, status: Option<&str>, time: i64) -> Result<(), Failure> {
        let run = match &self.run {
            Some(run) => run.clone(),
            None => self.run.insert(self.open_run(time)?).clone(),
        };
        while !self.waiting.is_empty() {
            let n = self.waiting.len().min(BATCH);
            let body = json!({"run_id": run, "metrics": self.waiting[..n]});
            self.server.post("runs/log-batch", &body)?;
            self.waiting.drain(..n);
        }
        if let Some(status) = status {
            let body = json!({"run_id": run, "status": status, "end_time": time});
            self.server.post("runs/update", &body)?;
        }
        Ok(())
    }

    /// Finds the run of an earlier start, or makes it, and tells its configuration.
    fn open_run(&self, time: i64) -> Result<String, Failure> {
        let id = self.experiment_id()?;
        let filter = format!("tags.`{TAG}` = '{}'", self.start.run.id);
        let body = json!({"experiment_ids": [id], "filter": filter, "max_results": 1});
        let found = self.server.post("runs/search", &body)?;
        if let Some(run) = text_at(&found, "/runs/0/info/run_id") {
            self.server.post("runs/update", &json!({"run_id": run, "status": "RUNNING"}))?;
            return Ok(run);
        }
        let own = [(TAG, self.start.run.id.as_str()), ("mlflow.source.name", "ddprun")];
        let own = own.into_iter().map(|(key, value)| json!({"key": key, "value": value}));
        let tags = self.start.tags.iter().map(|tag| json!({"key": tag, "value": "true"}));
        let body = json!({
            "experiment_id": id,
            "run_name": format!("{} {}", self.start.name, self.start.run.id),
            "start_time": time,
            "tags": own.chain(tags).collect::<Vec<_>>(),
        });
        let made = self.server.post("runs/create", &body)?;
        let run = text_at(&made, "/run/info/run_id").ok_or_else(|| Failure {
            code: String::new(),
            words: "its answer has no run: is it a server of MLflow?".to_owned(),
        })?;
        for params in params(&self.start.config).chunks(N_PARAMS) {
            self.server.post("runs/log-batch", &json!({"run_id": run, "params": params}))?;
        }
        Ok(run)
    }

    fn experiment_id(&self) -> Result<String, Failure> {
        let name = &self.experiment;
        let made = self.server.post("experiments/create", &json!({ "name": name }));
        match made {
            Ok(made) => Ok(text_at(&made, "/experiment_id").unwrap_or_default()),
            Err(failure) if failure.code == "RESOURCE_ALREADY_EXISTS" => {
                let filter = format!("name = '{}'", name.replace('\'', "\\'"));
                let body = json!({"filter": filter, "max_results": 1, "view_type": "ACTIVE_ONLY"});
                let found = self.server.post("experiments/search", &body)?;
                text_at(&found, "/experiments/0/experiment_id").ok_or(failure)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Keeps what could not be sent, and says so once.
    fn keep(&mut self, failure: &Failure) {
        if !std::mem::replace(&mut self.has_warned, true) {
            to_stderr(&format!(
                "warning: `mlflow`: {} cannot be reached: {}; numbers are kept, and sent once it answers",
                self.server.uri, failure.words
            ));
        }
        let surplus = self.waiting.len().saturating_sub(MAX_WAITING);
        self.waiting.drain(..surplus);
    }
}

/// The configuration by dotted keys, as parameters.
fn params(config: &Map<String, Value>) -> Vec<Value> {
    let leaves = leaves_of(Value::Object(config.clone())).into_iter();
    let params = leaves.map(|(key, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let text: String = text.chars().take(VALUE).collect();
        json!({"key": key, "value": text})
    });
    params.collect()
}

/// The text at a JSON pointer.
fn text_at(value: &Value, pointer: &str) -> Option<String> {
    Some(value.pointer(pointer)?.as_str()?.to_owned())
}

/// Value of the header `Authorization` for a name and a password.
fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")))
}

fn failed(action: &'static str, what: &str, why: &str) -> Error {
    Error::io(action, what.as_ref(), std::io::Error::other(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::plan::RunFolders;
    use crate::record::example_events;

    type Requests = Arc<Mutex<Vec<(String, Value)>>>;

    /// A server of MLflow that knows one run; its first `n_failures` answers are 500. Returns its
    /// address, and the requests that it has answered.
    fn server(mut n_failures: usize, knows_run: bool) -> (String, Requests) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Requests::default();
        let answered = requests.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                reader.read_line(&mut head).unwrap();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim().to_lowercase();
                    if line.is_empty() {
                        break;
                    }
                    if let Some(found) = line.strip_prefix("content-length: ") {
                        length = found.parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let method = head.split(' ').nth(1).unwrap().replace("/api/2.0/mlflow/", "");
                let (status, answer) = match method.as_str() {
                    _ if n_failures > 0 => {
                        n_failures -= 1;
                        (500, json!({"error_code": "INTERNAL_ERROR", "message": "no disk"}))
                    }
                    "experiments/create" => {
                        (400, json!({"error_code": "RESOURCE_ALREADY_EXISTS", "message": ""}))
                    }
                    "experiments/search" => (200, json!({"experiments": [{"experiment_id": "7"}]})),
                    "runs/search" if knows_run => {
                        (200, json!({"runs": [{"info": {"run_id": "old"}}]}))
                    }
                    "runs/create" => (200, json!({"run": {"info": {"run_id": "new"}}})),
                    _ => (200, json!({})),
                };
                if status != 500 {
                    let body = serde_json::from_slice(&body).unwrap();
                    answered.lock().unwrap().push((method, body));
                }
                let answer = answer.to_string();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                    answer.len()
                );
                stream.write_all((head + &answer).as_bytes()).unwrap();
            }
        });
        (address, requests)
    }

    /// Records steps 1 to 3 and the end of a run.
    fn record(uri: String) -> Result<(), Error> {
        let run = RunFolders { id: "r".into(), logs: "l".into(), checkpoints: "c".into() };
        let config = json!({"train": {"epochs": 2}}).as_object().unwrap().clone();
        let start = SinkStart { run, name: "small".into(), config, ..SinkStart::default() };
        let mut sink = Mlflow { tracking_uri: Some(uri), experiment: None }.open(&start)?;
        let at = |step, event| Stamped { time: jiff::Timestamp::UNIX_EPOCH, step, event };
        for step in 1..=3 {
            let mut done = example_events::step_done(step);
            done.grad_norm = f64::NAN;
            sink.record(&at(step, Event::StepDone(done)))?;
        }
        sink.record(&at(3, Event::Finished(example_events::finished())))
    }

    #[test]
    fn a_run_has_its_configuration_numbers_and_end_on_the_server() {
        let (uri, requests) = server(0, false);
        record(uri).unwrap();
        let requests = requests.lock().unwrap();
        let of = |method: &str| {
            requests
                .iter()
                .filter(|(name, _)| name == method)
                .map(|(_, body)| body)
                .collect::<Vec<_>>()
        };
        let made = of("runs/create")[0];
        assert_eq!(made["experiment_id"], json!("7"));
        assert_eq!(made["tags"][0], json!({"key": "ddprun.run", "value": "r"}));
        let batches = of("runs/log-batch");
        assert_eq!(batches[0]["params"], json!([{"key": "train.epochs", "value": "2"}]));
        let metrics: Vec<&Value> =
            batches.iter().filter_map(|batch| batch["metrics"].as_array()).flatten().collect();
        let losses = metrics.iter().filter(|metric| metric["key"] == "train/loss");
        assert_eq!(
            losses.map(|metric| metric["step"].as_u64().unwrap()).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert!(metrics.iter().all(|metric| metric["value"].is_number()), "{metrics:?}");
        assert_eq!(of("runs/update")[0]["status"], json!("FINISHED"));
    }

    #[test]
    fn a_resumed_run_goes_on_in_the_run_of_the_server() {
        let (uri, requests) = server(0, true);
        record(uri).unwrap();
        let requests = requests.lock().unwrap();
        assert!(!requests.iter().any(|(method, _)| method == "runs/create"), "{requests:?}");
        let updates: Vec<&Value> = requests
            .iter()
            .filter(|(method, _)| method == "runs/update")
            .map(|(_, body)| &body["status"])
            .collect();
        assert_eq!(updates, [&json!("RUNNING"), &json!("FINISHED")]);
    }

    #[test]
    fn numbers_are_kept_while_the_server_fails_and_its_end_is_told_if_it_never_answers() {
        let (uri, requests) = server(2, false);
        record(uri).unwrap();
        let requests = requests.lock().unwrap();
        let n_losses = requests.iter().filter_map(|(_, body)| body["metrics"].as_array()).flatten();
        assert_eq!(n_losses.filter(|metric| metric["key"] == "train/loss").count(), 3);
        let (uri, _) = server(usize::MAX, false);
        let error = record(uri.clone()).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(error.to_string(), format!("cannot reach `{uri}`"));
        assert_eq!(cause, "it answers 500 Internal Server Error no disk");
    }

    #[test]
    fn a_configuration_is_a_list_of_dotted_keys() {
        let config = json!({"train": {"epochs": 2, "time": null}, "data": {"name": "csv", "splits": [1, 2]}});
        let found = params(config.as_object().unwrap());
        let found: Vec<String> = found
            .iter()
            .map(|param| {
                format!("{}={}", param["key"].as_str().unwrap(), param["value"].as_str().unwrap())
            })
            .collect();
        assert_eq!(found, ["data.name=csv", "data.splits=[1,2]", "train.epochs=2"]);
    }

    #[test]
    fn a_password_is_sent_as_http_says() {
        // The example of RFC 7617.
        assert_eq!(basic("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }
}
