use std::io::Write;

use super::*;

/// A table of `n` rows of two series, i and i squared, with hourly dates.
fn table(n: usize) -> String {
    let mut text = "date,a,b\n".to_owned();
    for i in 0..n {
        text += &format!("2016-07-{:02} {:02}:00:00,{i},{}\n", 1 + i / 24 % 30, i % 24, i * i);
    }
    text
}

fn opened(text: &str, split: SplitRule, seq_len: usize, pred_len: usize) -> Result<Splits, Error> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("series.csv");
    std::fs::File::create(&file).unwrap().write_all(text.as_bytes()).unwrap();
    open(&Forecast { file, split, seq_len, pred_len, calendar: Calendar::Hour })
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
    check("date,a\n2016-07-01,1\nsoon,2\n", parts, "line 3: `soon` is not a date");
    check("date,a\n2016-07-01,1\n2016-07-02,\n", parts, "line 3: `a` is empty");
    check("date,a\n2016-07-01,1,2\n", parts, "line 2: 3 cells, but the header has 2");
    check("date\n2016-07-01\n", parts, "at least one series");
    check("", parts, "at least one series");
    check(&table(9), parts, "its test part has 4 rows");
    check(&table(6), parts, "its training part has 4 rows");
    check(&table(100), SplitRule::EttHour, "it has 100 rows, but this split needs 14400");
}
