//! Frequency of the dates of a series, by all of them: in pandas' words `h`, `15min`, `D`, `B`
//! (days from Monday to Friday), `W`, `MS`, `ME`, `BME`, `QE`, `YS` and so on.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::SignedDuration;
use jiff::civil::{DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::sources::dates::form::Date;

/// Dates that follow each other on a grid, each so many places of it after the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frequency {
    grid: Grid,
    step: i64,
}

/// Grid of possible dates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Grid {
    /// Every nanosecond, whatever a clock shows.
    Time,
    /// Every day of the calendar.
    Day,
    /// Monday to Friday.
    BusinessDay,
    /// One day in each month.
    Month(MonthDay),
    /// The same times in each week, such as the hours of an exchange: nanoseconds since Monday.
    Week(Vec<i64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MonthDay {
    First,
    FirstBusinessDay,
    Last,
    LastBusinessDay,
    /// This day, or the last one of a shorter month.
    Day(i8),
    /// Such as the third Friday: 0 is Monday.
    Nth(i8, i8),
}

const NS_PER_SECOND: i64 = 1_000_000_000;
const NS_PER_MINUTE: i64 = 60 * NS_PER_SECOND;
const NS_PER_HOUR: i64 = 60 * NS_PER_MINUTE;
const NS_PER_DAY: i64 = 24 * NS_PER_HOUR;
/// A regular series may have gaps or extra dates at one of this many steps.
const IRREGULAR: usize = 10;
/// Days on which a time of day must recur to be one of a pattern.
const DAYS: usize = 2;
/// Weeks from which on the times of a week are a pattern.
const WEEKS: i128 = 3;
/// Times of a week that are a pattern: minutes.
const MAX_TIMES: usize = 10_080;

impl Frequency {
    /// The frequency of ascending dates: the one by which most of them follow each other, if that
    /// is nine in ten and all others are at its places, too.
    pub fn infer(dates: &[Date]) -> Option<Self> {
        if dates.len() < 3 {
            return None;
        }
        let grids = grids(dates);
        let found = grids.into_iter().filter_map(|grid| {
            let places = grid.places(dates)?;
            let steps: Vec<i64> = steps(&places)?;
            let step = most_frequent(&steps)?;
            let is_on_grid = steps.iter().all(|other| other % step == 0);
            let regular = steps.iter().filter(|other| **other == step).count();
            let irregular = steps.len() - regular;
            (is_on_grid && irregular * IRREGULAR <= steps.len())
                .then_some((regular, Self { grid, step }))
        });
        // The first of equally regular ones.
        found.reduce(|best, other| if other.0 > best.0 { other } else { best }).map(|(_, it)| it)
    }

    /// True if the dates, in order, could be of this frequency.
    pub(crate) fn fits(&self, dates: &[Date]) -> bool {
        let steps = self.grid.places(dates).and_then(|places| steps(&places));
        steps.is_some_and(|steps| steps.iter().all(|step| step % self.step.max(1) == 0))
    }

    /// True if the dates are of this frequency, and few of them follow a gap: days are hours with
    /// gaps.
    pub(crate) fn is_usual_in(&self, dates: &[Date]) -> bool {
        let missing = self.missing(dates);
        missing.is_some_and(|gaps| 2 * gaps.iter().filter(|gap| **gap == 0).count() >= gaps.len())
    }

    /// Number of positions left out before each date but the first, if all are at positions of the
    /// grid.
    fn missing(&self, dates: &[Date]) -> Option<Vec<i64>> {
        if !self.fits(dates) {
            return None;
        }
        let steps = steps(&self.grid.places(dates)?)?;
        Some(steps.iter().map(|step| step / self.step.max(1) - 1).collect())
    }

    /// The `n` dates after `last`, in its time zone if that is known; fewer where the calendar
    /// ends, none if `last` is at no place of the frequency.
    pub(crate) fn following(&self, last: Date, zone: Option<&TimeZone>, n: usize) -> Vec<Date> {
        let Some(place) = self.grid.place(last) else { return Vec::new() };
        let offset_at = |local: DateTime| match zone {
            Some(zone) => Some(zone.to_ambiguous_zoned(local).compatible().ok()?.offset()),
            None => last.offset,
        };
        let next = |k: usize| {
            let place = place.checked_add(i128::from(self.step) * (k as i128 + 1))?;
            if self.grid != Grid::Time {
                let local = self.grid.date(place, last.local)?;
                return Some(Date { local, offset: offset_at(local).or(last.offset) });
            }
            let instant = after_epoch(place)?;
            let offset = match zone {
                Some(zone) => {
                    let utc = jiff::tz::Offset::UTC.to_timestamp(instant).ok()?;
                    Some(zone.to_offset(utc))
                }
                None => last.offset,
            };
            let ahead = SignedDuration::from_secs(offset.map_or(0, |it| it.seconds().into()));
            Some(Date { local: instant.checked_add(ahead).ok()?, offset })
        };
        (0..n).map_while(next).collect()
    }

    /// Usual length of a season in dates: a day of hours, a week of days, a year of months; 1 if
    /// there is no usual one.
    pub fn season(&self) -> usize {
        let of = |whole: i64| {
            let times = whole / self.step.max(1);
            if whole % self.step.max(1) == 0 && times > 1 { times as usize } else { 1 }
        };
        match &self.grid {
            Grid::Time if self.step < NS_PER_MINUTE => 1,
            Grid::Time => of(NS_PER_DAY),
            Grid::Day if self.step == 7 => 52,
            Grid::Day => of(7),
            Grid::BusinessDay => of(5),
            Grid::Month(_) => of(12),
            Grid::Week(times) => {
                let days =
                    times.iter().map(|time| time / NS_PER_DAY).collect::<BTreeSet<_>>().len();
                let a_day = times.len() / days.max(1);
                if a_day > 1 && times.len() % days == 0 { a_day } else { times.len() }
            }
        }
    }

    /// "1 hour", "28 days", "1 business day", "3 months"
    pub fn apart(&self) -> Cow<'static, str> {
        let count = |n: i64, what: &str| {
            let s = if n == 1 { "" } else { "s" };
            Cow::Owned(format!("{n} {what}{s}"))
        };
        match &self.grid {
            Grid::Time => Cow::Owned(span(SignedDuration::from_nanos(self.step))),
            Grid::Day => count(self.step, "day"),
            Grid::BusinessDay => count(self.step, "business day"),
            Grid::Month(_) if self.step % 12 == 0 => count(self.step / 12, "year"),
            Grid::Month(_) => count(self.step, "month"),
            Grid::Week(_) => Cow::Borrowed("1 place of the week"),
        }
    }
}

/// Describes gaps between `dates`, each of which has a line.
pub(crate) fn gaps(dates: &[Date], lines: &[u64], frequency: &Frequency) -> Option<String> {
    let missing = frequency.missing(dates)?;
    let gaps = || missing.iter().enumerate().filter(|(_, n)| **n > 0).map(|(at, _)| at);
    let length = |at: usize| dates[at + 1].instant().duration_since(dates[at].instant());
    // The first of equally long ones.
    let largest = gaps().reduce(|a, b| if length(b) > length(a) { b } else { a })?;
    let n = gaps().count();
    let (s, which) = if n == 1 { ("", "it is") } else { ("s", "the largest is") };
    Some(format!(
        "{n} gap{s} between its dates, which are usually {} apart: {which} {}, after line {}",
        frequency.apart(),
        span(length(largest)),
        lines[largest]
    ))
}

/// "15m", "1h 30m", "7 days"
fn span(time: SignedDuration) -> String {
    const DAY: i64 = 86_400;
    match time.as_secs() {
        DAY if time.subsec_nanos() == 0 => "1 day".to_owned(),
        seconds if seconds > 0 && seconds % DAY == 0 && time.subsec_nanos() == 0 => {
            format!("{} days", seconds / DAY)
        }
        _ => format!("{time:#}"),
    }
}

/// Grids on which the dates may lie, in the order in which equally regular ones are preferred.
fn grids(dates: &[Date]) -> Vec<Grid> {
    let first = dates[0].local;
    let last = dates[dates.len() - 1].local;
    let latest = dates.iter().map(|date| date.local.day()).max().unwrap_or(1);
    let nth = NthWeekday::of(first);
    let month_days = [
        MonthDay::First,
        MonthDay::FirstBusinessDay,
        MonthDay::Last,
        MonthDay::LastBusinessDay,
        MonthDay::Day(latest),
        MonthDay::Nth(nth.weekday, nth.nth),
    ];
    let mut grids: Vec<Grid> = month_days.into_iter().map(Grid::Month).collect();
    grids.extend([Grid::Day, Grid::BusinessDay, Grid::Time]);
    let times: BTreeSet<i64> = dates.iter().map(|date| time_of_week(date.local)).collect();
    let weeks = i128::from(NS_PER_DAY) * 7 * WEEKS;
    if since_epoch(last) - since_epoch(first) >= weeks && times.len() <= MAX_TIMES {
        grids.push(Grid::Week(times.into_iter().collect()));
    }
    grids.extend(opening_hours(dates));
    grids
}

/// Finds the times that recur on each day, such as the hours of an exchange; from Monday to Friday
/// unless there are dates of a weekend.
fn opening_hours(dates: &[Date]) -> Option<Grid> {
    // By time of day the last day that has it, and how many have.
    let mut days_of: BTreeMap<i64, (i128, usize)> = BTreeMap::new();
    let mut weekdays = BTreeSet::new();
    for date in dates {
        let (time, day) = (time_of_week(date.local), day_of(date.local));
        weekdays.insert(time / NS_PER_DAY);
        let (last, count) = days_of.entry(time % NS_PER_DAY).or_insert((day, 1));
        *count += usize::from(*last != day);
        *last = day;
        if days_of.len() * 7 > MAX_TIMES {
            return None;
        }
    }
    if days_of.len() < 2 || days_of.values().any(|(_, days)| *days < DAYS) {
        return None;
    }
    let (first, last) = (day_of(dates[0].local), day_of(dates[dates.len() - 1].local));
    if weekdays.iter().all(|weekday| *weekday < 5) {
        weekdays.extend(0..5);
    } else {
        // Days that the dates do not reach may have them, too.
        let is_reached = |weekday: i64| (first..=last).any(|day| weekday_of(day) == weekday);
        weekdays.extend((0..7).filter(|weekday| !is_reached(*weekday)));
    }
    let times =
        weekdays.iter().flat_map(|day| days_of.keys().map(move |time| day * NS_PER_DAY + time));
    Some(Grid::Week(times.collect()))
}

/// A weekday's number within its month, from 1.
struct NthWeekday {
    weekday: i8,
    nth: i8,
}

impl NthWeekday {
    fn of(date: DateTime) -> Self {
        Self { weekday: date.weekday().to_monday_zero_offset(), nth: (date.day() - 1) / 7 + 1 }
    }
}

impl Grid {
    /// The places of dates, all of which have the same time of day where the grid has days.
    fn places(&self, dates: &[Date]) -> Option<Vec<i128>> {
        let has_days = !matches!(self, Self::Time | Self::Week(_));
        let time = dates.first()?.local.time();
        if has_days && dates.iter().any(|date| date.local.time() != time) {
            return None;
        }
        dates.iter().map(|date| self.place(*date)).collect()
    }

    /// The place of a date; `None` if it is at none.
    fn place(&self, date: Date) -> Option<i128> {
        let local = date.local;
        match self {
            Self::Time => Some(since_epoch(date.instant())),
            Self::Day => Some(day_of(local)),
            Self::BusinessDay => {
                let weekday = i128::from(local.weekday().to_monday_zero_offset());
                (weekday < 5).then(|| 5 * week_of(local) + weekday)
            }
            Self::Month(day) => {
                let month = 12 * i128::from(local.year()) + i128::from(local.month()) - 1;
                (day.date(month)? == local.date()).then_some(month)
            }
            Self::Week(times) => {
                let place = times.binary_search(&time_of_week(local)).ok()?;
                Some(times.len() as i128 * week_of(local) + place as i128)
            }
        }
    }

    /// The date at a place, with the time of day of `like`.
    fn date(&self, place: i128, like: DateTime) -> Option<DateTime> {
        let day = match self {
            Self::Time => return after_epoch(place),
            Self::Day => place,
            // 1970 began on a Thursday.
            Self::BusinessDay => 7 * place.div_euclid(5) + place.rem_euclid(5) - 3,
            Self::Month(day) => return Some(day.date(place)?.to_datetime(like.time())),
            Self::Week(times) => {
                let n = times.len() as i128;
                let time = times[usize::try_from(place.rem_euclid(n)).ok()?];
                let monday = i128::from(NS_PER_DAY) * (7 * place.div_euclid(n) - 3);
                return after_epoch(monday + i128::from(time));
            }
        };
        let date = after_epoch(day.checked_mul(i128::from(NS_PER_DAY))?)?.date();
        Some(date.to_datetime(like.time()))
    }
}

impl MonthDay {
    /// The day in a month, which is counted from year 0.
    fn date(self, month: i128) -> Option<jiff::civil::Date> {
        let year = i16::try_from(month.div_euclid(12)).ok()?;
        let first = jiff::civil::Date::new(year, month.rem_euclid(12) as i8 + 1, 1).ok()?;
        let days = first.days_in_month();
        let is_weekend = |day: &i8| {
            let date = first.with().day(*day).build();
            date.is_ok_and(|date| matches!(date.weekday(), Weekday::Saturday | Weekday::Sunday))
        };
        let day = match self {
            Self::First => 1,
            Self::FirstBusinessDay => (1..=3).find(|day| !is_weekend(day))?,
            Self::Last => days,
            Self::LastBusinessDay => (1..=days).rev().find(|day| !is_weekend(day))?,
            Self::Day(day) => day.min(days),
            Self::Nth(weekday, nth) => {
                let first = first.weekday().to_monday_zero_offset();
                1 + (weekday - first).rem_euclid(7) + 7 * (nth - 1)
            }
        };
        first.with().day(day).build().ok()
    }
}

/// Distance of each position from the one before it; `None` unless all ascend.
fn steps(places: &[i128]) -> Option<Vec<i64>> {
    let step = |pair: &[i128]| i64::try_from(pair[1] - pair[0]).ok().filter(|step| *step > 0);
    places.windows(2).map(step).collect()
}

/// The smallest of equally frequent ones.
fn most_frequent(steps: &[i64]) -> Option<i64> {
    let mut counts = BTreeMap::new();
    for step in steps {
        *counts.entry(*step).or_insert(0u64) += 1;
    }
    counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(step, _)| step)
}

/// Nanoseconds since 1970.
fn since_epoch(date: DateTime) -> i128 {
    date.duration_since(DateTime::constant(1970, 1, 1, 0, 0, 0, 0)).as_nanos()
}

fn after_epoch(nanoseconds: i128) -> Option<DateTime> {
    let seconds = i64::try_from(nanoseconds.div_euclid(i128::from(NS_PER_SECOND))).ok()?;
    let rest = nanoseconds.rem_euclid(i128::from(NS_PER_SECOND)) as i32;
    let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    epoch.checked_add(SignedDuration::new(seconds, rest)).ok()
}

/// Days since 1970.
fn day_of(date: DateTime) -> i128 {
    since_epoch(date).div_euclid(i128::from(NS_PER_DAY))
}

/// The day of the week, 0 is Monday, of a day since 1970.
fn weekday_of(day: i128) -> i64 {
    (day + 3).rem_euclid(7) as i64
}

/// Weeks, which begin on Monday, since that of 1 January 1970.
fn week_of(date: DateTime) -> i128 {
    (day_of(date) + 3).div_euclid(7)
}

/// Nanoseconds since Monday.
fn time_of_week(date: DateTime) -> i64 {
    let day = i64::from(date.weekday().to_monday_zero_offset());
    let time = date.time().duration_since(Time::midnight());
    day * NS_PER_DAY + i64::try_from(time.as_nanos()).unwrap_or(0)
}

/// `data.frequency`: a frequency in the words of pandas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FrequencyAlias {
    text: String,
    frequency: Frequency,
}

/// Names of pandas with the step and the place that they stand for; of those of one kind the
/// present one first.
const TIMES: [(&str, i64); 9] = [
    ("h", NS_PER_HOUR),
    ("min", NS_PER_MINUTE),
    ("s", NS_PER_SECOND),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
    ("H", NS_PER_HOUR),
    ("T", NS_PER_MINUTE),
    ("S", NS_PER_SECOND),
];
const MONTHS: [(&str, MonthDay, i64); 21] = [
    ("MS", MonthDay::First, 1),
    ("QS", MonthDay::First, 3),
    ("YS", MonthDay::First, 12),
    ("ME", MonthDay::Last, 1),
    ("QE", MonthDay::Last, 3),
    ("YE", MonthDay::Last, 12),
    ("BMS", MonthDay::FirstBusinessDay, 1),
    ("BQS", MonthDay::FirstBusinessDay, 3),
    ("BYS", MonthDay::FirstBusinessDay, 12),
    ("BME", MonthDay::LastBusinessDay, 1),
    ("BQE", MonthDay::LastBusinessDay, 3),
    ("BYE", MonthDay::LastBusinessDay, 12),
    ("M", MonthDay::Last, 1),
    ("Q", MonthDay::Last, 3),
    ("Y", MonthDay::Last, 12),
    ("A", MonthDay::Last, 12),
    ("AS", MonthDay::First, 12),
    ("BM", MonthDay::LastBusinessDay, 1),
    ("BQ", MonthDay::LastBusinessDay, 3),
    ("BY", MonthDay::LastBusinessDay, 12),
    ("BA", MonthDay::LastBusinessDay, 12),
];
const EXPECTED: &str = "is no frequency: write h, min, s, ms, D, B (Monday to Friday), W, MS, ME, \
                        BMS, BME, QS, QE, YS or YE, perhaps with a number before it, as in `15min`";

impl FrequencyAlias {
    /// The frequency that a word of pandas stands for, as `15min`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let name = text.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &text[..text.len() - name.len()];
        let n: i64 = if number.is_empty() { 1 } else { number.parse().unwrap_or(0) };
        let name = name.trim_start();
        if let Some((unit, _)) = name.split_once('-').filter(|(unit, _)| !unit.is_empty()) {
            return Err(format!(
                "`{text}` has an anchor, which follows from the dates: write `{number}{unit}`"
            ));
        }
        let (grid, unit) = if let Some((_, unit)) = TIMES.iter().find(|(alias, _)| *alias == name) {
            (Grid::Time, *unit)
        } else if let Some((_, day, unit)) = MONTHS.iter().find(|(alias, ..)| *alias == name) {
            (Grid::Month(*day), *unit)
        } else {
            match name {
                "D" => (Grid::Day, 1),
                "W" => (Grid::Day, 7),
                "B" => (Grid::BusinessDay, 1),
                _ => return Err(format!("`{text}` {EXPECTED}")),
            }
        };
        let step = n.checked_mul(unit).filter(|step| *step > 0);
        let step = step.ok_or_else(|| format!("`{text}` {EXPECTED}"))?;
        Ok(Self { text: text.to_owned(), frequency: Frequency { grid, step } })
    }

    pub(crate) fn frequency(&self) -> &Frequency {
        &self.frequency
    }
}

impl fmt::Display for Frequency {
    /// Writes pandas' name, without an anchor; words if pandas has no name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |name: &str, unit: i64| {
            (self.step % unit == 0).then(|| (self.step / unit, name.to_owned()))
        };
        let found = match &self.grid {
            Grid::Time => TIMES.iter().find_map(|(name, unit)| named(name, *unit)),
            Grid::Day => named("W", 7).or_else(|| named("D", 1)),
            Grid::BusinessDay => named("B", 1),
            Grid::Month(day) => {
                let names =
                    MONTHS.iter().rev().filter(|(name, of, _)| of == day && is_current(name));
                let largest =
                    names.max_by_key(|(_, _, unit)| if self.step % unit == 0 { *unit } else { 0 });
                largest.and_then(|(name, _, unit)| named(name, *unit))
            }
            Grid::Week(times) => return write!(f, "{} times a week", times.len()),
        };
        match found {
            Some((1, name)) => f.write_str(&name),
            Some((n, name)) => write!(f, "{n}{name}"),
            None => write!(f, "every {} on the same day", self.apart()),
        }
    }
}

/// True if pandas writes a frequency this way today.
fn is_current(name: &str) -> bool {
    MONTHS[..12].iter().any(|(current, ..)| *current == name)
}

impl TryFrom<String> for FrequencyAlias {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<FrequencyAlias> for String {
    fn from(alias: FrequencyAlias) -> Self {
        alias.text
    }
}
