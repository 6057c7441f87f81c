//! Values with their own spelling: `"auto"`, `"25MiB"`, `"10m"`, `"5 epochs"`, `224` or `[224,
//! 256]`.
//!
//! Each is written back as it is read, so that a resolved experiment is itself an experiment. A
//! visitor's `expecting` is the end of the sentence that the user reads: "must be ...".

mod auto;
mod devices;
mod schema;
mod warmup;

use std::fmt;

use jiff::SignedDuration;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

pub use auto::{Auto, Given};
pub use devices::Devices;
pub use warmup::Warmup;

/// A time span: "30s", "10m", "2h", "1h 30m".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration(pub std::time::Duration);

impl Duration {
    /// A time span of whole minutes.
    pub(crate) const fn of_minutes(minutes: u64) -> Self {
        Self(std::time::Duration::from_secs(60 * minutes))
    }
}

/// An interval or a length: "1 epoch", "500 steps", "never".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// "never"
    Never,
    /// "n epochs"
    Epochs(u64),
    /// "n steps"
    Steps(u64),
}

/// A limit on waiting: "auto", "never", "30s".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// Learnt from the usual duration.
    #[default]
    Auto,
    /// No limit.
    Never,
    /// A limit that was given.
    After(std::time::Duration),
}

/// The split of a table's rows, in order, into training, validation and test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitRule {
    /// "`ett_hour`": 12, 4 and 4 months of 30 days of hours; further rows are not used.
    EttHour,
    /// "`ett_minute`": the same in quarters of an hour.
    EttMinute,
    /// "7:1:2": training and test are rounded down, validation is the rest.
    Parts([u32; 3]),
    /// "34560:11520:11520", or smaller numbers with the word "rows": counts of rows; further rows
    /// are not used.
    Rows([u32; 3]),
}

/// One number, or height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape2 {
    /// One number.
    Side(u32),
    /// [height, width]
    Both([u32; 2]),
}

impl Shape2 {
    /// (height, width), both of one number.
    pub fn sides(self) -> (u32, u32) {
        match self {
            Self::Side(side) => (side, side),
            Self::Both([height, width]) => (height, width),
        }
    }
}

/// `true`, or `"except_head"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict {
    /// Every key must fit.
    All,
    /// The head may differ.
    ExceptHead,
}

/// State that is sharded over ranks, by the stages of ZeRO (Rajbhandari et al. 2020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroStage {
    /// 0: nothing, plain DDP.
    #[default]
    None,
    /// 1: the optimizer's state.
    Optimizer,
    /// 2: the optimizer's state and reduced gradients.
    Gradients,
}

impl ZeroStage {
    /// The number in the experiment.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// A number of bytes: "25MiB", "1MB", or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// Reads and writes a type through its text, with `$expected` as the end of "must be ...".
macro_rules! spelled {
    ($type:ty, $parse:path, $show:path, $expected:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Spelled;
                impl Visitor<'_> for Spelled {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: Error>(self, text: &str) -> Result<$type, E> {
                        $parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
                    }
                }
                deserializer.deserialize_str(Spelled)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&$show(self))
            }
        }
    };
}

use spelled;

spelled!(
    Duration,
    parse_duration,
    show_duration,
    "a time with its unit, such as `\"30s\"`, `\"10m\"` or `\"2h\"`"
);
spelled!(
    Interval,
    parse_every,
    show_every,
    "`\"never\"` or a count with its unit, such as `\"1 epoch\"` or `\"500 steps\"`"
);

spelled!(
    Patience,
    parse_patience,
    show_patience,
    "`\"auto\"`, `\"never\"` or a time with its unit, such as `\"30s\"`"
);

fn parse_patience(text: &str) -> Option<Patience> {
    match text.trim() {
        "auto" => Some(Patience::Auto),
        "never" => Some(Patience::Never),
        time => parse_duration(time).map(|Duration(time)| Patience::After(time)),
    }
}

fn show_patience(value: &Patience) -> String {
    match *value {
        Patience::Auto => "auto".to_owned(),
        Patience::Never => "never".to_owned(),
        Patience::After(time) => show_duration(&Duration(time)),
    }
}

spelled!(
    SplitRule,
    parse_split,
    show_split,
    "`\"ett_hour\"`, `\"ett_minute\"`, parts of training, validation and test, such as \
     `\"7:1:2\"`, or their rows, such as `\"34560:11520:11520\"` or `\"500:100:100 rows\"`"
);

fn parse_split(text: &str) -> Option<SplitRule> {
    match text.trim() {
        "ett_hour" => return Some(SplitRule::EttHour),
        "ett_minute" => return Some(SplitRule::EttMinute),
        _ => {}
    }
    let (text, are_rows) = match text.trim().strip_suffix("rows") {
        Some(counts) => (counts, true),
        None => (text, false),
    };
    let parts: Vec<u32> =
        text.split(':').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?;
    let parts: [u32; 3] = parts.try_into().ok().filter(|parts: &[u32; 3]| !parts.contains(&0))?;
    Some(if are_rows || are_plainly_rows(parts) {
        SplitRule::Rows(parts)
    } else {
        SplitRule::Parts(parts)
    })
}

/// True if a number is too large for a ratio: thousandths are never meant.
fn are_plainly_rows(parts: [u32; 3]) -> bool {
    parts.iter().any(|&part| part > 1000)
}

fn show_split(value: &SplitRule) -> String {
    match value {
        SplitRule::EttHour => "ett_hour".to_owned(),
        SplitRule::EttMinute => "ett_minute".to_owned(),
        SplitRule::Rows([train, val, test]) if !are_plainly_rows([*train, *val, *test]) => {
            format!("{train}:{val}:{test} rows")
        }
        SplitRule::Parts([train, val, test]) | SplitRule::Rows([train, val, test]) => {
            format!("{train}:{val}:{test}")
        }
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let span: SignedDuration = text.trim().parse().ok()?;
    std::time::Duration::try_from(span).ok().map(Duration)
}

fn show_duration(value: &Duration) -> String {
    SignedDuration::try_from(value.0).map_or_else(|_| "0s".to_owned(), |span| format!("{span:#}"))
}

fn parse_every(text: &str) -> Option<Interval> {
    let text = text.trim();
    if text == "never" {
        return Some(Interval::Never);
    }
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(unit_at);
    let count = count.parse().ok()?;
    match unit.trim_start() {
        "epoch" | "epochs" => Some(Interval::Epochs(count)),
        "step" | "steps" => Some(Interval::Steps(count)),
        _ => None,
    }
}

fn show_every(value: &Interval) -> String {
    let plural = |n: u64, unit: &str| format!("{n} {unit}{}", if n == 1 { "" } else { "s" });
    match *value {
        Interval::Never => "never".to_owned(),
        Interval::Epochs(n) => plural(n, "epoch"),
        Interval::Steps(n) => plural(n, "step"),
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_every(self))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_duration(self))
    }
}

/// Units of [`Size`], binary ones first because they are preferred when writing.
const SIZE_UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Units in which the bounds of a key are that is written with a unit.
pub(crate) const COUNT: &str = "epochs or steps";
pub(crate) const BYTES: &str = "bytes";
pub(crate) const SECONDS: &str = "seconds";

/// The number of `unit`s in a text; `None` if it holds no number.
pub(crate) fn measured(text: &str, unit: &str) -> Option<f64> {
    match unit {
        COUNT => match parse_every(text)? {
            Interval::Never => None,
            Interval::Epochs(n) | Interval::Steps(n) => Some(n as f64),
        },
        BYTES => parse_size(text).map(|Size(bytes)| bytes as f64),
        SECONDS => parse_duration(text).map(|Duration(time)| time.as_secs_f64()),
        _ => None,
    }
}

fn parse_size(text: &str) -> Option<Size> {
    let text = text.trim();
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(unit_at);
    let (_, bytes) =
        SIZE_UNITS.into_iter().find(|(name, _)| unit.trim_start().eq_ignore_ascii_case(name))?;
    count.parse::<u64>().ok()?.checked_mul(bytes).map(Size)
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, such as `\"25MiB\"` or `\"1MB\"`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        parse_size(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Size, E> {
        u64::try_from(number)
            .map(Size)
            .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Size, E> {
        Ok(Size(number))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct StageVisitor;

impl Visitor<'_> for StageVisitor {
    type Value = ZeroStage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0 (plain DDP), 1 (optimizer state in parts) or 2 (gradients too)")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<ZeroStage, E> {
        match number {
            0 => Ok(ZeroStage::None),
            1 => Ok(ZeroStage::Optimizer),
            2 => Ok(ZeroStage::Gradients),
            _ => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ZeroStage, E> {
        self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl<'de> Deserialize<'de> for ZeroStage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StageVisitor)
    }
}

impl Serialize for ZeroStage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.number())
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let exact =
            SIZE_UNITS.into_iter().find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit));
        match exact {
            Some((name, unit)) => serializer.serialize_str(&format!("{}{name}", self.0 / unit)),
            None => serializer.serialize_u64(self.0),
        }
    }
}

struct Shape2Visitor;

impl<'de> Visitor<'de> for Shape2Visitor {
    type Value = Shape2;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of pixels, or `[height, width]`")
    }

    fn visit_i64<E: Error>(self, side: i64) -> Result<Shape2, E> {
        u32::try_from(side)
            .map(Shape2::Side)
            .map_err(|_| E::invalid_value(Unexpected::Signed(side), &self))
    }

    fn visit_u64<E: Error>(self, side: u64) -> Result<Shape2, E> {
        u32::try_from(side)
            .map(Shape2::Side)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(side), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape2, A::Error> {
        let mut sides = Vec::with_capacity(2);
        while let Some(side) = seq.next_element::<u32>()? {
            sides.push(side);
        }
        match sides[..] {
            [height, width] => Ok(Shape2::Both([height, width])),
            _ => Err(A::Error::invalid_length(sides.len(), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for Shape2 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Shape2Visitor)
    }
}

impl Serialize for Shape2 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Side(side) => side.serialize(serializer),
            Self::Both(sides) => sides.serialize(serializer),
        }
    }
}

struct StrictVisitor;

impl Visitor<'_> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`true` or `\"except_head\"`")
    }

    fn visit_bool<E: Error>(self, strict: bool) -> Result<Strict, E> {
        if strict {
            Ok(Strict::All)
        } else {
            Err(E::invalid_value(Unexpected::Bool(strict), &self))
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Strict, E> {
        match text {
            "except_head" => Ok(Strict::ExceptHead),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor)
    }
}

impl Serialize for Strict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_bool(true),
            Self::ExceptHead => serializer.serialize_str("except_head"),
        }
    }
}

/// The reason why class weights cannot be used; `None` if they can.
pub fn unusable_weights(weights: &[f64]) -> Option<&'static str> {
    let is_one = |weight: &f64| weight.is_finite() && *weight >= 0.0;
    let are_usable = weights.iter().all(is_one) && weights.iter().sum::<f64>() > 0.0;
    (!are_usable).then_some("must be finite, not negative, and not all 0")
}

#[cfg(test)]
pub(in crate::config) mod tests {
    use proptest::prelude::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    #[track_caller]
    pub(in crate::config) fn check<T>(table: &[(Value, Option<T>)])
    where
        T: DeserializeOwned + PartialEq + fmt::Debug + Copy,
    {
        for (written, expected) in table {
            assert_eq!(read::<T>(written.clone()).ok(), *expected, "{written}");
        }
    }

    #[test]
    fn a_duration_needs_a_unit_and_a_sign_it_cannot_have() {
        let seconds = |n| Some(Duration(std::time::Duration::from_secs(n)));
        check::<Duration>(&[
            (json!("30s"), seconds(30)),
            (json!("10m"), seconds(600)),
            (json!("2h"), seconds(7200)),
            (json!("1h30m"), seconds(5400)),
            (json!("500ms"), Some(Duration(std::time::Duration::from_millis(500)))),
            (json!("10"), None),
            (json!(10), None),
            (json!("-5s"), None),
            (json!("ten minutes"), None),
            (json!(""), None),
        ]);
    }

    #[test]
    fn patience_is_a_word_or_a_duration() {
        check::<Patience>(&[
            (json!("auto"), Some(Patience::Auto)),
            (json!("never"), Some(Patience::Never)),
            (json!("30s"), Some(Patience::After(std::time::Duration::from_secs(30)))),
            (json!("30"), None),
            (json!(30), None),
            (json!("always"), None),
        ]);
    }

    #[test]
    fn every_is_never_or_a_count_of_epochs_or_steps() {
        check::<Interval>(&[
            (json!("never"), Some(Interval::Never)),
            (json!("1 epoch"), Some(Interval::Epochs(1))),
            (json!("5 epochs"), Some(Interval::Epochs(5))),
            (json!("500 steps"), Some(Interval::Steps(500))),
            (json!("0 steps"), Some(Interval::Steps(0))),
            (json!("500"), None),
            (json!(500), None),
            (json!("epochs"), None),
            (json!("-1 epochs"), None),
            (json!("5 minutes"), None),
            (json!("99999999999999999999 steps"), None),
        ]);
    }

    #[test]
    fn sizes_know_binary_and_decimal_units() {
        check::<Size>(&[
            (json!("25MiB"), Some(Size(25 << 20))),
            (json!("1MB"), Some(Size(1_000_000))),
            (json!("1 mb"), Some(Size(1_000_000))),
            (json!(4096), Some(Size(4096))),
            (json!("4096B"), Some(Size(4096))),
            (json!("4096"), None),
            (json!("25 mega"), None),
            (json!(-1), None),
            (json!("99999999999TiB"), None),
        ]);
    }

    #[test]
    fn a_shape_is_one_side_or_height_and_width() {
        check::<Shape2>(&[
            (json!(224), Some(Shape2::Side(224))),
            (json!([224, 256]), Some(Shape2::Both([224, 256]))),
            (json!([224]), None),
            (json!([1, 2, 3]), None),
            (json!("224"), None),
            (json!(-1), None),
        ]);
    }

    #[test]
    fn a_split_is_in_parts_or_in_rows() {
        let rows = SplitRule::Rows([34_560, 11_520, 11_520]);
        check::<SplitRule>(&[
            (json!("7:1:2"), Some(SplitRule::Parts([7, 1, 2]))),
            (json!("700:100:200"), Some(SplitRule::Parts([700, 100, 200]))),
            (json!("34560:11520:11520"), Some(rows)),
            (json!(" 34560 : 11520 : 11520 rows"), Some(rows)),
            (json!("500:100:100 rows"), Some(SplitRule::Rows([500, 100, 100]))),
            (json!("ett_hour"), Some(SplitRule::EttHour)),
            (json!("7:1"), None),
            (json!("7:0:2"), None),
            (json!("0.7:0.1:0.2"), None),
            (json!("rows"), None),
            (json!("34560:11520:99999999999"), None),
        ]);
    }

    #[test]
    fn strict_cannot_be_switched_off_silently() {
        check::<Strict>(&[
            (json!(true), Some(Strict::All)),
            (json!("except_head"), Some(Strict::ExceptHead)),
            (json!(false), None),
            (json!("no"), None),
        ]);
    }

    fn round_trip<T>(value: &T)
    where
        T: Serialize + DeserializeOwned + PartialEq + fmt::Debug,
    {
        let written = serde_json::to_value(value).unwrap();
        assert_eq!(read::<T>(written.clone()).as_ref(), Ok(value), "{written}");
    }

    #[test]
    fn round_numbers_keep_their_spelling() {
        let spelling = |size: &str| serde_json::to_value(parse_size(size).unwrap()).unwrap();
        assert_eq!(
            ["25MiB", "1MB", "3B", "1536KiB"].map(spelling),
            ["25MiB", "1MB", "3B", "1536KiB"]
        );
        let time = |text: &str| show_duration(&parse_duration(text).unwrap());
        assert_eq!(["30s", "10m", "2h"].map(time), ["30s", "10m", "2h"]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(n in any::<u64>(), side in any::<u32>(), ms in 0u64..10_000_000_000) {
            round_trip(&Size(n));
            round_trip(&Interval::Epochs(n));
            round_trip(&Interval::Steps(n));
            round_trip(&Warmup::For(Interval::Steps(n)));
            round_trip(&Warmup::Percent((n % 100_000) as f64 / 1000.0));
            round_trip(&Auto::Given(side));
            round_trip(&Shape2::Side(side));
            round_trip(&Shape2::Both([side, 3]));
            let [a, b, c] = [side, n as u32, ms as u32].map(|part| part.max(1));
            round_trip(&SplitRule::Rows([a, b, c]));
            round_trip(&SplitRule::Rows([a % 1000 + 1, b % 1000 + 1, c % 1000 + 1]));
            round_trip(&SplitRule::Parts([a % 1000 + 1, b % 1000 + 1, c % 1000 + 1]));
            round_trip(&Duration(std::time::Duration::from_millis(ms)));
            round_trip(&Patience::After(std::time::Duration::from_millis(ms)));
        }
    }
}
