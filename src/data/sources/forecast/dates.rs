//! The order of a table's dates. Rows are cut in their order into training, validation and test:
//! where dates descend or repeat, what is to be predicted may have been trained on.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use jiff::civil::DateTime;

/// Seconds of a day.
const DAY: i64 = 86_400;

/// The dates of the rows so far, each with its line.
#[derive(Default)]
pub(super) struct Dates(Vec<(DateTime, u64)>);

/// The `n` dates after the two last ones of a table: months and years apart where these are, else
/// by the same time.
pub(super) fn following([before, last]: [DateTime; 2], n: usize) -> Option<Vec<DateTime>> {
    let months = (i32::from(last.year()) - i32::from(before.year())) * 12 + i32::from(last.month())
        - i32::from(before.month());
    let ends = |date: DateTime| date.day() == date.days_in_month();
    let is_same_day = before.day() == last.day() || (ends(before) && ends(last));
    let by_months = months > 0 && is_same_day && before.time() == last.time();
    let time = last.duration_since(before);
    let next = |k: usize| {
        let k = k as i32 + 1;
        if by_months {
            let found = last.checked_add(jiff::Span::new().try_months(months * k).ok()?).ok()?;
            // The end of a month is followed by the end of the next.
            return if ends(before) && ends(last) {
                Some(found.last_of_month())
            } else {
                Some(found)
            };
        }
        last.checked_add(time.checked_mul(k)?).ok()
    };
    (0..n).map(next).collect()
}

impl Dates {
    /// Takes the `date` of the row at `line`.
    ///
    /// # Errors
    ///
    /// It is not later than that of the row before it.
    pub(super) fn push(&mut self, date: DateTime, line: u64) -> Result<(), String> {
        if let Some(&(last, before)) = self.0.last()
            && date <= last
        {
            return Err(if date == last {
                format!("the date {date} repeats that of line {before}")
            } else {
                format!("the date {date} is earlier than {last} of line {before}")
            });
        }
        self.0.push((date, line));
        Ok(())
    }

    /// Where rows seem to be missing: more than one and a half times the usual time lies between
    /// two dates.
    pub(super) fn gaps(&self) -> Option<String> {
        let steps = || {
            let pairs = self.0.windows(2);
            pairs.map(|pair| (pair[1].0.duration_since(pair[0].0), pair[0].1))
        };
        let mut counts = BTreeMap::new();
        for (step, _) in steps() {
            *counts.entry(step).or_insert(0u64) += 1;
        }
        // Of equally frequent ones the shortest.
        let (usual, _) = counts.into_iter().rev().max_by_key(|(_, count)| *count)?;
        let gaps: Vec<_> = steps().filter(|(step, _)| *step > usual + usual / 2).collect();
        let (largest, line) = gaps.iter().copied().max_by_key(|(step, _)| *step)?;
        let (n, s) = (gaps.len(), if gaps.len() == 1 { "" } else { "s" });
        let (usual, largest) = (span(usual), span(largest));
        let which = if n == 1 { "it is" } else { "the largest is" };
        Some(format!(
            "{n} gap{s} between its dates, which are usually {usual} apart: {which} {largest}, \
             after line {line}"
        ))
    }
}

/// "15m", "1h 30m", "7 days"
fn span(time: SignedDuration) -> String {
    match time.as_secs() {
        DAY => "1 day".to_owned(),
        seconds if seconds > 0 && seconds % DAY == 0 => format!("{} days", seconds / DAY),
        _ => format!("{time:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dates(hours: &[i64]) -> Result<Dates, String> {
        let first = jiff::civil::date(2016, 7, 1).at(0, 0, 0, 0);
        let mut dates = Dates::default();
        for (hour, line) in hours.iter().zip(2..) {
            dates.push(first + SignedDuration::from_hours(*hour), line)?;
        }
        Ok(dates)
    }

    #[test]
    fn dates_that_repeat_or_descend_are_told_with_the_line_before() {
        let refused = |hours: &[i64]| dates(hours).err().unwrap();
        assert_eq!(refused(&[0, 1, 1]), "the date 2016-07-01T01:00:00 repeats that of line 3");
        assert_eq!(
            refused(&[5, 4]),
            "the date 2016-07-01T04:00:00 is earlier than 2016-07-01T05:00:00 of line 2"
        );
    }

    #[test]
    fn dates_go_on_by_the_same_time_or_by_months() {
        let at = |year, month, day, hour| jiff::civil::date(year, month, day).at(hour, 0, 0, 0);
        let after = |two| following(two, 2).unwrap();
        let hours = after([at(2016, 7, 1, 22), at(2016, 7, 1, 23)]);
        assert_eq!(hours, [at(2016, 7, 2, 0), at(2016, 7, 2, 1)]);
        let months = after([at(2016, 1, 1, 0), at(2016, 2, 1, 0)]);
        assert_eq!(months, [at(2016, 3, 1, 0), at(2016, 4, 1, 0)]);
        let ends = after([at(2015, 12, 31, 0), at(2016, 1, 31, 0)]);
        assert_eq!(ends, [at(2016, 2, 29, 0), at(2016, 3, 31, 0)]);
    }

    #[test]
    fn gaps_are_told_by_how_much() {
        let gaps = |hours: &[i64]| dates(hours).unwrap().gaps();
        assert_eq!(gaps(&[]), None);
        assert_eq!(gaps(&[0, 1, 2, 3]), None);
        assert_eq!(
            gaps(&[0, 1, 2, 5, 6, 30, 31]).unwrap(),
            "2 gaps between its dates, which are usually 1h apart: the largest is 1 day, after \
             line 6"
        );
        assert_eq!(
            gaps(&[0, 24, 48, 120]).unwrap(),
            "1 gap between its dates, which are usually 1 day apart: it is 3 days, after line 4"
        );
        // Months are of 28 to 31 days.
        assert_eq!(gaps(&[0, 31 * 24, 59 * 24, 90 * 24, 120 * 24]), None);
    }
}
