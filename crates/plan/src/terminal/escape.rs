//! Untrusted text, escaped for a terminal.

use std::borrow::Cow;

/// Text with its control characters, and those that reverse the direction of writing, spelled out.
/// Line ends stay.
pub fn escape(text: &str) -> Cow<'_, str> {
    spelled(text, |c| c == '\n')
}

/// Escapes a name, line ends too, so that it stays on one line.
pub fn escape_name(name: &str) -> Cow<'_, str> {
    spelled(name, |_| false)
}

/// Escapes text as [`escape`] does, but keeps tabs.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    spelled(text, |c| matches!(c, '\n' | '\t'))
}

fn spelled(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_harmless = |c: char| stays(c) || !(c.is_control() || is_mark(c));
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

/// True for characters that end a line or change the direction of writing.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes text without changing its length, so that byte ranges stay valid: each byte of
/// such a character is a question mark. Tabs stay too, and line ends of both kinds; a carriage
/// return within a line would draw its end over its beginning.
pub fn mask(text: &str) -> Cow<'_, str> {
    let stays = |at: usize, c: char| match c {
        '\n' | '\t' => true,
        '\r' => text[at + 1..].starts_with('\n'),
        _ => !(c.is_control() || is_mark(c)),
    };
    if text.char_indices().all(|(at, c)| stays(at, c)) {
        return Cow::Borrowed(text);
    }
    text.char_indices()
        .map(|(at, c)| if stays(at, c) { c.to_string() } else { "?".repeat(c.len_utf8()) })
        .collect::<String>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_text_has_the_places_of_the_original() {
        assert_eq!(mask("a\tä\r\n"), "a\tä\r\n");
        assert_eq!(mask("name = 1 # \rok\r\n\r"), "name = 1 # ?ok\r\n?");
        assert_eq!(mask("a\x1b[2J\u{85}\u{202e}b"), "a?[2J?????b");
    }

    #[test]
    fn a_sequence_for_the_terminal_is_spelled_out() {
        assert_eq!(escape("a\tb\n\x1b[2J"), "a\\tb\n\\u{1b}[2J");
        assert_eq!(escape_name("cat\rdog\n\u{2028}"), "cat\\rdog\\n\\u{2028}");
        assert_eq!(escape_lines("a\tb\r\n\x1b]0;x\x07"), "a\tb\\r\n\\u{1b}]0;x\\u{7}");
    }
}
