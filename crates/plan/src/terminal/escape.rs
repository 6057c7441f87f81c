//! What others wrote, as it may be shown on a terminal.

use std::borrow::Cow;

/// Text with its control characters, and those that reverse the direction of writing, spelled out.
/// Line ends stay.
pub fn escape(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| c == '\n' || !(c.is_control() || turns_direction(c));
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    text.chars()
        .fold(String::new(), |mut shown, c| {
            if is_harmless(c) {
                shown.push(c);
            } else {
                shown.extend(c.escape_default());
            }
            shown
        })
        .into()
}

fn turns_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// As [`escape`], with as many bytes, so that places in the text stay where they are: each byte of
/// such a character is a question mark. Tabs stay too.
pub fn mask(text: &str) -> Cow<'_, str> {
    let is_harmless =
        |c: char| matches!(c, '\n' | '\r' | '\t') || !(c.is_control() || turns_direction(c));
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    text.chars()
        .map(|c| if is_harmless(c) { c.to_string() } else { "?".repeat(c.len_utf8()) })
        .collect::<String>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_text_has_the_places_of_the_original() {
        assert_eq!(mask("a\tä\r\n"), "a\tä\r\n");
        assert_eq!(mask("a\x1b[2J\u{85}\u{202e}b"), "a?[2J?????b");
    }
}
