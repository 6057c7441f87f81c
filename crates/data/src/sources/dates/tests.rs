//! Dates as pandas and Python read them, and those that follow them.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::form::{check_format, could_be_dates, dates, is_dated};
use super::*;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../../../tests/golden/dates.json")).unwrap()
}

fn words(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// The format of a column, or why there is none.
fn form(cells: &[&str], given: Option<&str>) -> Result<DateForm, WrongDate> {
    let mut inference = FormInference::new(given);
    for (cell, line) in cells.iter().zip(2..) {
        inference.see(cell, line)?;
    }
    inference.form(FORMAT_KEY).map(Option::unwrap)
}

fn read(cell: &str) -> Option<Date> {
    dates([(cell, 2)].into_iter()).map(|all| all[0])
}

#[test]
fn columns_are_read_as_by_python() {
    for column in golden()["columns"].as_array().unwrap() {
        let cells = words(&column["cells"]);
        let format = &column["format"];
        let form = form(&cells, None).unwrap_or_else(|error| panic!("{format}: {error:?}"));
        let expected = words(&column["clocks"]).into_iter().zip(words(&column["instants"]));
        for (cell, (clock, instant)) in cells.into_iter().zip(expected) {
            let (date, _) = form.read(cell, 1).unwrap();
            assert_eq!(date.local, clock.parse::<DateTime>().unwrap(), "{format}: {cell}");
            assert_eq!(date.instant(), instant.parse::<DateTime>().unwrap(), "{format}: {cell}");
        }
    }
}

#[test]
fn another_program_reads_dates_by_the_description_of_their_format() {
    let Some(python) = crate::skipped::python("numpy") else { return };
    let given = ["%d/%m/%Y", "%d/%m/%Y %H:%M", "%F %T%.f", "%d.%m.%y %H:%M:%S %z"].map(|format| {
        let cells = match format {
            "%F %T%.f" => vec!["2024-03-01 10:20:30.25"],
            "%d.%m.%y %H:%M:%S %z" => vec!["01.03.24 10:20:30 +0200"],
            "%d/%m/%Y %H:%M" => vec!["01/03/2024 10:20"],
            _ => vec!["01/03/2024", "31/03/2024 10:20"],
        };
        (form(&cells, Some(format)).unwrap(), cells)
    });
    let golden = golden();
    let inferred = golden["columns"].as_array().unwrap().iter().map(|column| {
        let cells = words(&column["cells"]);
        (form(&cells, None).unwrap(), cells)
    });
    let all: Vec<(DateForm, Vec<&str>)> = inferred.chain(given).collect();
    let asked: Vec<Value> =
        all.iter().map(|(form, cells)| serde_json::json!([form.described(), cells])).collect();
    let program = "import json, sys; from preprocess import read_date; print(json.dumps([[[str(d), a] \
                   for d, a in (read_date(told, c) for c in cells)] for told, cells in \
                   json.loads(sys.argv[1])]))";
    let asked = serde_json::to_string(&asked).unwrap();
    let mut command = std::process::Command::new(python);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.args(["-c", program, &asked]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let found: Vec<Vec<(String, f64)>> = serde_json::from_slice(&output.stdout).expect(&said);
    for ((form, cells), found) in all.iter().zip(found) {
        for (cell, (local, ahead)) in cells.iter().zip(found) {
            let (date, _) = form.read(cell, 1).unwrap();
            let seconds = |date: DateTime| date.with().subsec_nanosecond(0).build().unwrap();
            let local = seconds(local.parse().unwrap());
            assert_eq!(local, seconds(date.local), "{cell} by {form:?}");
            let offset = date.offset.map_or(0, jiff::tz::Offset::seconds);
            assert_eq!(ahead, f64::from(offset), "{cell} by {form:?}");
        }
    }
}

#[test]
fn a_given_format_reads_as_pythons_strptime() {
    for column in golden()["columns"].as_array().unwrap() {
        let format = column["format"].as_str().unwrap();
        let format = ["+0000", "+02:00", "-0530", "Z"]
            .iter()
            .find_map(|end| Some(format.strip_suffix(end)?.to_owned() + "%z"))
            .unwrap_or_else(|| format.to_owned());
        if format.ends_with("+01") {
            continue;
        }
        assert_eq!(check_format(&format), Ok(()), "{format}");
        let cells = words(&column["cells"]);
        let form =
            form(&cells, Some(&format)).unwrap_or_else(|error| panic!("{format}: {error:?}"));
        for (cell, instant) in cells.into_iter().zip(words(&column["instants"])) {
            let found = form.read(cell, 1).unwrap().0.instant();
            assert_eq!(found, instant.parse::<DateTime>().unwrap(), "{format}: {cell}");
        }
    }
    for format in ["%H:%M", "soon", "%Q!%", "%d/%m"] {
        let error = check_format(format).unwrap_err();
        let expected = if format == "%Q!%" { "is not a format of dates" } else { "says no date" };
        assert!(error.starts_with(expected), "{format}: {error}");
    }
    let error = form(&["31/01/2024 10:00"], Some("%d/%m/%Y %H")).unwrap_err();
    assert_eq!(error.what, "is not a date of the format `%d/%m/%Y %H`");
}

#[test]
fn dates_that_follow_are_those_of_pandas() {
    for range in golden()["ranges"].as_array().unwrap() {
        let name = range["frequency"].as_str().unwrap();
        let zone = range["zone"].as_str().map(|zone| TimeZone::get(zone).unwrap());
        let read = |cells: &Value| dates(words(cells).into_iter().zip(2..)).unwrap();
        let known = read(&range["dates"]);
        let frequency = Frequency::infer(&known).unwrap_or_else(|| panic!("{name}"));
        let after = read(&range["after"]);
        let found = frequency.following(known[known.len() - 1], zone.as_ref(), after.len());
        assert_eq!(found, after, "{name}");
        // Without the name of the zone the last offset stays.
        let found = frequency.following(known[known.len() - 1], None, 1);
        assert_eq!(found[0].offset, known[known.len() - 1].offset);
        let Some(inferred) = range["inferred"].as_str() else { continue };
        let inferred = inferred.split('-').next().unwrap();
        if inferred != "WOM" {
            assert_eq!(frequency.to_string(), inferred, "{name}");
            assert_eq!(FrequencyAlias::parse(inferred).unwrap().frequency(), &frequency, "{name}");
        }
        assert!(frequency.fits(&after), "{name}");
    }
}

#[test]
fn a_cell_that_no_format_fits_is_refused() {
    for cell in [
        "",
        "yesterday",
        "2016-13-01",
        "2016-02-30",
        "2024-01-05 13:00 PM",
        "2024-01-05 25:00",
        "2024-03-10 02:30 PM EST",
        "2024-03-10 02:30 PM (local)",
        "2024 Week 10 Day 1",
        "2024-W54-1",
        "1.2.3",
        "1.5",
        "12",
        "12345678901",
        "2024-01-05T",
        "2024-01-05 1:5",
        "Mon, 10 Mar 2026",
        "2024-Q5",
        "-2024-01-05",
        "10:30",
        "2024-01-05x",
        "10.0.0.1",
    ] {
        assert_eq!(read(cell), None, "{cell}");
    }
    let zone = form(&["2024-03-10 14:30 EST"], None).unwrap_err();
    assert!(zone.help.contains("abbreviations of time zones"), "{zone:?}");
}

#[test]
fn times_offsets_and_zones_are_honoured() {
    let check = |cell: &str, local: &str, instant: &str| {
        let date = read(cell).unwrap_or_else(|| panic!("{cell}"));
        assert_eq!(date.local, local.parse::<DateTime>().unwrap(), "{cell}");
        assert_eq!(date.instant(), instant.parse::<DateTime>().unwrap(), "{cell}");
    };
    let half_past_two = "2024-03-10T14:30";
    for cell in [
        "2024-03-10 02:30 PM",
        "2024-03-10 02:30 p.m.",
        "2024-03-10 2:30pm",
        "2024-03-10 14:30",
        "2024-03-10T14:30:00",
        "2024/3/10 14:30",
        "2024.03.10 14:30",
        "20240310T1430",
        "Sunday, March 10, 2024 2:30 PM",
        "10-Mar-2024 14:30:00.000",
    ] {
        check(cell, half_past_two, half_past_two);
    }
    check("2024-03-10 12:05 AM UTC", "2024-03-10T00:05", "2024-03-10T00:05");
    check("2024-03-10 12:00:01 AM UTC-7", "2024-03-10T00:00:01", "2024-03-10T07:00:01");
    check("2024-03-10T06:00+02:00", "2024-03-10T06:00", "2024-03-10T04:00");
    check("2024-03-10T06:00+0200", "2024-03-10T06:00", "2024-03-10T04:00");
    check("2024-03-10 06:00 -03", "2024-03-10T06:00", "2024-03-10T09:00");
    check("2024-03-10 06:00:00.5+05:30", "2024-03-10T06:00:00.5", "2024-03-10T00:30:00.5");
    check("2024-07-10 06:00 Europe/Oslo", "2024-07-10T06:00", "2024-07-10T04:00");
    check("2024-01-10T06:00+01:00[Europe/Oslo]", "2024-01-10T06:00", "2024-01-10T05:00");
    check("2024-W10-1", "2024-03-04", "2024-03-04");
    check("2024-W12", "2024-03-18", "2024-03-18");
    check("1949Q3", "1949-07-01", "1949-07-01");
    check("q4 1949", "1949-10-01", "1949-10-01");
    check("1704067200", "2024-01-01", "2024-01-01");
    check("1704067200.25", "2024-01-01T00:00:00.25", "2024-01-01T00:00:00.25");
    check("1704067200000", "2024-01-01", "2024-01-01");
}

#[test]
fn the_format_is_that_of_all_rows() {
    let format = |cells: &[&str]| form(cells, None).map(|form| form.format().to_owned());
    assert_eq!(format(&["01/02/2024", "01/31/2024"]).unwrap(), "%m/%d/%Y");
    assert_eq!(format(&["01/02/2024", "31/01/2024"]).unwrap(), "%d/%m/%Y");
    assert_eq!(format(&["01.02.2024"]).unwrap(), "%d.%m.%Y");
    assert_eq!(format(&["1/2/24", "1/31/24 10:00"]).unwrap(), "%m/%d/%y");
    // Both ways of reading give the same dates.
    assert_eq!(format(&["01/01/2024", "02/02/2024"]).unwrap(), "%d/%m/%Y");
    assert_eq!(format(&["2024-01-05", "2024/01/06 10:00"]).unwrap(), "%Y-%m-%d");
    let wrong = |cells: &[&str]| {
        let WrongDate { line, cell, what, help } = form(cells, None).unwrap_err();
        format!("line {line}: `{cell}` {what}; {help}")
    };
    let ambiguous = wrong(&["05/05/2024", "01/02/2024", "02/03/2024"]);
    let expected = "line 3: `01/02/2024` may be a date of the format `%d/%m/%Y` or `%m/%d/%Y`, which \
                    all rows fit; say which with `data.date_format = \"%d/%m/%Y\"`";
    assert_eq!(ambiguous, expected);
    // What is proposed can be followed, whatever stands behind the dates.
    for (cells, proposed) in [
        (["01/02/2024 01:00", "02/03/2024 12:30"], "%d/%m/%Y %H:%M"),
        (["01/02/2024T01:00:30.5+02:00", "02/03/2024T12:30:00+02:00"], "%d/%m/%YT%H:%M:%S%.f%z"),
        (["1/2/2024, 1:00 PM", "2/3/2024, 12:30 AM"], "%d/%m/%Y, %I:%M %p"),
        (["1-2-24 1:00:00", "2-3-24 12:30:00"], "%d-%m-%y %H:%M:%S"),
        (["01/02/2024", "02/03/2024 12:30"], "%d/%m/%Y"),
        (["01/02/2024 06:00 Europe/Oslo", "02/03/2024 12:30 Europe/Oslo"], "%d/%m/%Y"),
    ] {
        let WrongDate { help, .. } = form(&cells, None).unwrap_err();
        assert_eq!(help, format!("say which with `data.date_format = \"{proposed}\"`"));
        assert_eq!(check_format(proposed), Ok(()));
        let followed = form(&cells, Some(proposed)).unwrap();
        let (date, _) = followed.read(cells[1], 2).unwrap();
        assert_eq!((date.local.day(), date.local.month()), (2, 3), "{proposed}");
    }
    let other = wrong(&["13/01/2024", "01/31/2024"]);
    let expected = "line 3: `01/31/2024` is not a date of the format `%d/%m/%Y`, which the rows \
                    before it have; ";
    assert!(other.starts_with(expected), "{other}");
    assert!(wrong(&["2024-01-05", "soon"]).starts_with("line 3: `soon` is not a date; "));
    let mixed = wrong(&["2024-01-05 10:00Z", "2024-01-05 11:00"]);
    assert!(mixed.starts_with("line 3: `2024-01-05 11:00` has no offset from UTC"), "{mixed}");
    let form = form(&["13/01/2024"], None).unwrap();
    let what = |cell| form.read(cell, 1).unwrap_err().what;
    assert_eq!(what("01/13/2024"), "is not a date of the format `%d/%m/%Y`");
    assert!(what("13/01/2024 10:00Z").starts_with("has an offset from UTC"));
}

#[test]
fn a_first_column_holds_dates_by_its_cells_or_its_name() {
    for (name, cell) in [
        ("Date", "soon"),
        ("", "2024-01-01"),
        ("timestamp", "2024-01-01 00:00:00"),
        ("ds", "20240101"),
        ("year", "1949"),
        ("open_time", "1704067200000"),
        ("load", "Jan 2024"),
    ] {
        assert!(is_dated(name, Some(cell)), "{name}: {cell}");
    }
    for (name, cell) in
        [("", "0"), ("time", "1000"), ("load", "20240101"), ("y", "1949"), ("t", "")]
    {
        assert!(!is_dated(name, Some(cell)), "{name}: {cell}");
    }
    assert!(could_be_dates(["2024-01-01", "2024-01-02"], false));
    assert!(!could_be_dates(["2024-01-01", "soon"], false) && !could_be_dates(["1949"], false));
}

/// Dates of rows that are `hours` after a Monday.
fn hours(hours: impl IntoIterator<Item = i64>) -> Vec<Date> {
    let monday = jiff::civil::date(2024, 1, 1).at(0, 0, 0, 0);
    let date = |hour| monday.checked_add(jiff::SignedDuration::from_hours(hour)).unwrap();
    hours.into_iter().map(|hour| Date { local: date(hour), offset: None }).collect()
}

fn after(dates: &[Date], n: usize) -> Vec<String> {
    let frequency = Frequency::infer(dates).unwrap();
    let found = frequency.following(dates[dates.len() - 1], None, n);
    found.iter().map(|date| date.local.strftime("%a %d %H").to_string()).collect()
}

#[test]
fn gaps_are_bridged_and_hours_of_business_go_on() {
    // Hours with a gap before the last one, and days of business with a holiday.
    assert_eq!(after(&hours((0..50).chain([60])), 2), ["Wed 03 13", "Wed 03 14"]);
    let days = (0..40).filter(|day| day % 7 < 5 && *day != 14).map(|day| 24 * day);
    assert_eq!(after(&hours(days), 2), ["Mon 12 00", "Tue 13 00"]);
    // 9:00 to 15:00 from Monday to Friday, ending on a Friday at 14:00.
    let open = |hour: &i64| hour / 24 % 7 < 5 && (9..=15).contains(&(hour % 24));
    let trading: Vec<i64> =
        (0..24 * 25 + 39).filter(open).take_while(|hour| *hour < 24 * 25 + 15).collect();
    let found = after(&hours(trading.clone()), 3);
    assert_eq!(found, ["Fri 26 15", "Mon 29 09", "Mon 29 10"]);
    assert_eq!(Frequency::infer(&hours(trading)).unwrap().season(), 7);
    // Two weeks of it, and three days: nights that recur are no gaps. Shop hours of every day.
    for hours_of_dates in [24 * 11 + 16, 24 * 2 + 16] {
        let short: Vec<i64> = (0..hours_of_dates).filter(open).collect();
        let frequency = Frequency::infer(&hours(short.clone())).unwrap();
        assert_eq!((frequency.season(), gaps(&hours(short), &[0; 99], &frequency)), (7, None));
    }
    let short: Vec<i64> = (0..24 * 11 + 16).filter(open).collect();
    assert_eq!(after(&hours(short), 2), ["Mon 15 09", "Mon 15 10"]);
    let every_day: Vec<i64> = (0..24 * 7).filter(|hour| (9..=15).contains(&(hour % 24))).collect();
    assert_eq!(after(&hours(every_day), 1), ["Mon 08 09"]);
    // A night that is there once may be a gap; a day that is all there is none of the pattern.
    let once: Vec<i64> = (9..20).chain(33..36).collect();
    assert_eq!(Frequency::infer(&hours(once)).map(|it| it.to_string()).as_deref(), Some("h"));
    // Six days a week.
    let six = (0..41).filter(|day| day % 7 != 6).map(|day| 24 * day);
    assert_eq!(after(&hours(six), 2), ["Mon 12 00", "Tue 13 00"]);
}

#[test]
fn a_few_rows_may_be_of_the_frequency_of_a_longer_series() {
    let of = |text: &str| FrequencyAlias::parse(text).unwrap().frequency().clone();
    let week = hours([0, 24, 48, 72, 96]);
    assert!(of("B").is_usual_in(&week) && of("D").is_usual_in(&week));
    assert!(!of("h").is_usual_in(&week) && of("h").fits(&week));
    assert!(of("B").is_usual_in(&hours([96, 168])) && !of("D").is_usual_in(&hours([96, 168])));
    assert!(!of("B").fits(&hours([96, 120])) && !of("2h").fits(&hours([0, 3])));
}

#[test]
fn irregular_dates_have_no_frequency() {
    let is_irregular = |rows: &[i64]| Frequency::infer(&hours(rows.iter().copied())).is_none();
    assert!(is_irregular(&[0, 1]) && is_irregular(&[0, 1, 3]) && is_irregular(&[0, 5, 4]));
    let random: Vec<i64> = (0..500i64).map(|i| 3 * i + i * i % 3).collect();
    assert!(is_irregular(&random));
    let days: Vec<i64> = (0..300i64).map(|i| 24 * (2 * i + i * i * 7 % 3)).collect();
    assert!(is_irregular(&days));
    // One row in six is missing.
    let rows: Vec<i64> = (0..300).filter(|hour| hour % 7 != hour / 49 % 7).collect();
    assert!(is_irregular(&rows));
}

#[test]
fn a_frequency_is_written_as_in_pandas() {
    for (text, apart, season) in [
        ("h", "1h", 24),
        ("15min", "15m", 96),
        ("D", "1 day", 7),
        ("B", "1 business day", 5),
        ("W", "7 days", 52),
        ("28D", "28 days", 1),
        ("MS", "1 month", 12),
        ("QE", "3 months", 4),
        ("YE", "1 year", 1),
        ("100ms", "100ms", 1),
        ("2h", "2h", 12),
        ("5h", "5h", 1),
    ] {
        let alias = FrequencyAlias::parse(text).unwrap();
        let frequency = alias.frequency();
        assert_eq!((&*frequency.apart(), frequency.season()), (apart, season), "{text}");
        let expected = if text == "28D" { "4W" } else { text };
        assert_eq!(frequency.to_string(), expected);
    }
    for (old, new) in [("H", "h"), ("15T", "15min"), ("M", "ME"), ("Q", "QE"), ("A", "YE")] {
        assert_eq!(FrequencyAlias::parse(old).unwrap().frequency().to_string(), new);
    }
    for wrong in ["", "hourly", "0h", "-1D", "W-MON", "1.5h", "99999999999999999999h"] {
        let error = FrequencyAlias::parse(wrong).unwrap_err();
        let expected = if wrong == "W-MON" { "write `W`" } else { "` is no frequency: write h, " };
        assert!(error.contains(expected), "{wrong}: {error}");
    }
}
