//! Every key of the reference, misspelt by one letter in each way.

use super::*;

/// Only the table headers and the commented keys of a page, as TOML.
fn commented_keys(page: &str) -> String {
    let line = |line| match str::strip_prefix(line, "# ") {
        Some(rest) => is_key(rest).then_some(rest),
        None => line.starts_with('[').then_some(line),
    };
    page.lines().filter_map(line).fold(String::new(), |text, line| text + line + "\n")
}

/// True if a comment is a key or a header in disguise, not a sentence.
fn is_key(comment: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_\"/".contains(c);
    match comment.split_once(" = ") {
        Some((key, _)) => key.chars().all(plain),
        None => comment.starts_with("[["),
    }
}

/// One character of `key` missing, doubled, exchanged with its neighbour, or another.
fn misspelt(key: &str, way: usize) -> String {
    let mut letters: Vec<char> = key.chars().collect();
    let at = letters.len() / 2;
    match way {
        0 => drop(letters.remove(at)),
        1 => letters.insert(at, letters[at]),
        2 if letters.len() > 1 => letters.swap(at - 1, at),
        _ => letters[at] = 'q',
    }
    if letters.is_empty() { key.to_owned() } else { letters.into_iter().collect() }
}

/// True if `key` is suggested for `wrong` in `text`; the problem must be there, and on its line.
#[track_caller]
fn is_suggested(text: &str, wrong: &str, key: &str) -> bool {
    let problems = read(text, &[]).unwrap_err();
    let found = problems.iter().find(|p| p.what() == "is not a key of an experiment");
    let found = found.unwrap_or_else(|| panic!("{wrong}: {problems}"));
    assert_eq!(found.line(), Some(("exp.toml", 3)), "{text}");
    found.remedy() == Some(&format!("did you mean `{key}`?"))
}

#[test]
fn each_key_misspelt_by_one_letter_is_found_on_its_line_and_the_right_one_suggested() {
    let vocabulary = vocabulary();
    let commented = commented_keys(vocabulary.reference());
    let (mut tried, mut suggested) = (0, 0);
    // The keys that are always there in four ways, those of kinds in one each, in turn.
    for (page, ways) in [(vocabulary.reference(), 4), (&*commented, 1)] {
        let mut table = "";
        for (n, line) in page.lines().filter(|line| !line.starts_with('#')).enumerate() {
            if line.starts_with('[') {
                table = line;
            }
            // The keys of this table are the user's own.
            let Some((key, value)) = line.split_once(" = ") else { continue };
            if table == "[expect]" {
                continue;
            }
            for wrong in
                (n..n + ways).map(|way| misspelt(key, way % 4)).filter(|wrong| wrong != key)
            {
                let text = format!("# one\n{table}\n{wrong} = {value}\n");
                tried += 1;
                suggested += u32::from(is_suggested(&text, &wrong, key));
            }
        }
    }
    assert!(tried > 350, "{tried}");
    assert!(suggested * 100 >= tried * 95, "{suggested} of {tried}");
}

proptest::proptest! {
    #[test]
    fn no_text_and_no_override_brings_the_reader_down(
        at in 0..GOOD.len(), cut in 0usize..40, inserted in "[\\[\\]{}=\"'.,#a-z0-9é\\n -]{0,12}", typed in "[~+a-z_.=\"\\[\\]0-9é ]{0,20}",
    ) {
        let mut text = GOOD.to_owned();
        text.replace_range(at..(at + cut).min(GOOD.len()), &inserted);
        for overrides in [vec![], vec![typed.as_str()]] {
            if let Err(problems) = read(&text, &overrides) {
                assert!(problems.page(true, 80).contains("nothing was started"));
            }
        }
    }

    #[test]
    fn no_value_of_any_key_brings_the_reader_down(
        index in 0usize..110, value in proptest::sample::select(vec![
            "0", "-1", "nan", "-inf", "1e308", "9223372036854775807", "9223372036854775808", "\"\"", "\"é\"", "[]",
            "[[]]", "{}", "{a = 1}", "[1, 2, 3]", "true", "1979-05-27", "\"auto\"", "\"0 steps\"", "\"1 epoch\"",
        ]),
    ) {
        let keys = vocabulary().keys();
        let key = keys[index % keys.len()].replace("transforms.train.", "transforms.train = [{ ");
        let (key, value) = match key.split_once(" = ") {
            Some((key, rest)) => (key.to_owned(), format!("{rest} = {value} }}]")),
            None => (key, value.to_owned()),
        };
        let assigned = format!("{key}={value}");
        for text in [GOOD, ""] {
            if let Err(problems) = read(text, &[&assigned]) {
                assert!(problems.page(false, 80).contains("nothing was started"));
            }
        }
    }
}
