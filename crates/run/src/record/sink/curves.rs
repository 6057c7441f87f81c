//! `curves` in `logging.sinks`

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::event::Finished;
use crate::record::Error;
use crate::record::sink::{OpenSink, Sink, SinkStart, Stamped};

/// `curves.png` and `curves.svg`, drawn when the run ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Curves {}

impl Kind for Curves {
    const NAME: &'static str = "curves";
}

impl Sink for Curves {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        Ok(Box::new(Drawn(start.run.logs.join("curves.png"))))
    }
}

/// The picture that the parent will draw from the run's records.
struct Drawn(PathBuf);

impl OpenSink for Drawn {
    fn record(&mut self, _: &Stamped) -> Result<(), Error> {
        Ok(())
    }

    fn summary_entry(&self, finished: &Finished) -> Option<(&'static str, PathBuf)> {
        (finished.step > 0).then(|| (Curves::NAME, self.0.clone()))
    }
}
