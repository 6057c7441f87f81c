//! A misspelt word -> the word that was meant, if one is near enough.

/// The candidate closest to `word`, if it is near enough to be what was meant.
///
/// Distance = optimal string alignment (a swap of neighbours counts once); at most a third of the
/// longer word, at least one. Ties go to the candidate with the longer common beginning
/// (Jaro-Winkler).
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= allowed(word, candidate))
        .min_by(|(a, x), (b, y)| {
            let likeness = |candidate| strsim::jaro_winkler(word, candidate);
            a.cmp(b).then_with(|| likeness(y).total_cmp(&likeness(x)))
        })
        .map(|(_, candidate)| candidate)
}

fn allowed(word: &str, candidate: &str) -> usize {
    (word.chars().count().max(candidate.chars().count()) / 3).max(1)
}

/// "`a`, `b` or `c`"
pub(crate) fn any_of<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_its_word() {
        let words =
            ["epochs", "steps", "time", "batch_size", "global_batch_size", "p", "precision"];
        let check = |word: &str, expected| assert_eq!(closest(word, words), expected, "{word}");
        check("epoch", Some("epochs"));
        check("epcohs", Some("epochs"));
        check("batchsize", Some("batch_size"));
        check("presicion", Some("precision"));
        check("tiem", Some("time"));
        check("q", Some("p"));
        check("banana", None);
        check("", Some("p"));
    }

    #[test]
    fn alternatives_read_as_a_sentence() {
        assert_eq!(any_of(["a"]), "`a`");
        assert_eq!(any_of(["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
