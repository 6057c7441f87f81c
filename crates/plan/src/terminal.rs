//! Text as a terminal may show it: made harmless, in lines that fit; numbers and counts in words.

mod escape;
mod wrap;

pub use escape::{escape, escape_lines, escape_name, mask};
pub use wrap::{fitted, message, wrapped};

/// "1 file", "3 files", "2 classes", "4 batches"
pub fn counted(n: u64, noun: &str) -> String {
    let has_sibilant = ["s", "x", "ch", "sh"].iter().any(|end| noun.ends_with(end));
    let ending = match n {
        1 => "",
        // The "ch" of an epoch is a k.
        _ if has_sibilant && !noun.ends_with("epoch") => "es",
        _ => "s",
    };
    format!("{n} {noun}{ending}")
}

/// A word quoted for a shell, if it needs quotes.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A number as short as it is exact: 0.1, 50, 3e-5; at most 6 significant digits.
pub fn format_number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    if (1e-3..1e6).contains(&rounded.abs()) { format!("{rounded}") } else { format!("{rounded:e}") }
}

/// "11,689,512"
pub(crate) fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// "75.5M"
pub(crate) fn scaled(n: u64) -> String {
    let (size, unit) = si_unit(n as f64);
    let digits = usize::from(!unit.is_empty());
    format!("{:.digits$}{unit}", n as f64 / size)
}

/// The unit in which a number is written, and its size.
pub(crate) fn si_unit(n: f64) -> (f64, &'static str) {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    units.into_iter().find(|(size, _)| n >= *size).unwrap_or((1.0, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_has_the_plural_of_its_last_sound() {
        assert_eq!(counted(1, "batch"), "1 batch");
        let nouns = ["file", "class", "batch", "box", "epoch", "loader thread"];
        let plurals = ["files", "classes", "batches", "boxes", "epochs", "loader threads"];
        for (noun, plural) in nouns.into_iter().zip(plurals) {
            assert_eq!(counted(0, noun), format!("0 {plural}"));
        }
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> =
            [0.05, 0.1 * 3.0, 1e-4, 50.0, 0.0, 0.1 / 3.0, 1e-8].map(format_number).to_vec();
        assert_eq!(shown, ["0.05", "0.3", "1e-4", "50", "0", "0.0333333", "1e-8"]);
    }
}
