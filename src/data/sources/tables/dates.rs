//! Dates in the cells of tables, and the numbers that they become.

use std::f64::consts::TAU;

use jiff::civil::DateTime;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is taken from a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DateFeature {
    /// The year.
    Year,
    /// The month, 1 to 12.
    Month,
    /// The day of the month, 1 to 31.
    Day,
    /// The day of the week, 0 (Monday) to 6.
    DayOfWeek,
    /// The day of the year, 1 to 366.
    DayOfYear,
    /// The hour, 0 to 23.
    Hour,
    /// The minute, 0 to 59.
    Minute,
    /// Days since 1970.
    ElapsedDays,
}

impl DateFeature {
    /// How many numbers it is.
    pub(crate) fn width(self, cyclic: bool) -> usize {
        if cyclic && self.period().is_some() { 2 } else { 1 }
    }

    /// Whether its numbers are sine and cosine, which stay as they are.
    pub(crate) fn is_cyclic(self, cyclic: bool) -> bool {
        self.width(cyclic) == 2
    }

    /// Appends it: as sine and cosine if it comes round and these are asked for, else as a number.
    pub(crate) fn append(self, date: DateTime, cyclic: bool, numbers: &mut Vec<f64>) {
        let number = self.number(date);
        match self.period().filter(|_| cyclic) {
            Some((first, period)) => {
                let angle = TAU * (number - first) / period;
                numbers.extend([angle.sin(), angle.cos()]);
            }
            None => numbers.push(number),
        }
    }

    fn number(self, date: DateTime) -> f64 {
        match self {
            Self::Year => date.year().into(),
            Self::Month => date.month().into(),
            Self::Day => date.day().into(),
            Self::DayOfWeek => date.weekday().to_monday_zero_offset().into(),
            Self::DayOfYear => date.day_of_year().into(),
            Self::Hour => date.hour().into(),
            Self::Minute => date.minute().into(),
            Self::ElapsedDays => {
                let since = date.duration_since(jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0));
                since.as_secs_f64() / 86_400.0
            }
        }
    }

    /// Its first value, and after how many it comes round.
    fn period(self) -> Option<(f64, f64)> {
        match self {
            Self::Year | Self::ElapsedDays => None,
            Self::Month => Some((1.0, 12.0)),
            Self::Day => Some((1.0, 31.0)),
            Self::DayOfWeek => Some((0.0, 7.0)),
            Self::DayOfYear => Some((1.0, 366.0)),
            Self::Hour => Some((0.0, 24.0)),
            Self::Minute => Some((0.0, 60.0)),
        }
    }
}

/// Whether a cell holds a date.
pub(crate) fn is_date(cell: &str) -> bool {
    parse(cell).is_some()
}

/// Year (four digits), month and day, then perhaps hour, minute, second and its fraction, in
/// numbers between anything else; perhaps AM or PM at the end.
pub(in crate::data) fn parse(cell: &str) -> Option<DateTime> {
    let fraction = cell.rsplit_once('.').filter(|(before, _)| before.contains(':'));
    let nanosecond = fraction.map_or(0, |(_, digits)| nanoseconds(digits));
    let mut numbers = cell.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    // Two digits may be a day, a month or a year.
    let year = numbers.next().filter(|year| year.len() == 4)?.parse().ok()?;
    let (month, day) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    let mut time = || numbers.next().map_or(Some(0), |part| part.parse::<i8>().ok());
    let hour = hour_of_day(time()?, cell)?;
    DateTime::new(year, month, day, hour, time()?, time()?, nanosecond).ok()
}

/// The hour as it is, or from 0 to 23 where `cell` ends in AM or PM.
fn hour_of_day(hour: i8, cell: &str) -> Option<i8> {
    let end = cell.len().checked_sub(2).and_then(|at| cell.get(at..)).unwrap_or_default();
    let first = match end.to_ascii_lowercase().as_str() {
        "am" => 0,
        "pm" => 12,
        _ => return Some(hour),
    };
    (1..=12).contains(&hour).then_some(first + hour % 12)
}

/// "25" of a second.
fn nanoseconds(digits: &str) -> i32 {
    let digits = digits.bytes().take_while(u8::is_ascii_digit).map(|digit| i32::from(digit - b'0'));
    digits.chain(std::iter::repeat(0)).take(9).fold(0, |number, digit| 10 * number + digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_year_has_four_digits_and_hours_may_be_those_of_a_half_day() {
        for cell in ["05/01/24", "24-01-05", "5.1.2024", "1.2.3", "2024-01-05 13:00 PM"] {
            assert_eq!(parse(cell), None, "{cell}");
        }
        let day = jiff::civil::date(2024, 1, 5);
        for (time, hour) in [("1:30 PM", 13), ("12:30 am", 0), ("12:30PM", 12), ("11:30 AM", 11)] {
            let found = parse(&format!("2024-01-05 {time}"));
            assert_eq!(found, Some(day.at(hour, 30, 0, 0)), "{time}");
        }
        assert_eq!(parse("2024/1/5 13:30"), Some(day.at(13, 30, 0, 0)));
    }

    #[test]
    fn features_come_round_or_are_numbers() {
        use DateFeature::{Day, DayOfWeek, DayOfYear, ElapsedDays, Hour, Minute, Month, Year};
        let check = |feature: DateFeature, cell: &str, expected: [f64; 3]| {
            let (mut plain, mut cyclic) = (Vec::new(), Vec::new());
            feature.append(parse(cell).unwrap(), false, &mut plain);
            feature.append(parse(cell).unwrap(), true, &mut cyclic);
            assert_eq!((plain.len(), cyclic.len()), (1, feature.width(true)));
            let found = plain.iter().chain(&cyclic);
            assert!(found.zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{feature:?}");
        };
        check(Year, "2024-02-29", [2024.0, 2024.0, 0.0]);
        check(Month, "2024-04-29", [4.0, 1.0, 0.0]);
        check(Day, "2024-02-01", [1.0, 0.0, 1.0]);
        check(DayOfWeek, "2026-11-23", [0.0, 0.0, 1.0]);
        check(DayOfYear, "2024-12-31", [366.0, (TAU * 365.0 / 366.0).sin(), (TAU / 366.0).cos()]);
        check(Hour, "2024-02-29 18:30", [18.0, -1.0, 0.0]);
        check(Minute, "2024-02-29 18:30", [30.0, 0.0, -1.0]);
        check(ElapsedDays, "1970-01-02 12:00", [1.5, 1.5, 0.0]);
    }
}
