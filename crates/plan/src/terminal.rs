//! Text as a terminal may show it: made harmless, and in lines that fit.

mod counted;
mod escape;
mod wrap;

pub use counted::counted;
pub use escape::{escape, escape_lines, escape_name, mask};
pub use wrap::{fitted, message, wrapped};

/// A word that a shell takes as it is.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
