//! Patterns of file names: `*` stands for any signs, `{000..127}` for numbers, `{a,b}` for words.

use std::path::Path;

/// Most names that the braces of a pattern may stand for.
const MAX_NAMES: usize = 1 << 20;

/// A pattern of the names of files in one folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    parts: Vec<PatternPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPart {
    /// These signs.
    Text(String),
    /// Any signs.
    Star,
    /// A number from `first` to `last`, of `width` digits where it has leading zeros.
    Numbers { first: u64, last: u64, width: usize },
    /// One of these words.
    Words(Vec<String>),
}

impl NamePattern {
    /// The last part of a path, if it is a pattern.
    pub fn of(path: &Path) -> Option<Self> {
        let mut rest = path.file_name()?.to_str()?;
        let mut parts = Vec::new();
        while let Some(at) = rest.find(['*', '{']) {
            let (text, special) = rest.split_at(at);
            let (part, after) = match special.strip_prefix('*') {
                Some(after) => (PatternPart::Star, after),
                None => match braces(special) {
                    Some(found) => found,
                    // A brace that is a sign like others.
                    None => (PatternPart::Text("{".to_owned()), &special[1..]),
                },
            };
            parts.extend([PatternPart::Text(text.to_owned()), part]);
            rest = after;
        }
        parts.push(PatternPart::Text(rest.to_owned()));
        let is_one = parts.iter().any(|part| !matches!(part, PatternPart::Text(_)));
        is_one.then_some(Self { parts })
    }

    /// True if a file of this name is meant.
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.parts, name)
    }

    /// All names that it stands for; `None` if it has a `*`, or stands for a million or more.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        let mut names = vec![String::new()];
        for part in &self.parts {
            let words = match part {
                PatternPart::Text(text) => vec![text.clone()],
                PatternPart::Star => return None,
                PatternPart::Numbers { first, last, .. } if last - first >= MAX_NAMES as u64 => {
                    return None;
                }
                PatternPart::Numbers { first, last, width } => {
                    (*first..=*last).map(|number| format!("{number:0width$}")).collect()
                }
                PatternPart::Words(words) => words.clone(),
            };
            if names.len() * words.len() >= MAX_NAMES {
                return None;
            }
            names = names
                .iter()
                .flat_map(|name| words.iter().map(move |word| format!("{name}{word}")))
                .collect();
        }
        Some(names)
    }
}

/// What the braces with which `text` begins stand for, and what follows them.
fn braces(text: &str) -> Option<(PatternPart, &str)> {
    let (inside, after) = text.strip_prefix('{')?.split_once('}')?;
    let part = match inside.split_once("..") {
        Some((first, last)) => {
            let is_number =
                |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            let is_padded = |word: &str| word.len() > 1 && word.starts_with('0');
            (is_number(first) && is_number(last)).then_some(())?;
            let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            let padded = is_padded(first) || is_padded(last);
            let width = if padded { first.len().max(last.len()) } else { 1 };
            PatternPart::Numbers { first: from.min(to), last: from.max(to), width }
        }
        None if inside.contains(',') && !inside.contains(['{', '*']) => {
            PatternPart::Words(inside.split(',').map(str::to_owned).collect())
        }
        None => return None,
    };
    Some((part, after))
}

fn matches(parts: &[PatternPart], name: &str) -> bool {
    let Some((part, rest)) = parts.split_first() else { return name.is_empty() };
    let ends_at = |end: usize| name.get(end..).is_some_and(|after| matches(rest, after));
    match part {
        PatternPart::Text(text) => name.starts_with(text) && ends_at(text.len()),
        PatternPart::Star => (0..=name.len()).any(ends_at),
        PatternPart::Words(words) => {
            words.iter().any(|word| name.starts_with(word) && ends_at(word.len()))
        }
        PatternPart::Numbers { first, last, width } => {
            let n_digits = name.bytes().take_while(u8::is_ascii_digit).count();
            let is_meant = |end: usize| {
                let number =
                    name[..end].parse().ok().filter(|number| (first..=last).contains(&number));
                number.is_some_and(|number: u64| format!("{number:0width$}") == name[..end])
            };
            (1..=n_digits).any(|end| is_meant(end) && ends_at(end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_meant(pattern: &str, name: &str) -> bool {
        NamePattern::of(Path::new(pattern)).unwrap().matches(name)
    }

    fn names(pattern: &str) -> Option<Vec<String>> {
        NamePattern::of(Path::new(pattern)).unwrap().names()
    }

    #[test]
    fn a_star_stands_for_any_signs() {
        for name in ["train-0.jsonl", "train.jsonl", "train-a-b.jsonl"] {
            assert!(is_meant("data/train*.jsonl", name), "{name}");
        }
        for name in ["test-0.jsonl", "train-0.jsonl.gz", "train"] {
            assert!(!is_meant("train*.jsonl", name), "{name}");
        }
        assert!(is_meant("*", "ä") && is_meant("a*b*c", "a1b2bc") && !is_meant("a*b*c", "ab"));
        assert_eq!(names("a*"), None);
        for plain in ["a.parquet", "a{b}.tar", "{.tar", "a*/b.tar", "{a..b}", "{1..}.tar"] {
            assert_eq!(NamePattern::of(Path::new(plain)), None, "{plain}");
        }
    }

    #[test]
    fn braces_stand_for_numbers_and_words() {
        let all = names("train-{08..11}.tar").unwrap();
        assert_eq!(all, ["train-08.tar", "train-09.tar", "train-10.tar", "train-11.tar"]);
        assert!(all.iter().all(|name| is_meant("train-{08..11}.tar", name)));
        for name in ["train-8.tar", "train-12.tar", "train-010.tar", "train-.tar", "train-0é.tar"]
        {
            assert!(!is_meant("train-{08..11}.tar", name), "{name}");
        }
        assert_eq!(names("{9..10}").unwrap(), ["9", "10"]);
        assert_eq!(names("{2..1}{a,b}").unwrap(), ["1a", "1b", "2a", "2b"]);
        assert!(is_meant("{val,test}-*.tar", "test-0.tar") && !is_meant("{val,test}", "train"));
        assert_eq!(names("{0..99999999999}.tar"), None);
        assert_eq!(names("{0..9999}{0..9999}"), None);
        assert!(is_meant("{0..99999999999}.tar", "123.tar"));
    }
}
