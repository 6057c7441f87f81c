//! Lines that fit a terminal.

/// The text in lines of at most `width` columns, broken between words; the second and later ones
/// begin with `indent` spaces. A word that is longer stands on a line of its own; what stands in
/// backticks is a word.
pub fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for part in text.lines() {
        let mut open = false;
        for word in words(part) {
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

/// The words of a line, code in backticks as one.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let is_paired = line.matches('`').count().is_multiple_of(2);
    let mut in_code = false;
    let words = line.split(move |c: char| {
        in_code ^= c == '`' && is_paired;
        c.is_whitespace() && !in_code
    });
    words.filter(|word| !word.is_empty())
}

/// The text of a message in lines of at most `width` columns; lines that are indented, as code is,
/// stay as they are.
pub fn message(text: &str, width: usize) -> String {
    let line =
        |line: &str| if line.starts_with("  ") { line.to_owned() } else { wrapped(line, width, 0) };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The page with its sentences (`error:`, `why:`, `do:`) in lines of at most `width` columns; its
/// other lines stay.
pub fn fitted(page: &str, width: usize) -> String {
    let line = |line: &str| {
        let text = line.trim_start();
        let is_sentence = ["error: ", "why: ", "do: "].iter().any(|word| text.starts_with(word));
        if !is_sentence || line.chars().count() <= width {
            return line.to_owned();
        }
        let margin = " ".repeat(line.len() - text.len());
        let broken = wrapped(text, width - margin.len(), 4);
        broken.lines().map(|part| format!("{margin}{part}")).collect::<Vec<_>>().join("\n")
    };
    page.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_sentences_of_a_page_are_broken() {
        let page = "error: it is late\n  do: go to bed now\n  | a picture that is long";
        let fits = "error: it is late\n  do: go to bed\n      now\n  | a picture that is long";
        assert_eq!(fitted(page, 17), fits);
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two three", 8, 2), "one two\n  three");
        assert_eq!(wrapped("a-word-that-is-long b", 8, 2), "a-word-that-is-long\n  b");
        assert_eq!(wrapped("first\n    second line", 30, 2), "first\n  second line");
        assert_eq!(wrapped("", 8, 2), "");
    }

    #[test]
    fn code_is_not_broken() {
        assert_eq!(wrapped("write `a = 1` here", 8, 0), "write\n`a = 1`\nhere");
        assert_eq!(wrapped("a ` b c", 3, 0), "a `\nb c");
        let code = "  saved = torch.load(\"x.pt\", map_location=\"cpu\")";
        let recipe = format!("convert it once, in Python:\n{code}");
        assert_eq!(message(&recipe, 20), format!("convert it once, in\nPython:\n{code}"));
    }
}
