//! The part of a cell after a calendar date: a time of day, an offset from UTC, a time zone.

use jiff::civil::Time;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::{Offset, TimeZone};

/// Parses the rest of a cell after a calendar date: `T06:00`, ` 2:30 PM`, `T060000.5Z`, ` 06:00
/// +0200`, `T06:00+02:00[Europe/Oslo]`.
pub(super) fn time_of_day(rest: &str) -> Option<(Time, Option<Offset>, Option<TimeZone>)> {
    let is_compact = rest.starts_with(['T', 't']);
    let rest = if is_compact {
        &rest[1..]
    } else {
        let after = rest.strip_prefix(',').unwrap_or(rest);
        let trimmed = after.trim_start();
        if trimmed.len() == after.len() {
            return None;
        }
        trimmed
    };
    let (rest, zone) = named_zone(rest)?;
    let (rest, offset) = offset_of(rest)?;
    Some((clock(rest, is_compact)?, offset, zone))
}

/// strftime format of the rest of a cell after a calendar date: ` %H:%M` of ` 13:30`, `T%H:%M:%S%z`
/// of `T06:00:00+02:00`; `None` if there is no such format, as for the name of a time zone.
pub(super) fn format_of(rest: &str) -> Option<String> {
    if rest.is_empty() {
        return Some(String::new());
    }
    let begins = rest.len() - rest.trim_start_matches(['T', 't', ',', ' ']).len();
    let (lead, text) = rest.split_at(begins);
    let (text, offset) = match offset_of(text)? {
        (before, None) => (before, ""),
        (before, Some(_)) => {
            (before, if text[before.len()..].starts_with(' ') { " %z" } else { "%z" })
        }
    };
    let (clock, half) = half_of_day(text);
    let is_12 = half.is_some();
    let (clock, fraction) = match clock.split_once('.') {
        Some((clock, _)) => (clock, "%.f"),
        None => (clock, ""),
    };
    let hour = if is_12 { "%I" } else { "%H" };
    let format = match clock.split(':').count() {
        3 => format!("{hour}:%M:%S{fraction}"),
        2 => format!("{hour}:%M"),
        _ if clock.len() == 6 => format!("{hour}%M%S{fraction}"),
        _ if clock.len() == 4 => format!("{hour}%M"),
        _ => hour.to_owned(),
    };
    let half = match text.get(clock.len()..) {
        Some(after) if is_12 && after.starts_with(' ') => " %p",
        _ if is_12 => "%p",
        _ => "",
    };
    Some(format!("{lead}{format}{half}{offset}"))
}

/// `[Europe/Oslo]` or ` Europe/Oslo` at the end.
fn named_zone(rest: &str) -> Option<(&str, Option<TimeZone>)> {
    let found = if let Some(inner) = rest.strip_suffix(']') {
        inner.split_once('[')
    } else {
        let is_name = |(_, name): &(&str, &str)| {
            name.contains('/') && name.starts_with(|c: char| c.is_ascii_alphabetic())
        };
        rest.rsplit_once(' ').filter(is_name)
    };
    match found {
        None => Some((rest, None)),
        Some((before, name)) => Some((before.trim_end(), Some(TimeZone::get(name).ok()?))),
    }
}

/// `Z`, `UTC`, `+02`, `+0200`, `+02:00` or `UTC+2` at the end.
fn offset_of(rest: &str) -> Option<(&str, Option<Offset>)> {
    let utc = ["UTC", "GMT", "Z", "z"].iter().find_map(|name| rest.strip_suffix(name));
    if let Some(before) = utc {
        return Some((before.trim_end(), Some(Offset::UTC)));
    }
    let Some(at) = rest.rfind(['+', '-', '\u{2212}']) else { return Some((rest, None)) };
    let (before, offset) = rest.split_at(at);
    let offset = offset.replace('\u{2212}', "-");
    // jiff wants two digits.
    let is_short = offset[1..].find(':').unwrap_or(offset.len() - 1) == 1;
    let offset = if is_short { format!("{}0{}", &offset[..1], &offset[1..]) } else { offset };
    let parsed = ["%:z", "%z", "%:::z"]
        .iter()
        .find_map(|format| BrokenDownTime::parse(format, &offset).ok()?.offset())?;
    let before = before.trim_end();
    let before = ["UTC", "GMT"].iter().find_map(|name| before.strip_suffix(name)).unwrap_or(before);
    Some((before.trim_end(), Some(parsed)))
}

/// `06:00`, `6:00:00.25`, `2:30 PM`; `0600` and `060000` if `is_compact`; `06`.
fn clock(text: &str, is_compact: bool) -> Option<Time> {
    let (text, first) = half_of_day(text);
    let text = text.replace(',', ".");
    let runs: Vec<usize> = text.split([':', '.']).map(str::len).collect();
    let format = match runs[..] {
        [2] => "%H",
        [1] if first.is_some() => "%H",
        [4] if is_compact => "%H%M",
        [6] | [6, 1..=9] if is_compact => "%H%M%S%.f",
        [1..=2, 2] if text.contains(':') => "%H:%M",
        [1..=2, 2, 2] | [1..=2, 2, 2, 1..=9] => "%H:%M:%S%.f",
        _ => return None,
    };
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut tm = BrokenDownTime::parse(format, &text).ok()?;
    if let Some(first) = first {
        let hour = tm.hour().filter(|hour| (1..=12).contains(hour))?;
        tm.set_hour(Some(first + hour % 12)).ok()?;
    }
    tm.to_time().ok()
}

/// A time without its AM or PM, and the first hour of that half of the day.
fn half_of_day(text: &str) -> (&str, Option<i8>) {
    let halves = [("a.m.", 0), ("p.m.", 12), ("am", 0), ("pm", 12)];
    let is_end = |name: &str| {
        let at = text.len().checked_sub(name.len())?;
        let (before, end) = text.split_at_checked(at)?;
        end.eq_ignore_ascii_case(name).then(|| before.trim_end())
    };
    let found = halves.iter().find_map(|(name, first)| Some((is_end(name)?, Some(*first))));
    found.unwrap_or((text, None))
}
