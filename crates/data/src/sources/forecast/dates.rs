//! The dates of a series: in ascending order, and with those that follow them.

use jiff::civil::Time;
use jiff::tz::TimeZone;

use crate::sources::dates::{
    Date, DateForm, FORMAT_KEY, FormInference, Frequency, WrongDate, gaps,
};

/// The dates of all rows.
pub(super) struct Dates {
    all: Vec<Date>,
    /// Line of each.
    lines: Vec<u64>,
    form: DateForm,
    /// The time zone, if the last cell names one.
    zone: Option<TimeZone>,
}

impl Dates {
    /// The dates in the cells of a column, each with its line: in the format that is `given`, in
    /// that of the run if they fit it, or else in the one that all of them fit.
    pub(super) fn read(
        cells: &[(String, u64)],
        given: Option<&str>,
        kept: Option<&DateForm>,
    ) -> Result<Self, WrongDate> {
        if let Some(dates) = kept.and_then(|form| Self::of(cells, form.clone()).ok()) {
            return Ok(dates);
        }
        let mut inference = FormInference::new(given);
        for (cell, line) in cells {
            inference.see(cell, *line)?;
        }
        Self::of(cells, inference.form(FORMAT_KEY)?.unwrap_or_default())
    }

    fn of(cells: &[(String, u64)], form: DateForm) -> Result<Self, WrongDate> {
        let read = cells.iter().map(|(cell, line)| form.read(cell, *line));
        let read: Vec<(Date, Option<TimeZone>)> = read.collect::<Result<_, _>>()?;
        let zone = read.last().and_then(|(_, zone)| zone.clone());
        let lines = cells.iter().map(|(_, line)| *line).collect();
        Ok(Self { all: read.into_iter().map(|(date, _)| date).collect(), lines, form, zone })
    }

    /// All dates.
    pub(super) fn all(&self) -> &[Date] {
        &self.all
    }

    /// The format in which they are written.
    pub(super) fn form(&self) -> &DateForm {
        &self.form
    }

    /// Refuses dates that descend or repeat: rows are cut in their order into training, validation
    /// and test, so that what is to be predicted may have been trained on.
    pub(super) fn check_order(&self) -> Result<(), (u64, String)> {
        let is_wrong = |at: &usize| self.all[at + 1].instant() <= self.all[*at].instant();
        let Some(at) = (0..self.all.len().saturating_sub(1)).find(is_wrong) else { return Ok(()) };
        let before = self.all[at];
        let date = self.all[at + 1];
        let line = self.lines[at];
        let [last, next] = [before, date].map(|date| {
            let offset = date.offset.map(|offset| offset.to_string()).unwrap_or_default();
            format!("{}{offset}", date.local)
        });
        let what = if date.instant() == before.instant() {
            format!("the date {next} repeats that of line {line}")
        } else {
            format!("the date {next} is earlier than {last} of line {line}")
        };
        Err((self.lines[at + 1], what))
    }

    /// Frequency of the dates, if it is regular.
    pub(super) fn frequency(&self) -> Option<Frequency> {
        Frequency::infer(&self.all)
    }

    /// The last `n` of them.
    pub(super) fn last(&self, n: usize) -> Self {
        let from = self.all.len().saturating_sub(n);
        let (all, lines) = (self.all[from..].to_vec(), self.lines[from..].to_vec());
        Self { all, lines, form: self.form.clone(), zone: self.zone.clone() }
    }

    /// Describes gaps between rows.
    pub(super) fn gaps(&self, frequency: &Frequency) -> Option<String> {
        gaps(&self.all, &self.lines, frequency)
    }

    /// Describes gaps between rows, or says that no frequency is known.
    pub(super) fn note(&self, frequency: Option<&Frequency>) -> Option<String> {
        match frequency {
            Some(frequency) if frequency.fits(&self.all) => self.gaps(frequency),
            Some(frequency) => {
                Some(format!("not all of its dates are at the frequency `{frequency}`"))
            }
            // Too few for one.
            None if self.all.len() < 3 => None,
            None => Some(
                "its dates are irregular, so `ddprun predict` cannot date what follows them: fill \
                 the gaps, or give their frequency, as in `data.frequency = \"h\"`"
                    .to_owned(),
            ),
        }
    }

    /// The `n` dates after the last one, as text, without a time where none has one; none if that
    /// is not known.
    pub(super) fn following(&self, frequency: &Frequency, n: usize) -> Vec<String> {
        let Some(last) = self.all.last() else { return Vec::new() };
        let dates = frequency.following(*last, self.zone.as_ref(), n);
        let all = || self.all.iter().chain(&dates);
        if all().all(|date| date.offset.is_none() && date.local.time() == Time::midnight()) {
            return dates.iter().map(|date| date.local.strftime("%Y-%m-%d").to_string()).collect();
        }
        let digits = fraction_digits(all());
        dates.iter().map(|date| written(*date, digits)).collect()
    }
}

/// Digits of a second's fraction that write all dates: 0, 3, 6 or 9.
fn fraction_digits<'a>(dates: impl Iterator<Item = &'a Date>) -> usize {
    let digits = |date: &Date| match date.local.subsec_nanosecond() {
        0 => 0,
        fraction if fraction % 1_000_000 == 0 => 3,
        fraction if fraction % 1000 == 0 => 6,
        _ => 9,
    };
    dates.map(digits).max().unwrap_or(0)
}

/// `2024-01-31 13:30:00`, with a fraction and an offset where the series has them.
fn written(date: Date, digits: usize) -> String {
    let fraction = date.local.subsec_nanosecond() / 10i32.pow(9 - digits as u32);
    let fraction = if digits > 0 { format!(".{fraction:0digits$}") } else { String::new() };
    let offset = date.offset.map_or(String::new(), |offset| {
        let minutes = offset.seconds() / 60;
        let sign = if minutes < 0 { '-' } else { '+' };
        format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
    });
    format!("{}{fraction}{offset}", date.local.strftime("%Y-%m-%d %H:%M:%S"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dates(cells: &[&str]) -> Dates {
        let cells: Vec<(String, u64)> =
            cells.iter().zip(2..).map(|(cell, line)| ((*cell).to_owned(), line)).collect();
        Dates::read(&cells, None, None).unwrap()
    }

    fn hours(hours: &[u64]) -> Dates {
        let cells: Vec<String> = hours
            .iter()
            .map(|hour| format!("2016-07-{:02} {:02}:00", hour / 24 + 1, hour % 24))
            .collect();
        dates(&cells.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn dates_that_repeat_or_descend_are_refused_with_the_line_before() {
        let refused = |dates: &[u64]| hours(dates).check_order().unwrap_err();
        let what = "the date 2016-07-01T01:00:00 repeats that of line 3".to_owned();
        assert_eq!(refused(&[0, 1, 1]), (4, what));
        let what = "the date 2016-07-01T04:00:00 is earlier than 2016-07-01T05:00:00 of line 2";
        assert_eq!(refused(&[5, 4]), (3, what.to_owned()));
        // An hour of the clock that comes twice when clocks are set back.
        let autumn = ["2024-10-27T02:00+02:00", "2024-10-27T02:00+01:00", "2024-10-27T03:00+01:00"];
        assert_eq!(dates(&autumn).check_order(), Ok(()));
        assert!(
            dates(&["2024-10-27T02:00+01:00", "2024-10-27T02:00+02:00"]).check_order().is_err()
        );
    }

    #[test]
    fn gaps_are_described_and_irregular_dates_named() {
        let note = |rows: &[u64]| {
            let dates = hours(rows);
            dates.note(dates.frequency().as_ref())
        };
        assert_eq!(note(&[]), None);
        assert_eq!(note(&[0, 1, 2, 3]), None);
        let two: Vec<u64> = (0..30).filter(|hour| ![3, 4, 10].contains(hour)).collect();
        assert_eq!(
            note(&two).unwrap(),
            "2 gaps between its dates, which are usually 1h apart: the largest is 3h, after line 4"
        );
        let days: Vec<u64> = (0..24).filter(|day| *day != 7).map(|day| 24 * day).collect();
        assert_eq!(
            note(&days).unwrap(),
            "1 gap between its dates, which are usually 1 day apart: it is 2 days, after line 8"
        );
        assert!(note(&[0, 1, 3, 7, 8]).unwrap().contains("`data.frequency = \"h\"`"));
    }

    #[test]
    fn what_follows_is_written_with_the_fraction_and_offset_of_the_series() {
        let after = |cells: &[&str]| {
            let dates = dates(cells);
            dates.following(&dates.frequency().unwrap(), 2)
        };
        assert_eq!(
            after(&[
                "2024-01-01T00:00:39.800",
                "2024-01-01T00:00:39.900",
                "2024-01-01T00:00:40.000"
            ]),
            ["2024-01-01 00:00:40.100", "2024-01-01 00:00:40.200"]
        );
        assert_eq!(
            after(&["2024-10-27T02:00+02:00", "2024-10-27T02:00+01:00", "2024-10-27T03:00+01:00"]),
            ["2024-10-27 04:00:00+01:00", "2024-10-27 05:00:00+01:00"]
        );
        assert_eq!(after(&["1949-01", "1949-02", "1949-03"]), ["1949-04-01", "1949-05-01"]);
        // With the name of a zone, the clock is set back once more.
        let berlin = ["2024-10-26T23:00", "2024-10-27T00:00", "2024-10-27T01:00"];
        let berlin = berlin.map(|cell| format!("{cell}+02:00[Europe/Berlin]"));
        let found = after(&berlin.each_ref().map(String::as_str));
        assert_eq!(found, ["2024-10-27 02:00:00+02:00", "2024-10-27 02:00:00+01:00"]);
    }
}
