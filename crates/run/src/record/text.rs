//! Numbers and names as text for users. Nothing here fails, and no file name can move the cursor.

use std::time::Duration;

use serde_json::Value;

pub use crate::terminal::{escape, wrapped};

/// A loss: four decimals, and an exponent where they would hide it.
pub fn loss(value: f64) -> String {
    if value == 0.0 || !value.is_finite() || value.abs() >= 1e-3 && value.abs() < 1e6 {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// At most four significant digits and no trailing zeros: `0.1`, `0.0003`, `12.35`, `1.5e-6`.
pub(crate) fn short(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    // Rounding to four digits first, so that 0.09999999 is shown as 0.1.
    let rounded = format!("{value:.3e}").parse().unwrap_or(value);
    if rounded == 0.0 || (1e-4..1e7).contains(&rounded.abs()) {
        format!("{rounded}")
    } else {
        format!("{rounded:e}")
    }
}

/// A value of a hyperparameter; `null` is a key that is not set, which files of sweeps call "off".
pub(crate) fn hyperparameter(value: &Value) -> String {
    match value {
        Value::Null => "off".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), short),
        other => other.to_string(),
    }
}

/// A share of one in percent: `93.25 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A word cut at its end to at most `width` columns.
pub fn cut(word: &str, width: usize) -> String {
    if word.chars().count() <= width {
        return word.to_owned();
    }
    word.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Samples per second.
pub(crate) fn rate(samples_per_second: f64) -> String {
    let decimals = usize::from(samples_per_second < 100.0);
    format!("{samples_per_second:.decimals$} samples/s")
}

/// `0.42 s`, `12.3 s`, `2m 31s`, `1h 02m`, `3d 04h`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..10 => format!("{seconds:.2} s"),
        10..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
        3600..86400 => format!("{}h {:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d {:02}h", whole / 86400, whole / 3600 % 24),
    }
}

/// Time for `remaining` steps at this pace; `None` before the first step and after the last.
pub(crate) fn time_left(seconds_per_step: Option<f64>, remaining: u64) -> Option<Duration> {
    if remaining == 0 {
        return None;
    }
    Duration::try_from_secs_f64(seconds_per_step? * remaining as f64).ok()
}

/// The value of a metric by its name: shares in percent, everything else like a loss.
pub fn metric(name: &str, value: f64) -> String {
    if is_share(name) { percent(value) } else { loss(value) }
}

/// Shortens `word` to `width` columns by cutting its middle, since paths differ at their ends.
pub fn shortened(word: &str, width: usize) -> String {
    let letters: Vec<char> = word.chars().collect();
    if letters.len() <= width {
        return word.to_owned();
    }
    let kept = width.saturating_sub(1);
    let head = kept.div_ceil(2);
    let tail = kept / 2;
    let ends = [&letters[..head], &['…'], &letters[letters.len() - tail..]];
    ends.concat().into_iter().collect()
}

/// True for metrics between 0 and 1 that are shown in percent, by their names.
pub(crate) fn is_share(name: &str) -> bool {
    name.ends_with("accuracy") || name.ends_with("success")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_never_shown_as_zero_that_are_not() {
        let shown = [2.312_345, 0.0, 0.001, 4.2e-5, 1e9, f64::NAN].map(loss);
        assert_eq!(shown, ["2.3123", "0.0000", "0.0010", "4.200e-5", "1.000e9", "NaN"]);
    }

    #[test]
    fn a_long_word_loses_its_end() {
        assert_eq!((cut("resnet", 6), cut("resnet", 5)), ("resnet".into(), "resn…".into()));
    }

    #[test]
    fn learning_rates_are_shown_as_written() {
        let shown =
            [0.1, 0.05, 3e-4, 0.099_999_999, 1.5e-6, 12.345_67, f64::INFINITY, 0.0].map(short);
        assert_eq!(shown, ["0.1", "0.05", "0.0003", "0.1", "1.5e-6", "12.35", "inf", "0"]);
    }

    #[test]
    fn of_a_long_word_the_middle_is_missing() {
        assert_eq!(shortened("data/photos/a.png", 9), "data….png");
        assert_eq!((shortened("abcdef", 4), shortened("abcd", 4)), ("ab…f".into(), "abcd".into()));
    }

    #[test]
    fn durations_carry_two_units_at_most() {
        let shown = [0.4, 9.6, 59.4, 151.0, 3720.0, 273_600.0, -1.0].map(duration);
        assert_eq!(shown, ["0.40 s", "9.6 s", "59.4 s", "2m 31s", "1h 02m", "3d 04h", "-1.00 s"]);
    }

    #[test]
    fn time_left_is_proportional_and_unknown_at_first_and_untold_at_last() {
        assert_eq!(time_left(Some(2.0), 90), Some(Duration::from_mins(3)));
        assert_eq!(time_left(None, 90), None);
        assert_eq!(time_left(Some(2.0), 0), None);
    }

    #[test]
    fn a_file_name_cannot_move_the_cursor_or_hide_its_end() {
        assert_eq!(escape("plain\nname ä"), "plain\nname ä");
        assert_eq!(escape("a\x1b[2Jb\rc\u{202e}gpj"), "a\\u{1b}[2Jb\\rc\\u{202e}gpj");
    }
}
