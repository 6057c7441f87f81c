//! The numbers that dates of tables become.

use std::f64::consts::TAU;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::sources::dates::Date;

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
    /// Days since 1970, in UTC where dates have an offset.
    ElapsedDays,
}

impl DateFeature {
    /// Count of numbers.
    pub(crate) fn width(self, cyclic: bool) -> usize {
        if cyclic && self.period().is_some() { 2 } else { 1 }
    }

    /// True if its numbers are sine and cosine, which are not standardised.
    pub(crate) fn is_cyclic(self, cyclic: bool) -> bool {
        self.width(cyclic) == 2
    }

    /// Appends it: as sine and cosine if it comes round and these are asked for, else as a number.
    pub(crate) fn append(self, date: Date, cyclic: bool, numbers: &mut Vec<f64>) {
        let number = self.number(date);
        match self.period() {
            Some((first, period)) if cyclic => {
                let angle = TAU * (number - first) / period;
                numbers.extend([angle.sin(), angle.cos()]);
            }
            _ => numbers.push(number),
        }
    }

    /// Describes each number for other programs: the feature and, for a sine or cosine, the first
    /// value and the length of its cycle.
    pub(crate) fn described(self, cyclic: bool) -> Vec<Value> {
        match self.period().filter(|_| cyclic) {
            Some((first, period)) => ["sine", "cosine"]
                .map(|wave| json!({ "of": self, "wave": wave, "minus": first, "period": period }))
                .to_vec(),
            None => vec![json!({ "of": self })],
        }
    }

    /// The value on calendar or clock, of all but elapsed time.
    fn number(self, written: Date) -> f64 {
        let date = written.local;
        match self {
            Self::Year => date.year().into(),
            Self::Month => date.month().into(),
            Self::Day => date.day().into(),
            Self::DayOfWeek => date.weekday().to_monday_zero_offset().into(),
            Self::DayOfYear => date.day_of_year().into(),
            Self::Hour => date.hour().into(),
            Self::Minute => date.minute().into(),
            Self::ElapsedDays => {
                let since =
                    written.instant().duration_since(jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0));
                since.as_secs_f64() / 86_400.0
            }
        }
    }

    /// First value and length of the cycle.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::dates::DateForm;

    #[test]
    fn features_come_round_or_are_numbers() {
        use DateFeature::{Day, DayOfWeek, DayOfYear, ElapsedDays, Hour, Minute, Month, Year};
        let check = |feature: DateFeature, cell: &str, expected: [f64; 3]| {
            let (mut plain, mut cyclic) = (Vec::new(), Vec::new());
            let (date, _) = DateForm::default().read(cell, 1).unwrap();
            feature.append(date, false, &mut plain);
            feature.append(date, true, &mut cyclic);
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
        check(ElapsedDays, "1970-01-02 12:00+12:00", [1.0, 1.0, 0.0]);
        check(Hour, "1970-01-02 18:00+12:00", [18.0, -1.0, 0.0]);
    }
}
