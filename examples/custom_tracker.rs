//! Your own tracker: what a run is and says goes to a server, here as lines of JSON over TCP, so that
//! `nc -lk 7077` is one.
//!
//! ```text
//! cargo run --release --example custom_tracker -- examples/custom_tracker.toml
//! ```
//!
//! No step waits for the server. Where it is slow, away or wrong, the run says so, and goes on.

use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ddprun::config::kind::Kind;
use ddprun::event::{Event, Finished};
use ddprun::kinds::Kinds;
use ddprun::record::{Delivery, Error, OpenSink, Sink, SinkStart, Stamped};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// lines of JSON for a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tracker {
    /// host and port of the server.
    pub(crate) server: String,
    /// project that the runs belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"mnist")]
    pub(crate) project: Option<String>,
}

impl Default for Tracker {
    fn default() -> Self {
        Self { server: "127.0.0.1:7077".to_owned(), project: None }
    }
}

impl Kind for Tracker {
    const NAME: &'static str = "tracker";
}

impl Sink for Tracker {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        let connected = TcpStream::connect(&self.server);
        let stream = connected.map_err(|reason| failed("reach", &self.server, reason))?;
        let mut connection = Connection { server: self.server.clone(), stream };
        connection.send(&json!({
            "run": start.run.id,
            "name": start.name,
            "tags": start.tags,
            "project": self.project,
            "resumed_from": start.resumed_from,
            "config": start.config,
        }))?;
        Ok(Box::new(connection))
    }

    fn delivery(&self) -> Delivery {
        Delivery::BestEffort
    }
}

/// A server that listens.
struct Connection {
    server: String,
    stream: TcpStream,
}

impl Connection {
    fn send(&mut self, line: &Value) -> Result<(), Error> {
        let sent = writeln!(self.stream, "{line}");
        sent.map_err(|reason| failed("write to", &self.server, reason))
    }
}

impl OpenSink for Connection {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        let (at, metrics) = match &stamped.event {
            Event::StepDone(done) => (done.step, json!({ "train/loss": done.loss, "lr": done.lr })),
            Event::Evaluated(at) | Event::Tested(at) => (at.step, json!(at.metrics)),
            Event::Finished(done) => (done.step, json!({ "seconds": done.seconds })),
            _ => return Ok(()),
        };
        self.send(&json!({ "step": at, "metrics": metrics }))
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        Some(("tracker", PathBuf::from(format!("tcp://{}", self.server))))
    }
}

fn failed(action: &'static str, server: &str, reason: io::Error) -> Error {
    Error::io(action, Path::new(server), reason)
}

/// ddprun's kinds, and this one.
pub(crate) fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.sinks.add::<Tracker>();
    kinds
}

fn main() -> ExitCode {
    ddprun::cli::run(std::env::args_os(), &kinds())
}
