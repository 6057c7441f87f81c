//! Date formats of the cells of a column: inferred over all of them, or given by
//! `data.date_format`.
//!
//! A cell is a calendar date and then perhaps a time of day and an offset from UTC. Times and
//! offsets are written in one way everywhere, so only the format of the calendar date is inferred:
//! the one that all cells of the column fit. `01/02/2020` alone fits two, and is refused.

use std::borrow::Cow;

use jiff::SignedDuration;
use jiff::civil::{DateTime, Time, Weekday};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::{Offset, TimeZone};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::sources::dates::clock::{format_of, time_of_day};

/// A date: what calendar and clock show, and how far that is ahead of UTC if the cell says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    pub(crate) local: DateTime,
    pub(crate) offset: Option<Offset>,
}

impl Date {
    /// The time in UTC; as written if no offset is known.
    pub fn instant(self) -> DateTime {
        let ahead = self.offset.map_or(0, Offset::seconds);
        self.local.saturating_sub(SignedDuration::from_secs(ahead.into()))
    }
}

/// Error of a cell that is not read as a date, as in "`soon` is not a date", and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongDate {
    /// Line of the cell.
    pub(crate) line: u64,
    pub(crate) cell: String,
    /// The message after the cell.
    pub(crate) what: String,
    pub(crate) help: String,
}

/// The format of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DateForm {
    pattern: Pattern,
    /// True if cells have an offset from UTC; `None` if cells may differ in it.
    has_offset: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Pattern {
    /// The format of the calendar date, after which a time and an offset may follow.
    Inferred(String),
    /// The format of the whole cell, as strftime has it.
    Given(String),
}

/// Formats of calendar dates. Those of the first list that any cell rules in are preferred.
const PATTERNS: [&[&str]; 3] = [
    &[
        YEAR_FIRST,
        "%Y%m%d",
        "%d/%m/%Y",
        "%m/%d/%Y",
        "%d-%m-%Y",
        "%m-%d-%Y",
        "%d.%m.%Y",
        "%d %b %Y",
        "%d-%b-%Y",
        "%d/%b/%Y",
        "%d %B %Y",
        "%b %d, %Y",
        "%b %d %Y",
        "%B %d, %Y",
        "%B %d %Y",
        "%Y-%b-%d",
        "%G-W%V-%u",
        "%GW%V%u",
        "%G-W%V",
        "%GW%V",
        "%Y-%m",
        "%Y/%m",
        "%m/%Y",
        "%m-%Y",
        "%Y%m",
        "%b %Y",
        "%b-%Y",
        "%B %Y",
        QUARTER,
        "%Y",
        "%Y%m%d%H%M%S",
        "%Y%m%d%H%M",
        "%Y%m%d%H",
    ],
    // Two digits of a year, and an order that is unusual with points.
    &[
        "%d/%m/%y", "%m/%d/%y", "%y/%m/%d", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d", "%d.%m.%y",
        "%d-%b-%y", "%d %b %y", "%m.%d.%Y",
    ],
    &[EPOCH],
];
/// Year, month and day, between which `-`, `/` or `.` stand.
const YEAR_FIRST: &str = "%Y-%m-%d";
/// `2024Q1`, `2024-Q1`, `Q1 2024`; jiff does not read quarters.
const QUARTER: &str = "%YQ%q";
/// The option that gives the format of all dates.
pub(crate) const FORMAT_KEY: &str = "data.date_format";
/// Time since 1970 in seconds, or by the number of digits in milli-, micro- or nanoseconds.
const EPOCH: &str = "%s";
const HELP: &str = "write `2024-01-31`, `2024-01-31 13:30:00` or `2024-01-31T13:30+01:00`, or say \
                    the format of the column, as in `data.date_format = \"%d/%m/%Y %H:%M\"`";

impl Default for DateForm {
    /// Year, month and day, as all dates were read before formats were inferred.
    fn default() -> Self {
        Self { pattern: Pattern::Inferred(YEAR_FIRST.to_owned()), has_offset: None }
    }
}

impl DateForm {
    /// The format as strftime writes it.
    pub(crate) fn format(&self) -> &str {
        match &self.pattern {
            Pattern::Inferred(format) | Pattern::Given(format) => format,
        }
    }

    /// The format for another program: whether it is that of the whole cell, or of the calendar
    /// date alone, after which a time of day, an offset and a time zone may follow.
    pub(crate) fn described(&self) -> Value {
        let whole_cell = matches!(&self.pattern, Pattern::Given(it) if !is_calendar(it));
        json!({ "format": self.format(), "whole_cell": whole_cell })
    }

    /// The date in a cell, and the time zone if the cell names one.
    pub(crate) fn read(
        &self,
        cell: &str,
        line: u64,
    ) -> Result<(Date, Option<TimeZone>), WrongDate> {
        let read = match &self.pattern {
            Pattern::Inferred(pattern) => read_inferred(pattern, cell),
            Pattern::Given(format) => read_given(format, cell),
        };
        let wrong = |what: String, help: &str| WrongDate {
            line,
            cell: cell.to_owned(),
            what,
            help: help.to_owned(),
        };
        let Some((date, zone)) = read else {
            let what = format!("is not a date of the format `{}`", self.format());
            return Err(wrong(what, HELP));
        };
        match (self.has_offset, date.offset) {
            (Some(true), None) => Err(wrong(NO_OFFSET.to_owned(), OFFSETS)),
            (Some(false), Some(_)) => Err(wrong(AN_OFFSET.to_owned(), OFFSETS)),
            _ => Ok((date, zone)),
        }
    }
}

const NO_OFFSET: &str = "has no offset from UTC, but other dates of the column have one";
const AN_OFFSET: &str = "has an offset from UTC, but other dates of the column have none";
const OFFSETS: &str = "write the offset in all rows (`+01:00`, `Z`), or in none";

/// True if all cells could be dates of one format. Numbers count only if `numbers_may_be` dates.
pub(crate) fn could_be_dates<'a>(
    cells: impl IntoIterator<Item = &'a str>,
    numbers_may_be: bool,
) -> bool {
    let mut inference = FormInference::new(None);
    let mut are_there = false;
    for cell in cells {
        let is_number = cell.parse::<f64>().is_ok();
        if (is_number && !numbers_may_be) || inference.see(cell, 0).is_err() {
            return false;
        }
        are_there = true;
    }
    are_there
}

/// The dates in the cells of a column, each with its line, if all of them have one format.
pub fn dates<'a>(cells: impl Iterator<Item = (&'a str, u64)> + Clone) -> Option<Vec<Date>> {
    let mut inference = FormInference::new(None);
    cells.clone().try_for_each(|(cell, line)| inference.see(cell, line)).ok()?;
    let form = inference.form(FORMAT_KEY).ok()??;
    cells.map(|(cell, line)| Some(form.read(cell, line).ok()?.0)).collect()
}

/// True if the first column of a table holds dates, by its name and its first cell. Numbers are
/// dates only if the name says so.
pub fn is_dated(name: &str, cell: Option<&str>) -> bool {
    let name = name.to_lowercase();
    if name == "date" {
        return true;
    }
    let cell = cell.unwrap_or_default();
    let mut words = name.split(|c: char| !c.is_alphanumeric());
    let is_calendar =
        words.any(|word| ["date", "datetime", "ds", "year", "month", "period"].contains(&word));
    let is_clock = name.contains("time") && cell.len() >= "20240131".len();
    could_be_dates([cell], is_calendar || is_clock)
}

/// True if a cell is a date by itself, and no number.
pub fn is_date(cell: &str) -> bool {
    could_be_dates([cell], false)
}

/// Checks a format that an experiment gives.
pub(crate) fn check_format(format: &str) -> Result<(), String> {
    let day = jiff::civil::date(2023, 11, 25).at(22, 33, 44, 555_000_000);
    let written = day
        .to_zoned(TimeZone::fixed(Offset::constant(2)))
        .and_then(|zoned| BrokenDownTime::from(&zoned).to_string(format));
    let text = written.map_err(|error| format!("is not a format of dates: {error}"))?;
    if let Err(error) = BrokenDownTime::parse(format, &text) {
        return Err(format!("cannot be read: {error}"));
    }
    let is_date = read_given(format, &text).is_some();
    is_date.then_some(()).ok_or_else(|| "says no date: it needs at least a year (`%Y`)".to_owned())
}

/// The formats that all cells so far fit.
pub(crate) struct FormInference<'a> {
    given: Option<&'a str>,
    candidates: Vec<(usize, &'static str)>,
    has_offset: Option<bool>,
    /// The first cell that is another date in another format.
    ambiguous: Option<(String, u64)>,
    /// strftime format of the time after the calendar date in the first cell, if all cells fit it.
    time: Option<String>,
    is_empty: bool,
}

impl<'a> FormInference<'a> {
    /// Inference for a column whose format may be `given`.
    pub(crate) fn new(given: Option<&'a str>) -> Self {
        let all = PATTERNS.iter().enumerate();
        let candidates =
            all.flat_map(|(tier, patterns)| patterns.iter().map(move |it| (tier, *it))).collect();
        let (has_offset, ambiguous, time) = (None, None, None);
        Self { given, candidates, has_offset, ambiguous, time, is_empty: true }
    }

    /// Takes the next cell of the column.
    pub(crate) fn see(&mut self, cell: &str, line: u64) -> Result<(), WrongDate> {
        let wrong = |what: String, help: &str| WrongDate {
            line,
            cell: cell.to_owned(),
            what,
            help: help.to_owned(),
        };
        let date = if let Some(format) = self.given {
            let read = read_given(format, cell);
            let (date, _) = read.ok_or_else(|| {
                let help = "correct the cell, or the format in `data.date_format`";
                wrong(format!("is not a date of the format `{format}`"), help)
            })?;
            date
        } else {
            let fits = |&(tier, it): &(usize, &'static str)| {
                Some(((tier, it), read_inferred(it, cell)?.0))
            };
            let found: Vec<_> = self.candidates.iter().filter_map(fits).collect();
            let Some(&(_, first)) = found.first() else {
                return Err(if self.is_empty || !fits_any(cell) {
                    wrong("is not a date".to_owned(), unknown_zone(cell).unwrap_or(HELP))
                } else {
                    let formats = formats(&self.best());
                    wrong(
                        format!(
                            "is not a date of the format {formats}, which the rows before it have"
                        ),
                        HELP,
                    )
                });
            };
            if found.iter().any(|(_, date)| date.local != first.local) && self.ambiguous.is_none() {
                self.ambiguous = Some((cell.to_owned(), line));
            }
            self.candidates = found.iter().map(|(candidate, _)| *candidate).collect();
            if self.is_empty {
                self.time = time_behind(self.candidates[0].1, cell);
            }
            // One that is left needs no remedy.
            let is_fitting = |time: &String| {
                if self.candidates.len() == 1 {
                    return true;
                }
                let whole = format!("{}{time}", self.candidates[0].1);
                read_whole(&whole, cell).is_some_and(|(date, _)| date == first)
            };
            self.time = self.time.take().filter(is_fitting);
            first
        };
        self.is_empty = false;
        match self.has_offset.replace(date.offset.is_some()) {
            Some(true) if date.offset.is_none() => Err(wrong(NO_OFFSET.to_owned(), OFFSETS)),
            Some(false) if date.offset.is_some() => Err(wrong(AN_OFFSET.to_owned(), OFFSETS)),
            _ => Ok(()),
        }
    }

    /// The preferred ones of the formats that are left.
    fn best(&self) -> Vec<&'static str> {
        let tier = self.candidates.iter().map(|(tier, _)| *tier).min();
        let best = self.candidates.iter().filter(|(of, _)| Some(*of) == tier);
        best.map(|(_, pattern)| *pattern).collect()
    }

    /// The format of the column, which `key` would give; `None` of a column without dates.
    pub(crate) fn form(self, key: &str) -> Result<Option<DateForm>, WrongDate> {
        if self.is_empty {
            return Ok(None);
        }
        let has_offset = self.has_offset;
        if let Some(format) = self.given {
            return Ok(Some(DateForm { pattern: Pattern::Given(format.to_owned()), has_offset }));
        }
        let best = self.best();
        match (&best[..], self.ambiguous) {
            ([first, _, ..], Some((cell, line))) => {
                let what =
                    format!("may be a date of the format {}, which all rows fit", formats(&best));
                let time = self.time.unwrap_or_default();
                let help = format!("say which with `{key} = \"{first}{time}\"`");
                Err(WrongDate { line, cell, what, help })
            }
            (best, _) => {
                let pattern =
                    Pattern::Inferred(best.first().copied().unwrap_or(YEAR_FIRST).to_owned());
                Ok(Some(DateForm { pattern, has_offset }))
            }
        }
    }
}

/// "`%d/%m/%Y` or `%m/%d/%Y`"
fn formats(patterns: &[&str]) -> String {
    patterns.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(" or ")
}

/// strftime format of the time after the calendar date of a cell; empty if there is none.
fn time_behind(pattern: &str, cell: &str) -> Option<String> {
    let (_, used) = BrokenDownTime::parse_prefix(pattern, cell).ok()?;
    format_of(cell.get(used..)?)
}

fn fits_any(cell: &str) -> bool {
    PATTERNS.iter().copied().flatten().any(|pattern| read_inferred(pattern, cell).is_some())
}

/// Remedy for a date that ends in the abbreviation of a time zone.
fn unknown_zone(cell: &str) -> Option<&'static str> {
    let (before, word) = cell.rsplit_once(' ')?;
    let is_abbreviation =
        (3..=5).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase());
    (is_abbreviation && fits_any(before)).then_some(
        "abbreviations of time zones have several meanings: write the offset from UTC (`-05:00`), \
         `UTC`, or a name such as `America/New_York`",
    )
}

/// A date in the format that an experiment gives; that of a calendar date may have a time of day
/// and an offset behind it.
fn read_given(format: &str, cell: &str) -> Option<(Date, Option<TimeZone>)> {
    read_whole(format, cell).or_else(|| read_inferred(format, cell).filter(|_| is_calendar(format)))
}

/// True for the inferred formats of calendar dates (days, not months).
fn is_calendar(format: &str) -> bool {
    let is_known = PATTERNS.iter().copied().flatten().any(|pattern| *pattern == format);
    is_known && is_of_days(format)
}

/// True if a format gives days, which may have times.
fn is_of_days(pattern: &str) -> bool {
    ["%d", "%u"].iter().any(|day| pattern.contains(day)) && !pattern.contains("%H")
}

/// A date in a format of the whole cell. What it leaves out is the first: of a year its first
/// month, of a month its first day, of a week its Monday.
fn read_whole(format: &str, cell: &str) -> Option<(Date, Option<TimeZone>)> {
    let parse = |format: &str, cell: &str| BrokenDownTime::parse(format, cell).ok();
    let tm = parse(format, cell).or_else(|| {
        // As in Python, `%z` reads offsets with and without a colon, and Z.
        let with_colon = format.replace("%z", "%:z");
        parse(&with_colon, cell)
            .or_else(|| parse(&with_colon, &format!("{}+00:00", cell.strip_suffix(['Z', 'z'])?)))
    })?;
    if let Some(timestamp) = tm.timestamp() {
        let local = Offset::UTC.to_datetime(timestamp);
        return Some((Date { local, offset: Some(Offset::UTC) }, None));
    }
    let zone = tm.iana_time_zone().map(TimeZone::get).transpose().ok()?;
    let offset = tm.offset();
    let local = complete(tm)?;
    Some((Date { local, offset: offset.or_else(|| offset_in(zone.as_ref()?, local)) }, zone))
}

/// The offset of a zone at a time of its clocks; of two, the one before clocks are set back.
fn offset_in(zone: &TimeZone, local: DateTime) -> Option<Offset> {
    Some(zone.to_ambiguous_zoned(local).compatible().ok()?.offset())
}

/// The date and time of what was read, with the first of what it leaves out.
fn complete(mut tm: BrokenDownTime) -> Option<DateTime> {
    if tm.iso_week().is_some() {
        if tm.weekday().is_none() {
            tm.set_weekday(Some(Weekday::Monday));
        }
    } else if tm.day_of_year().is_none() {
        tm.year()?;
        if tm.month().is_none() {
            tm.set_month(Some(1)).ok()?;
        }
        if tm.day().is_none() {
            tm.set_day(Some(1)).ok()?;
        }
    }
    let time = if tm.hour().is_some() { tm.to_time().ok()? } else { Time::midnight() };
    Some(tm.to_date().ok()?.to_datetime(time))
}

/// A date whose calendar date is written as `pattern` says.
fn read_inferred(pattern: &str, cell: &str) -> Option<(Date, Option<TimeZone>)> {
    let plain = |local: DateTime| Some((Date { local, offset: None }, None));
    match pattern {
        EPOCH => return plain(epoch(cell)?),
        QUARTER => return plain(quarter(cell)?),
        _ => {}
    }
    let cell = if pattern == YEAR_FIRST { hyphenated(cell) } else { Cow::Borrowed(cell) };
    let (weekday, cell) = without_weekday(&cell);
    let (tm, used) = BrokenDownTime::parse_prefix(pattern, cell).ok()?;
    let (date, rest) = cell.split_at_checked(used)?;
    if !fits(pattern, date) {
        return None;
    }
    // A month, a week or a year has no time of day, and `%H` is one.
    if !is_of_days(pattern) && !rest.is_empty() {
        return None;
    }
    let local = complete(tm)?;
    if weekday.is_some_and(|weekday| weekday != local.weekday()) {
        return None;
    }
    if rest.is_empty() {
        return plain(local);
    }
    let (time, offset, zone) = time_of_day(rest)?;
    let local = local.date().to_datetime(time);
    Some((Date { local, offset: offset.or_else(|| offset_in(zone.as_ref()?, local)) }, zone))
}

/// A date that begins with its year, with `-` for the two separators that follow.
fn hyphenated(cell: &str) -> Cow<'_, str> {
    let Some(separator @ ('/' | '.')) = cell.chars().nth(4) else { return Cow::Borrowed(cell) };
    Cow::Owned(cell.replacen(separator, "-", 2))
}

/// A cell without the day of the week before its date, and that day.
fn without_weekday(cell: &str) -> (Option<Weekday>, &str) {
    let begins_with_word = cell.starts_with(|c: char| c.is_ascii_alphabetic());
    let Some((word, rest)) = cell.split_once(' ').filter(|_| begins_with_word) else {
        return (None, cell);
    };
    let word = word.trim_end_matches(',');
    let parse = |format| BrokenDownTime::parse(format, word).ok()?.weekday();
    match parse("%A").or_else(|| parse("%a")) {
        Some(weekday) => (Some(weekday), rest.trim_start()),
        None => (None, cell),
    }
}

/// True if `date` has as many digits as `pattern`: jiff also takes signs, and fewer digits of a
/// year.
fn fits(pattern: &str, date: &str) -> bool {
    let mut runs = date.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    let mut is_run = |width: usize, fewest: usize| {
        width == 0 || runs.next().is_some_and(|run| (fewest..=width).contains(&run.len()))
    };
    let (mut width, mut fewest) = (0, 0);
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        let directive = if c == '%' { rest.next() } else { None };
        let digits = match directive {
            Some('Y' | 'G') => 4,
            Some('m' | 'd' | 'y' | 'V' | 'H' | 'M' | 'S') => 2,
            Some('u') => 1,
            _ => {
                if !is_run(width, fewest) {
                    return false;
                }
                (width, fewest) = (0, 0);
                continue;
            }
        };
        // A day or a month may have one digit where no other digits touch it.
        let is_alone = width == 0 && !rest.as_str().starts_with('%');
        let may_be_short = is_alone && matches!(directive, Some('m' | 'd'));
        fewest += if may_be_short { 1 } else { digits };
        width += digits;
    }
    let starts = date.starts_with(|c: char| c.is_ascii_alphanumeric());
    starts && is_run(width, fewest) && runs.next().is_none()
}

/// `2024Q1`, `2024-Q1` or `Q1 2024`: the first day of the quarter.
fn quarter(cell: &str) -> Option<DateTime> {
    let upper = cell.to_ascii_uppercase();
    let (before, after) = upper.split_once('Q')?;
    let is_separator = |c: char| matches!(c, '-' | '/' | ' ');
    let (year, quarter) = if before.is_empty() {
        let (quarter, year) = after.split_once(is_separator)?;
        (year, quarter)
    } else {
        (before.strip_suffix(is_separator).unwrap_or(before), after)
    };
    let year: i16 = Some(year).filter(|year| year.len() == 4)?.parse().ok()?;
    let quarter: i8 = quarter.parse().ok().filter(|quarter| (1..=4).contains(quarter))?;
    Some(jiff::civil::Date::new(year, 3 * quarter - 2, 1).ok()?.to_datetime(Time::midnight()))
}

/// Time since 1970 in UTC, by its number of digits.
fn epoch(cell: &str) -> Option<DateTime> {
    let (whole, fraction) = cell.split_once('.').unwrap_or((cell, ""));
    if ![whole, fraction].iter().all(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let number: i64 = whole.parse().ok()?;
    let digits = fraction.bytes().map(|digit| i32::from(digit - b'0'));
    let nanoseconds = digits.chain(std::iter::repeat(0)).take(9).fold(0, |all, one| 10 * all + one);
    let timestamp = match whole.len() {
        9..=10 => jiff::Timestamp::new(number, nanoseconds),
        12..=13 => jiff::Timestamp::from_millisecond(number),
        15..=16 => jiff::Timestamp::from_microsecond(number),
        18..=19 => jiff::Timestamp::from_nanosecond(number.into()),
        _ => return None,
    };
    Some(Offset::UTC.to_datetime(timestamp.ok()?))
}
