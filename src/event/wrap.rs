//! Lines that fit a terminal.

/// The text in lines of at most `width` columns, broken between words; the second and later ones begin with `indent`
/// spaces. A word that is longer stands on a line of its own.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for part in text.lines() {
        let mut open = false;
        for word in part.split_whitespace() {
            let fits = |line: &String| line.chars().count() + 1 + word.chars().count() <= width;
            match lines.pop() {
                None => lines.push(word.to_owned()),
                Some(line) if open && fits(&line) => lines.push(line + " " + word),
                Some(line) => lines.extend([line, " ".repeat(indent) + word]),
            }
            open = true;
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two three", 8, 2), "one two\n  three");
        assert_eq!(wrapped("a-word-that-is-long b", 8, 2), "a-word-that-is-long\n  b");
        assert_eq!(wrapped("first\n    second line", 30, 2), "first\n  second line");
        assert_eq!(wrapped("", 8, 2), "");
    }
}
