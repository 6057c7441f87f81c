//! Dates of a table's rows -> features from -0.5 to 0.5, as in the Informer family of forecasters.

use jiff::civil::DateTime;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Features of the date that a forecaster sees beside the series, each from -0.5 to 0.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Calendar {
    /// None.
    None,
    /// Hour, day of the week, day of the month, day of the year.
    #[default]
    Hour,
    /// Minute, and those of `hour`.
    Minute,
}

impl Calendar {
    /// Number of features.
    pub fn features(self) -> usize {
        match self {
            Self::None => 0,
            Self::Hour => 4,
            Self::Minute => 5,
        }
    }
}

/// Describes each feature for other programs: its name, the value that is subtracted, and the
/// largest value, by which it is divided before 0.5 is subtracted.
pub(super) fn described(calendar: Calendar) -> Vec<serde_json::Value> {
    let minute = ("minute", 0, 59);
    let others =
        [("hour", 0, 23), ("day_of_week", 0, 6), ("day_of_month", 1, 30), ("day_of_year", 1, 365)];
    let of: Vec<(&str, i32, i32)> = match calendar {
        Calendar::None => Vec::new(),
        Calendar::Hour => others.to_vec(),
        Calendar::Minute => [&[minute][..], &others].concat(),
    };
    let feature = |(of, first, most)| serde_json::json!({ "of": of, "minus": first, "over": most });
    of.into_iter().map(feature).collect()
}

/// Appends the features of a date; zeros without one.
pub(super) fn append(calendar: Calendar, date: Option<DateTime>, features: &mut Vec<f32>) {
    let Some(date) = date else {
        features.extend(std::iter::repeat_n(0.0, calendar.features()));
        return;
    };
    // Each number over its largest value, centred; as in f64, then rounded.
    let share = |value: i16, most: f64| (f64::from(value) / most - 0.5) as f32;
    if calendar == Calendar::Minute {
        features.push(share(date.minute().into(), 59.0));
    }
    if calendar != Calendar::None {
        features.push(share(date.hour().into(), 23.0));
        features.push(share(date.weekday().to_monday_zero_offset().into(), 6.0));
        features.push(share(i16::from(date.day()) - 1, 30.0));
        features.push(share(date.day_of_year() - 1, 365.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(calendar: Calendar, cell: &str) -> Vec<f32> {
        let mut features = Vec::new();
        append(calendar, Some(cell.parse().unwrap()), &mut features);
        features
    }

    #[test]
    fn features_are_those_of_the_golden_numbers() {
        // Rows 0 and 8639 of ETTh1; a Friday, and a Sunday in a leap year's successor.
        assert_eq!(
            features(Calendar::Hour, "2016-07-01 00:00:00"),
            [-0.5, 1.0 / 6.0, -0.5, -0.001_369_863]
        );
        assert_eq!(
            features(Calendar::Hour, "2017-06-25 23:00:00"),
            [0.5, 0.5, 0.3, -0.020_547_945]
        );
        assert_eq!(features(Calendar::Minute, "1990-01-01 00:59"), [0.5, -0.5, -0.5, -0.5, -0.5]);
        assert_eq!(features(Calendar::None, "1990-01-01 00:59"), [0.0; 0]);
    }

    #[test]
    fn a_table_without_dates_has_zeros() {
        let mut features = Vec::new();
        append(Calendar::Hour, None, &mut features);
        assert_eq!(features, [0.0; 4]);
    }
}
