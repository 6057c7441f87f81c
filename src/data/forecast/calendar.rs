//! Dates of a table's rows -> features from -0.5 to 0.5, as in the Informer family of forecasters.

use jiff::civil::DateTime;

use crate::plan::Calendar;

/// Appends the features of a cell such as `2016-07-01 02:00:00` or `1990/1/1 0:00`. Without a date they are zeros.
///
/// # Errors
///
/// Says why the cell is no date.
pub(super) fn append(
    calendar: Calendar,
    cell: Option<&str>,
    features: &mut Vec<f32>,
) -> Result<(), String> {
    let Some(cell) = cell else {
        features.extend(std::iter::repeat_n(0.0, calendar.features()));
        return Ok(());
    };
    let date =
        parse(cell).ok_or_else(|| format!("`{cell}` is not a date: year-month-day [time]"))?;
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
    Ok(())
}

/// Year, month and day, then perhaps hour, minute and second, in numbers between anything else.
fn parse(cell: &str) -> Option<DateTime> {
    let mut numbers = cell.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    let (year, month, day) = (
        numbers.next()?.parse().ok()?,
        numbers.next()?.parse().ok()?,
        numbers.next()?.parse().ok()?,
    );
    let mut time = || numbers.next().map_or(Some(0), |part| part.parse::<i8>().ok());
    DateTime::new(year, month, day, time()?, time()?, time()?, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(calendar: Calendar, cell: &str) -> Vec<f32> {
        let mut features = Vec::new();
        append(calendar, Some(cell), &mut features).unwrap();
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
        assert_eq!(features(Calendar::Minute, "1990/1/1 0:59"), [0.5, -0.5, -0.5, -0.5, -0.5]);
        assert_eq!(features(Calendar::None, "1990/1/1 0:59"), [0.0; 0]);
    }

    #[test]
    fn a_table_without_dates_has_zeros_and_a_cell_that_is_none_is_named() {
        let mut features = Vec::new();
        append(Calendar::Hour, None, &mut features).unwrap();
        assert_eq!(features, [0.0; 4]);
        for cell in ["", "yesterday", "2016-13-01", "2016-02-30 00:00", "2016-07"] {
            let error = append(Calendar::Hour, Some(cell), &mut features).unwrap_err();
            assert!(error.starts_with(&format!("`{cell}` is not a date")), "{error}");
        }
    }
}
