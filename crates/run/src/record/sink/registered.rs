//! The sinks that come with ddprun.

use crate::record::sink::{Csv, Curves, Jsonl, SinkFamily, Sinks, Tensorboard};
use crate::registry::Registered;

impl Registered for SinkFamily {
    fn registered() -> Sinks {
        let mut all = Sinks::empty();
        all.add::<Jsonl>();
        all.add::<Csv>();
        all.add::<Tensorboard>();
        all.add::<Curves>();
        all
    }
}
