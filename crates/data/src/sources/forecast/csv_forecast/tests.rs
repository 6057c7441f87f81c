use crate::user_error::UserError;
use std::io::Write;

use test_support::assert_refused;

use super::*;
use crate::skipped::shared;

/// A number of hours after the first date.
fn hour(i: usize) -> jiff::civil::DateTime {
    let first = jiff::civil::date(2016, 7, 1).at(0, 0, 0, 0);
    first + jiff::SignedDuration::from_hours(i as i64)
}

/// A table of `n` rows of two series, i and i squared, with hourly dates.
fn table(n: usize) -> String {
    let mut text = "date,a,b\n".to_owned();
    for i in 0..n {
        text += &format!("{},{i},{}\n", hour(i), i * i);
    }
    text
}

fn opened(text: &str, split: SplitRule, seq_len: usize, pred_len: usize) -> Result<Splits, Error> {
    reading(text, split, (seq_len, pred_len), true).map(|(splits, _)| splits)
}

/// Reads the table with its notes, and with dates that are checked or not.
fn reading(
    text: &str,
    split: SplitRule,
    (seq_len, pred_len): (usize, usize),
    check_dates: bool,
) -> Result<(Splits, Vec<String>), Error> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("series.csv");
    std::fs::File::create(&file).unwrap().write_all(text.as_bytes()).unwrap();
    let asked = CsvForecast { split, check_dates, ..CsvForecast::new(file, seq_len, pred_len) };
    read(&asked, &SurveyResults::default()).map(|read| (read.splits, read.notes))
}

fn counts(splits: &Splits) -> [usize; 3] {
    [splits.train.len(), splits.val.len(), splits.test.as_ref().unwrap().len()]
}

#[test]
fn window_counts_are_those_of_the_authors_logs() {
    let hours = table(17_420);
    let expected = [(96, 7825, 2785), (192, 7729, 2689), (336, 7585, 2545), (720, 7201, 2161)];
    for (pred_len, train, other) in expected {
        let splits = opened(&hours, SplitRule::EttHour, 720, pred_len).unwrap();
        assert_eq!(counts(&splits), [train, other, other]);
    }
    // 17,544 rows of Traffic, 7,588 of the exchange rates.
    let parts = SplitRule::Parts([7, 1, 2]);
    assert_eq!(rows(parts, 17_544).unwrap(), Rows { train: 12_280, val: 1756, test: 3508 });
    assert_eq!(counts(&opened(&table(17_544), parts, 720, 96).unwrap()), [11_465, 1661, 3413]);
    assert_eq!(counts(&opened(&table(7588), parts, 96, 96).unwrap()), [5120, 665, 1422]);
    assert_eq!(rows(SplitRule::EttMinute, 69_680).unwrap().train, 34_560);
}

#[test]
fn a_window_is_followed_by_what_it_predicts_on_the_scale_of_the_training_rows() {
    let splits = opened(&table(20), SplitRule::Parts([7, 1, 2]), 3, 2).unwrap();
    // 14, 2 and 4 rows; series a has the mean 6.5 and the population variance (14^2 - 1) / 12.
    let scaled = |i: usize| ((i as f64 - 6.5) / (195f64 / 12.0).sqrt()) as f32;
    let load = |data: &dyn Dataset, index| {
        let mut values = Vec::new();
        let Target::Series(target) = data.load(index, None, &mut values).unwrap() else {
            unreachable!("a forecast")
        };
        let first: Vec<f32> = values.iter().step_by(6).copied().collect();
        (first, target.iter().step_by(2).copied().collect::<Vec<f32>>(), values)
    };
    assert_eq!(splits.train.shape(), [3, 6]);
    assert_eq!(splits.train.target_shape(), [2, 2]);
    let (seen, next, values) = load(&*splits.train, 1);
    assert_eq!((seen, next), ([1, 2, 3].map(scaled).to_vec(), [4, 5].map(scaled).to_vec()));
    assert_eq!(values[2..6], [(1.0f64 / 23.0 - 0.5) as f32, 1.0 / 6.0, -0.5, -0.001_369_863]);
    let (_, next, _) = load(&*splits.val, 0);
    assert_eq!(next, [14, 15].map(scaled));
    let (_, next, _) = load(&**splits.test.as_ref().unwrap(), 2);
    assert_eq!(next, [18, 19].map(scaled));
    assert_eq!(splits.val.name(0), splits.val.name(0));
    assert!(splits.val.name(0).starts_with("rows 12 to 16 of `"), "{}", splits.val.name(0));
}

#[test]
fn a_table_without_dates_is_all_series_and_constants_become_zero() {
    let text = "7,9\n1,5\n2,5\n3,5\n4,5\n5,5\n6,5\n7,5\n8,5\n9,5\n10,5\n";
    let splits = opened(text, SplitRule::Parts([8, 1, 1]), 1, 1).unwrap();
    let mut values = Vec::new();
    splits.train.load(0, None, &mut values).unwrap();
    assert_eq!((values.len(), values[1], values[2]), (6, 0.0, 0.0));
}

#[test]
fn what_cannot_be_used_is_named() {
    let check = |text: &str, split: SplitRule, expected: &str| {
        let Err(error) = opened(text, split, 3, 2) else { panic!("{text}") };
        assert!(error.to_string().contains(expected), "{error}");
    };
    let parts = SplitRule::Parts([7, 1, 2]);
    check("date,a\r\n2016-07-01,1\r\nsoon,2\r\n", parts, "line 3: `soon` is not a date");
    check("date,a\n2016-07-01,1\n2016-07-02,\n", parts, "line 3: `a` is empty");
    check("date,a\n2016-07-01,1,2\n", parts, "line 2: 3 cells, but the header has 2");
    check("date\n2016-07-01\n", parts, "at least one series");
    check("", parts, "is empty");
    check(&table(9), parts, "its test split has 4 rows");
    check(&table(6), parts, "its training split has 4 rows");
    check(&table(100), SplitRule::EttHour, "it has 100 rows, but this split needs 14400");
    let rows = SplitRule::Rows([60, 20, 21]);
    check(&table(100), rows, "it has 100 rows, but this split needs 101");
}

#[test]
fn what_to_do_about_a_series_that_cannot_be_used_is_said() {
    let check = |text: &str, what: &str, help: &str| {
        let Err(error) = opened(text, SplitRule::Parts([7, 1, 2]), 3, 2) else { panic!("{text}") };
        assert!(error.to_string().contains(what), "{error}");
        assert!(error.help().unwrap_or_default().contains(help), "{:?}", error.help());
    };
    let fill = "fill or remove such values before training";
    check("date,a\n2016-07-01,NaN\n", "line 2: `a` is `NaN`, which is not finite", fill);
    check("date,a\n2016-07-01,\n", "line 2: `a` is empty", fill);
    check("date,a\n2016-07-01,n/a\n", "line 2: `a` is `n/a`", fill);
    check("date,a\n2016-07-01,\"1,5\"\n", "line 2: `a` is `1,5`", "with a point: `1.5`");
    check("date,a\n2016-07-01,1,5\n", "3 cells", "decimals with a point");
    check("date,a,b\n2016-07-01,1\n", "2 cells", "complete the row");
    let semicolons = "separated by `;`? Save it with commas";
    check("date;a\n2016-07-01;1.5\n", "line 2: `date;a` is", semicolons);
    check("date;a\n2016-07-01;1,5\n", "line 2: 2 cells", semicolons);
    check("date,a,b,a\n", "line 1: columns 2 and 4 are both called `a`", "a name of its own");
}

#[test]
fn rows_may_be_cut_by_their_numbers() {
    let rows = SplitRule::Rows([34, 11, 11]);
    let (splits, notes) = reading(&table(60), rows, (4, 2), true).unwrap();
    assert_eq!(counts(&splits), [29, 10, 10]);
    assert_eq!(notes.len(), 1);
    assert!(notes[0].ends_with("series.csv`: the last 4 of 60 rows are not used"), "{notes:?}");
    assert!(reading(&table(56), rows, (4, 2), true).unwrap().1.is_empty());
    // The borders of ETTm1.
    let minutes = SplitRule::Rows([34_560, 11_520, 11_520]);
    let borders = super::rows(SplitRule::EttMinute, 69_680);
    assert_eq!(super::rows(minutes, 69_680), borders);
}

#[test]
fn dates_must_ascend_and_gaps_are_told() {
    let parts = SplitRule::Parts([7, 1, 2]);
    let text = |hours: &[usize]| {
        let row = |&i: &usize| format!("{},{i}\n", hour(i));
        "date,a\n".to_owned() + &hours.iter().map(row).collect::<String>()
    };
    let read = |hours: &[usize], check| reading(&text(hours), parts, (1, 1), check);
    let order: Vec<usize> = (0..20).collect();
    assert!(read(&order, true).unwrap().1.is_empty());
    let mut twice = order.clone();
    twice[7] = 6;
    let mut turned = order.clone();
    turned.reverse();
    for (hours, expected) in [
        (&twice, "series.csv`, line 9: the date 2016-07-01T06:00:00 repeats that of line 8"),
        (&turned, "line 3: the date 2016-07-01T18:00:00 is earlier than 2016-07-01T19:00:00 of"),
    ] {
        let error = read(hours, true).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.help().unwrap().contains("data.check_dates = false"));
        assert!(read(hours, false).unwrap().1.is_empty());
    }
    let mut gapped = order;
    gapped.drain(5..9);
    let notes = read(&gapped, true).unwrap().1;
    let expected = "1 gap between its dates, which are usually 1h apart: it is 5h, after line 6";
    assert!(notes.len() == 1 && notes[0].ends_with(expected), "{notes:?}");
}

#[test]
fn published_tables_have_their_dates_in_order() {
    for name in ["ETTh1", "exchange_rate", "national_illness", "traffic_sensor0"] {
        let Some(file) = shared(&format!("data/forecast/{name}.csv")) else { continue };
        let asked = CsvForecast::new(file, 36, 24);
        assert_eq!(read(&asked, &SurveyResults::default()).unwrap().notes, [""; 0], "{name}");
    }
}

#[test]
fn other_programs_are_told_means_and_deviations_of_the_training_rows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("series.csv");
    std::fs::File::create(&file).unwrap().write_all(table(20).as_bytes()).unwrap();
    let asked = CsvForecast::new(file.clone(), 3, 2);
    let told = asked.preprocessing(&Options::new()).unwrap();
    assert_eq!((&told["calendar"], &told["series"][0]["name"]), (&"hour".into(), &"a".into()));
    assert_eq!(told["series"][0]["mean"].as_f64(), Some(6.5));
    let std = told["series"][0]["std"].as_f64().unwrap();
    assert!((std - (195f64 / 12.0).sqrt()).abs() < 1e-12, "{std}");
    std::fs::remove_file(file).unwrap();
    assert_refused(asked.preprocessing(&Options::new()), "series.csv` does not exist");
}

#[test]
fn a_model_sees_dates_only_where_its_run_had_some() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("series.csv");
    let write = |text: &str| crate::files::write_atomic(&file, text.as_bytes()).unwrap();
    let dated = table(20);
    let undated: String =
        dated.lines().map(|row| row.split_once(',').unwrap().1.to_owned() + "\n").collect();
    let asked = CsvForecast::new(file.clone(), 3, 2);
    write(&dated);
    let of_dated = read(&asked, &SurveyResults::default()).unwrap().stored;
    let told = asked.preprocessing(&of_dated.options()).unwrap();
    assert_eq!(told["dates"], serde_json::json!({ "format": "%Y-%m-%d", "whole_cell": false }));
    write(&undated);
    let error = read(&asked, &of_dated).err().unwrap();
    assert!(error.to_string().contains("it has no dates: its first column is `a`"), "{error}");
    assert!(error.help().unwrap().contains("put the column of dates first"));
    let blind = CsvForecast { calendar: Calendar::None, ..asked.clone() };
    assert!(read(&blind, &of_dated).is_ok());
    let of_undated = read(&asked, &SurveyResults::default()).unwrap().stored;
    assert!(asked.preprocessing(&of_undated.options()).unwrap()["dates"].is_null());
    write(&dated);
    let splits = read(&asked, &of_undated).unwrap().splits;
    let mut values = Vec::new();
    splits.train.load(0, None, &mut values).unwrap();
    assert_eq!(values[2..6], [0.0; 4], "zeros, as in training");
}

#[test]
fn a_first_column_of_dates_is_no_series_whatever_it_is_called() {
    for name in ["timestamp", "ds", "", "Date"] {
        let text = table(20).replacen("date", name, 1);
        let splits = opened(&text, SplitRule::Parts([7, 1, 2]), 3, 2).unwrap();
        // Two series, and four features of the date.
        assert_eq!(splits.train.shape(), [3, 6], "{name}");
        let mut values = Vec::new();
        splits.train.load(0, None, &mut values).unwrap();
        assert_eq!(values[2], -0.5, "{name}");
    }
    let day = table(20).replace("2016-07-01", "01/02/2016");
    let error = opened(&day, SplitRule::Parts([7, 1, 2]), 3, 2).err().unwrap();
    let expected =
        "line 2: `01/02/2016T00:00:00` may be a date of the format `%d/%m/%Y` or `%m/%d/%Y`";
    assert!(error.to_string().contains(expected), "{error}");
    assert!(error.help().unwrap().contains("data.date_format = \"%d/%m/%YT%H:%M:%S\""));
}

#[test]
fn naive_forecasts_are_as_far_off_as_counted_by_hand() {
    // 1, 2, 4, 8, ... in 20 rows: 14 to train on, 2 to validate and 4 to test on.
    let rows: Vec<String> = (0..20).map(|i| (1 << i).to_string()).collect();
    let text = rows.join("\n");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("series.csv");
    std::fs::File::create(&file).unwrap().write_all(("a\n".to_owned() + &text).as_bytes()).unwrap();
    let asked = CsvForecast { season: Some(2), ..CsvForecast::new(file, 3, 2) };
    let CutTable { splits, stored, .. } = read(&asked, &SurveyResults::default()).unwrap();
    let [(_, deviation)] = stored.scales.unwrap()[..] else { panic!("one series") };
    let close = |found: f64, expected: f64| {
        assert!((found - expected).abs() < 1e-5 * expected, "{found}, {expected}");
    };
    let power = |i: u32| f64::from(1u32 << i);
    // Value i less value i - 2 is three quarters of value i.
    let scale = (2..14).map(|i| 0.75 * power(i)).sum::<f64>() / 12.0;
    close(stored.naive_errors.unwrap()[0] * deviation, scale);
    let baselines = splits.val.baselines();
    let [naive, seasonal] = &baselines[..] else { panic!("{baselines:?}") };
    assert_eq!((naive.name, seasonal.name), ("naive", "seasonal_naive"));
    // One window: rows 14 and 15 after row 13, or after rows 12 and 13.
    let errors = [power(14) - power(13), power(15) - power(13)];
    close(naive.mae * deviation, f64::midpoint(errors[0], errors[1]));
    close(naive.mse * deviation.powi(2), f64::midpoint(errors[0].powi(2), errors[1].powi(2)));
    close(seasonal.mae * deviation, 0.75 * f64::midpoint(power(14), power(15)));
    // Rows 16 to 19: three windows.
    let test = splits.test.unwrap().baselines();
    let errors =
        (16..19).flat_map(|next| [power(next), power(next + 1)].map(|to| to - power(next - 1)));
    close(test[0].mae * deviation, errors.sum::<f64>() / 6.0);
}
