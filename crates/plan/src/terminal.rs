//! Text as a terminal may show it: made harmless, and in lines that fit.

mod escape;
mod wrap;

pub use escape::{escape, escape_lines, mask};
pub use wrap::{fitted, message, wrapped};

/// "1 file", "3 files", "2 classes"
pub fn counted(n: u64, noun: &str) -> String {
    let plural = if noun.ends_with('s') { "es" } else { "s" };
    format!("{n} {noun}{}", if n == 1 { "" } else { plural })
}

/// A word that a shell takes as it is.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
