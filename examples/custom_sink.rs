//! Your own sink: what a run says goes where your program puts it; here into a table in Markdown.
//!
//! ```text
//! cargo run --release --example custom_sink -- examples/custom_sink.toml
//! cargo run --release --example custom_sink -- plan examples/custom_sink.toml logging.sinks=[markdwn]
//! ```
//!
//! The second command is refused: `did you mean markdown?`
//!
//! The file is complete up to each checkpoint. A sink that is slow or may be away, such as a tracker
//! behind a network, is shown in `custom_tracker.rs`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ddprun::config::kind::Kind;
use ddprun::event::{Event, Finished};
use ddprun::kinds::Kinds;
use ddprun::record::{Error, OpenSink, Sink, SinkStart, Stamped};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `evaluations.md`: a table in Markdown, a row for each evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Markdown {
    /// digits behind the decimal point.
    #[schemars(range(max = 17))]
    pub(crate) decimals: u8,
}

impl Default for Markdown {
    fn default() -> Self {
        Self { decimals: 4 }
    }
}

impl Kind for Markdown {
    const NAME: &'static str = "markdown";
}

impl Sink for Markdown {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        let path = start.run.logs.join("evaluations.md");
        let table = Table::open(&path, usize::from(self.decimals), start);
        let table = table.map_err(|reason| failed(&path, reason))?;
        Ok(Box::new(table))
    }
}

/// The file, with the rows that count.
struct Table {
    path: PathBuf,
    file: File,
    columns: Vec<String>,
    decimals: usize,
}

impl Table {
    /// Leaves out rows after the step from which a run is resumed: they are written again.
    fn open(path: &Path, decimals: usize, start: &SinkStart) -> io::Result<Self> {
        let old = std::fs::read_to_string(path).unwrap_or_default();
        let (path, file) = (path.to_owned(), File::create(path)?);
        let mut table = Self { path, file, columns: Vec::new(), decimals };
        table.columns.push("val/loss".to_owned());
        table.columns.extend(start.metrics.iter().map(|name| format!("val/{name}")));
        let head = table.columns.iter().map(|column| format!(" {column} |"));
        writeln!(table.file, "| step |{}", head.collect::<String>())?;
        writeln!(table.file, "|---|{}", "---|".repeat(table.columns.len()))?;
        let step = |row: &str| row.split('|').nth(1)?.trim().parse::<u64>().ok();
        for row in old.lines().filter(|row| step(row).is_some_and(|at| at <= start.resumed_from)) {
            writeln!(table.file, "{row}")?;
        }
        Ok(table)
    }
}

impl OpenSink for Table {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        let Event::Evaluated(evaluated) = &stamped.event else { return Ok(()) };
        let cell = |column: &String| match evaluated.metrics.get(column) {
            Some(value) => format!(" {value:.*} |", self.decimals),
            None => " |".to_owned(),
        };
        let cells = self.columns.iter().map(cell).collect::<String>();
        let written = writeln!(self.file, "| {} |{cells}", evaluated.step);
        written.map_err(|reason| failed(&self.path, reason))
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn sync(&self) -> Result<(), Error> {
        self.file.sync_all().map_err(|reason| failed(&self.path, reason))
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        Some(("evaluations", self.path.clone()))
    }
}

fn failed(path: &Path, reason: io::Error) -> Error {
    Error::io("write", path, reason)
}

/// ddprun's kinds, and this one.
pub(crate) fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.sinks.add::<Markdown>();
    kinds
}

fn main() -> ExitCode {
    ddprun::cli::run(std::env::args_os(), &kinds())
}
