//! A misspelt word -> the word that was meant, if one is near enough.

/// Words of other programs, without their signs, and ours.
const SYNONYMS: [(&str, &str); 16] = [
    ("auc", "auroc"),
    ("bayes", "tpe"),
    ("bayesian", "tpe"),
    ("botorch", "gp"),
    ("ce", "cross_entropy"),
    ("gaussianprocess", "gp"),
    ("gloo", "shm"),
    ("l1", "mae"),
    ("l1loss", "mae"),
    ("l2", "mse"),
    ("mseloss", "mse"),
    ("nll", "cross_entropy"),
    ("optuna", "tpe"),
    ("valauc", "val/auroc"),
    ("valppl", "val/perplexity"),
    ("valr2score", "val/r2"),
];
/// Letters that a word must have in common with another of which it is a part.
const MIN_BEGINNING: usize = 3;
const MIN_PART: usize = 4;

/// The candidate closest to `word`, if it is near enough to be what was meant: what another program
/// calls so (`bayes`), what is spelt so but for its signs (`adam_w`), what begins so (`val/acc`), a
/// near one, or the longest with which it begins (`CosineAnnealingLR`).
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let plain = letters(word);
    let synonym = SYNONYMS.iter().find(|(other, _)| *other == plain).map(|&(_, ours)| ours);
    let all = || candidates.iter().copied();
    let begins = |it: &&str| plain.len() >= MIN_BEGINNING && letters(it).starts_with(&plain);
    let is_begun_with = |it: &&str| {
        let part = letters(it);
        part.len() >= MIN_PART && (plain.starts_with(&part) || ends_in_word(word, &part))
    };
    all()
        .find(|it| Some(*it) == synonym)
        .or_else(|| all().find(|it| !plain.is_empty() && letters(it) == plain))
        .or_else(|| all().filter(begins).min_by_key(|it| it.len()))
        .or_else(|| similar(word, all()).into_iter().next())
        .or_else(|| all().filter(is_begun_with).max_by_key(|it| it.len()))
}

/// True if `part` is the last word of `word`: `Plateau` of `ReduceLROnPlateau`, but not `file` of
/// `profile`.
fn ends_in_word(word: &str, part: &str) -> bool {
    if !letters(word).ends_with(part) {
        return false;
    }
    let all: Vec<char> = word.chars().collect();
    let mut places = (0..all.len()).rev().filter(|&at| all[at].is_alphanumeric());
    let begin = part.chars().count().checked_sub(1).and_then(|last| places.nth(last));
    begin.is_some_and(|at| at == 0 || all[at].is_uppercase() || !all[at - 1].is_alphanumeric())
}

/// A word without its signs, in lower case.
fn letters(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The candidates that few slips make of `word`, the most similar first.
///
/// Distance = optimal string alignment (a swap of neighbours counts once); at most a third of the
/// longer word, at least one. Ties go to the candidate with the longer common beginning
/// (Jaro-Winkler).
pub fn similar<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut near: Vec<(usize, &str)> = candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= allowed(word, candidate))
        .collect();
    near.sort_by(|(a, x), (b, y)| {
        let likeness = |candidate| strsim::jaro_winkler(word, candidate);
        a.cmp(b).then_with(|| likeness(y).total_cmp(&likeness(x)))
    });
    near.into_iter().map(|(_, candidate)| candidate).collect()
}

fn allowed(word: &str, candidate: &str) -> usize {
    (word.chars().count().max(candidate.chars().count()) / 3).max(1)
}

/// A remedy for a word that is none of `names`: the closest name, or all of them.
pub(crate) fn remedy<'a>(word: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match closest(word, names.clone()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("choose {}", any_of(names)),
    }
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
        check("lifetime", None);
        check("life_time", Some("time"));
        check("", Some("p"));
    }

    #[test]
    fn words_of_other_programs_find_ours() {
        let schedules = ["constant", "cosine", "step", "multi_step", "one_cycle", "plateau"];
        let metrics = ["val/loss", "val/mae", "val/mse", "val/accuracy", "val/auroc"];
        let kinds = ["adam", "adamw", "cross_entropy", "bce_with_logits", "mse", "mae"];
        let check = |words: &[&str], word: &str, expected: &str| {
            assert_eq!(closest(word, words.iter().copied()), Some(expected), "{word}");
        };
        for (word, expected) in [
            ("cosine_annealing", "cosine"),
            ("CosineAnnealingLR", "cosine"),
            ("MultiStepLR", "multi_step"),
            ("StepLR", "step"),
            ("ReduceLROnPlateau", "plateau"),
            ("OneCycleLR", "one_cycle"),
        ] {
            check(&schedules, word, expected);
        }
        for (word, expected) in
            [("val/acc", "val/accuracy"), ("val_acc", "val/accuracy"), ("val/auc", "val/auroc")]
        {
            check(&metrics, word, expected);
        }
        for (word, expected) in [
            ("adam_w", "adamw"),
            ("AdamW", "adamw"),
            ("crossentropy", "cross_entropy"),
            ("CrossEntropyLoss", "cross_entropy"),
            ("cross-entropy", "cross_entropy"),
            ("bce", "bce_with_logits"),
            ("MSELoss", "mse"),
            ("L1Loss", "mae"),
        ] {
            check(&kinds, word, expected);
        }
    }

    #[test]
    fn alternatives_read_as_a_sentence() {
        assert_eq!(any_of(["a"]), "`a`");
        assert_eq!(any_of(["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
