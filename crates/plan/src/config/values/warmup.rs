//! Length of the learning rate's warm-up: "5 epochs", "500 steps", "5 %", "never".

use std::fmt;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::config::values::{Interval, parse_every, show_every, spelled};

/// Length of the learning rate's warm-up: "5 epochs", "500 steps", "5 %" of the run, "never".
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    /// A number of steps or epochs, or "never".
    For(Interval),
    /// A share of the run's steps, in percent.
    Percent(f64),
}

spelled!(
    Warmup,
    parse_warmup,
    show_warmup,
    "`\"never\"`, a count with its unit, such as `\"5 epochs\"` or `\"500 steps\"`, or a share of \
     the run, such as `\"5 %\"`"
);

fn parse_warmup(text: &str) -> Option<Warmup> {
    match text.trim().strip_suffix('%') {
        Some(number) => {
            let percent: f64 = number.trim_end().parse().ok()?;
            (0.0..100.0).contains(&percent).then_some(Warmup::Percent(percent))
        }
        None => parse_every(text).map(Warmup::For),
    }
}

fn show_warmup(value: &Warmup) -> String {
    match value {
        Warmup::For(every) => show_every(every),
        Warmup::Percent(percent) => format!("{percent} %"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_warm_up_is_a_count_or_a_share_of_the_run() {
        for (written, expected) in [
            (json!("never"), Some(Warmup::For(Interval::Never))),
            (json!("500 steps"), Some(Warmup::For(Interval::Steps(500)))),
            (json!("5 epochs"), Some(Warmup::For(Interval::Epochs(5)))),
            (json!("5 %"), Some(Warmup::Percent(5.0))),
            (json!("2.5%"), Some(Warmup::Percent(2.5))),
            (json!("0 %"), Some(Warmup::Percent(0.0))),
            (json!("100 %"), None),
            (json!("-1 %"), None),
            (json!("NaN %"), None),
            (json!("%"), None),
            (json!(0.05), None),
        ] {
            let read = serde_json::from_value::<Warmup>(written.clone()).ok();
            assert_eq!(read, expected, "{written}");
        }
    }
}
