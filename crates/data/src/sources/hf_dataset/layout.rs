//! Names of parquet files -> configurations, splits and shards, as `datasets` takes them.
//!
//! ```text
//! data/train-00000-of-00005.parquet       split `train`; a hash may follow the numbers
//! CONFIG/test-00000-of-00001.parquet      split `test` of a configuration
//! CONFIG/train/0000.parquet               the same, as in `refs/convert/parquet`
//! train.parquet, train-0.parquet          split `train`
//! ```

use std::collections::BTreeMap;

use crate::error::Error;

/// The configuration of files that are in no folder of one.
const DEFAULT: &str = "default";
/// The folder of files that have no configuration.
const DATA: &str = "data";
/// Ending of the files that are read.
pub(super) const ENDING: &str = ".parquet";
/// Words for the same split.
const SYNONYMS: [&[&str]; 3] = [
    &["train", "training"],
    &["validation", "valid", "val", "dev"],
    &["test", "testing", "eval", "evaluation"],
];
/// Digits of the numbers in `-00000-of-00005`.
const DIGITS: usize = 5;
/// Missing shards that a message names.
const MAX_NAMED: usize = 3;

/// A split's place among the others: its configuration, and its name.
pub(crate) type SplitName = (String, String);

/// The parquet files of a repository or folder.
#[derive(Debug, Default)]
pub(super) struct Layout {
    splits: BTreeMap<SplitName, Vec<Shard>>,
}

/// A file of a split.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shard {
    /// Its number and how many there are, if its name says so.
    place: Option<(u32, u32)>,
    /// Below the root.
    path: String,
}

/// The choice of an experiment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitChoice<'a> {
    /// The repository or folder, for messages.
    pub(super) root: &'a str,
    pub(super) config: Option<&'a str>,
    /// The key of each split, and its name.
    pub(super) splits: &'a [(&'static str, &'a str)],
}

impl Layout {
    /// The layout of these files, whose paths are relative to the root; others are left out.
    pub(super) fn of<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        let mut splits: BTreeMap<SplitName, Vec<Shard>> = BTreeMap::new();
        for path in files {
            let is_hidden = path.split('/').any(|part| part.starts_with('.'));
            if let Some(stem) = path.strip_suffix(ENDING).filter(|_| !is_hidden) {
                let (name, place) = split_of(stem);
                splits.entry(name).or_default().push(Shard { place, path: path.to_owned() });
            }
        }
        for shards in splits.values_mut() {
            shards.sort();
        }
        Self { splits }
    }

    /// The files of each split that is asked for, in their order.
    ///
    /// # Errors
    ///
    /// There is no such configuration or split, or a shard is missing.
    pub(super) fn choose(&self, choice: &SplitChoice<'_>) -> Result<Vec<Vec<String>>, Error> {
        let config = self.config(choice)?;
        let names = || self.splits.keys().filter(|(of, _)| of == config).map(|(_, name)| &**name);
        let choose = |&(key, wanted): &(&'static str, &str)| {
            let found = names().find(|name| *name == wanted);
            let found = found.or_else(|| names().find(|name| are_synonyms(name, wanted)));
            let Some(name) = found else {
                let splits = names().map(str::to_owned).collect();
                let root = choice.root.to_owned();
                return Err(Error::NoSplit { key, root, split: wanted.to_owned(), splits });
            };
            let shards = &self.splits[&(config.to_owned(), name.to_owned())];
            check_complete(choice.root, shards)?;
            Ok(shards.iter().map(|shard| shard.path.clone()).collect())
        };
        choice.splits.iter().map(choose).collect()
    }

    /// Names of the splits of a configuration, or of the only or usual one.
    pub(super) fn names(&self, config: Option<&str>) -> Vec<String> {
        let Ok(config) = self.config(&SplitChoice { root: "", config, splits: &[] }) else {
            return Vec::new();
        };
        let splits = self.splits.keys().filter(|(of, _)| of == config);
        splits.map(|(_, name)| name.clone()).collect()
    }

    /// The configuration that is asked for, or the only or usual one.
    fn config(&self, choice: &SplitChoice<'_>) -> Result<&str, Error> {
        let mut configs: Vec<&str> = self.splits.keys().map(|(config, _)| &**config).collect();
        configs.dedup();
        let wanted = choice.config.unwrap_or(DEFAULT);
        let found = configs.iter().find(|config| **config == wanted).copied();
        match (found, &configs[..]) {
            (Some(config), _) => Ok(config),
            (None, [only]) if choice.config.is_none() => Ok(*only),
            _ => Err(Error::NoConfig {
                root: choice.root.to_owned(),
                config: choice.config.map(str::to_owned),
                configs: configs.into_iter().map(str::to_owned).collect(),
            }),
        }
    }
}

/// Refuses files that are to be read one after the other, if they are of several splits or a shard
/// is missing. `names` are their paths in `root`.
pub(crate) fn check_one_split(root: &str, names: &[String]) -> Result<(), Error> {
    let mut splits: BTreeMap<String, Vec<Shard>> = BTreeMap::new();
    for path in names {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = name.split('.').next().unwrap_or_default();
        let ((_, split), place) = split_of(&format!("{folder}/{stem}"));
        splits.entry(split).or_default().push(Shard { place, path: path.clone() });
    }
    if let [first, _, ..] = &splits.keys().collect::<Vec<_>>()[..] {
        let all: Vec<String> = splits.keys().map(|split| format!("`{split}`")).collect();
        let what = format!("it holds files of several splits: {}", all.join(", "));
        let help = format!("name the files of one by a pattern, such as `*{first}*`");
        return Err(Error::WithHelp { path: root.into(), what, help });
    }
    splits.values_mut().try_for_each(|shards| {
        shards.sort();
        check_complete(root, shards)
    })
}

/// The split of a file by its path without the ending, and its place among the shards.
pub(crate) fn split_of(stem: &str) -> (SplitName, Option<(u32, u32)>) {
    let mut folders: Vec<&str> = stem.split('/').collect();
    let name = folders.pop().unwrap_or_default();
    let (word, place) = match numbered(name) {
        Some((word, place)) => (word, Some(place)),
        None => (name.split(['-', '_', '.']).find(|word| is_usual(word)).unwrap_or(name), None),
    };
    let folder = folders.last().copied().filter(|folder| *folder != DATA);
    let is_of_folder = folder.is_some_and(is_usual) || place.is_none();
    let split = if is_usual(word) || (place.is_some() && !is_of_folder) {
        word
    } else if let Some(folder) = folder {
        folders.pop();
        folder
    } else {
        "train"
    };
    let config = match &folders[..] {
        [] | [DATA] => DEFAULT.to_owned(),
        [DATA, rest @ ..] | rest => rest.join("/"),
    };
    ((config, split.to_owned()), place)
}

/// The word before `-00001-of-00005` and, in older repositories, a hash; and these numbers.
fn numbered(name: &str) -> Option<(&str, (u32, u32))> {
    let (before, after) = name.rsplit_once("-of-")?;
    let (word, number) = before.rsplit_once('-')?;
    let (of, hash) = after.split_once('-').unwrap_or((after, ""));
    let is_number = |text: &str| text.len() >= DIGITS && text.bytes().all(|b| b.is_ascii_digit());
    let fits = is_number(number) && is_number(of) && hash.bytes().all(|b| b.is_ascii_hexdigit());
    fits.then_some(())?;
    Some((word, (number.parse().ok()?, of.parse().ok()?)))
}

/// True if a split is usually called so.
fn is_usual(word: &str) -> bool {
    SYNONYMS.iter().any(|words| words.contains(&word))
}

pub(crate) fn are_synonyms(one: &str, other: &str) -> bool {
    SYNONYMS.iter().any(|words| words.contains(&one) && words.contains(&other))
}

/// Refuses shards of which one is missing, or is there twice.
fn check_complete(root: &str, shards: &[Shard]) -> Result<(), Error> {
    let refuse = |what: String, help: &str| {
        Err(Error::WithHelp { path: root.into(), what, help: help.to_owned() })
    };
    let numbered: Vec<(&Shard, (u32, u32))> =
        shards.iter().filter_map(|shard| Some((shard, shard.place?))).collect();
    let Some(&(first, (_, of))) = numbered.first() else { return Ok(()) };
    let help = "remove what is left of an older version";
    if let Some(other) = shards.iter().find(|shard| shard.place.is_none_or(|(_, n)| n != of)) {
        let (one, other) = (&first.path, &other.path);
        return refuse(format!("`{one}` and `{other}` are not shards of one split"), help);
    }
    if let Some(pair) = numbered.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        let [(one, _), (other, _)] = [pair[0], pair[1]];
        return refuse(format!("`{}` and `{}` are the same shard", one.path, other.path), help);
    }
    let is_there = |number: u32| numbered.binary_search_by_key(&number, |(_, (at, _))| *at).is_ok();
    let n_missing = (of as usize).saturating_sub(numbered.len());
    let named: Vec<String> = (0..of)
        .filter(|number| !is_there(*number))
        .take(MAX_NAMED)
        .map(|number| format!("`{}`", name_of(first, number)))
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    let more = match n_missing.saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (is, noun) = if n_missing == 1 { ("is", "shard") } else { ("are", "shards") };
    let what = format!("{}{more} {is} missing, {noun} of {of}", named.join(", "));
    refuse(what, "fetch the whole split: `hf download` continues what it began")
}

/// Path of another shard beside `shard`.
fn name_of(shard: &Shard, number: u32) -> String {
    let own = shard.place.map_or(0, |(own, _)| own);
    let (from, to) = (format!("-{own:0DIGITS$}-of-"), format!("-{number:0DIGITS$}-of-"));
    let Some((before, after)) = shard.path.rsplit_once(&from) else { return shard.path.clone() };
    let of = after.split(['-', '.']).next().unwrap_or_default();
    let ending = after.find('.').map_or("", |at| &after[at..]);
    // The hash of another file is not known.
    let hash = if after.starts_with(&format!("{of}-")) { "-*" } else { "" };
    format!("{before}{to}{of}{hash}{ending}")
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;
    use crate::user_error::UserError;

    fn split(path: &str) -> String {
        let layout = Layout::of([path].into_iter());
        let names: Vec<String> =
            layout.splits.keys().map(|(config, split)| format!("{config} {split}")).collect();
        names.join(", ")
    }

    #[test]
    fn names_of_the_hub_tell_configuration_and_split() {
        let cases = [
            ("data/train-00000-of-00005.parquet", "default train"),
            ("data/train-00000-of-00001-1359597a978bc4fa.parquet", "default train"),
            ("mnist/test-00000-of-00001.parquet", "mnist test"),
            ("plain_text/train-00000-of-00001.parquet", "plain_text train"),
            ("default/train/0000.parquet", "default train"),
            ("mnist/partial-train/0012.parquet", "mnist partial-train"),
            ("a/b/validation/0000.parquet", "a/b validation"),
            ("data/a/test/0000.parquet", "a test"),
            ("train.parquet", "default train"),
            ("test_07.parquet", "default test"),
            ("mnist/train-images.parquet", "mnist train"),
            ("train/part-00000-of-00010.parquet", "default train"),
            ("val/images.parquet", "default val"),
            ("data/extra_unlabelled-00000-of-00002.parquet", "default extra_unlabelled"),
            ("cats.parquet", "default train"),
            ("data/0001.parquet", "default train"),
            (".cache/train.parquet", ""),
            ("README.md", ""),
        ];
        for (path, expected) in cases {
            assert_eq!(split(path), expected, "{path}");
        }
    }

    fn shards_of(files: &[&str], config: Option<&str>, name: &str) -> Result<Vec<String>, Error> {
        let splits = [("data.train_split", name)];
        let asked = SplitChoice { root: "hf:datasets/me/pets", config, splits: &splits };
        Layout::of(files.iter().copied()).choose(&asked).map(|mut all| all.remove(0))
    }

    #[test]
    fn shards_are_in_their_order_and_splits_have_synonyms() {
        let files =
            ["train-00001-of-00002.parquet", "train-00000-of-00002.parquet", "val/0.parquet"];
        assert_eq!(shards_of(&files, None, "train").unwrap(), [files[1], files[0]]);
        assert_eq!(shards_of(&files, Some("default"), "validation").unwrap(), [files[2]]);
        let none = shards_of(&files, None, "test").unwrap_err();
        let expected = "`hf:datasets/me/pets` has no split `test`; its splits are `train`, `val`";
        assert_eq!(none.to_string(), expected);
        assert_eq!(none.key(), Some("data.train_split"));
        let near = shards_of(&["validation/0.parquet"], None, "validaton").unwrap_err();
        assert_eq!(near.help().as_deref(), Some("did you mean `validation`?"));
    }

    #[test]
    fn several_configurations_are_told_apart() {
        let files = ["a/train.parquet", "b/train.parquet", "b/test.parquet"];
        assert_eq!(shards_of(&files, Some("b"), "train").unwrap(), [files[1]]);
        assert_refused(shards_of(&files, None, "train"), "has several configurations: `a`, `b`");
        assert_refused(shards_of(&files, Some("c"), "train"), "has no configuration `c`; it has");
        assert_refused(shards_of(&files, Some("a"), "test"), "its splits are `train`");
        assert_eq!(
            shards_of(&["train.parquet", "raw/train.parquet"], None, "train").unwrap().len(),
            1
        );
        assert_refused(shards_of(&files[..1], Some("b"), "train"), "it has `a`");
    }

    #[test]
    fn a_missing_shard_is_named() {
        let files = ["data/train-00000-of-00003.parquet", "data/train-00002-of-00003.parquet"];
        let one = "`data/train-00001-of-00003.parquet` is missing, shard of 3";
        assert_refused(shards_of(&files, None, "train"), one);
        let hashed = ["train-00003-of-00009-ab12.parquet"];
        let many = "`train-00000-of-00009-*.parquet`, `train-00001-of-00009-*.parquet`, \
                    `train-00002-of-00009-*.parquet` and 5 more are missing, shards of 9";
        assert_refused(shards_of(&hashed, None, "train"), many);
        let twice = ["train-00000-of-00001-aa.parquet", "train-00000-of-00001-bb.parquet"];
        assert_refused(shards_of(&twice, None, "train"), "are the same shard");
        let mixed = ["train-00000-of-00001.parquet", "train-00000-of-00002.parquet"];
        assert_refused(shards_of(&mixed, None, "train"), "are not shards of one split");
        let huge = ["train-00000-of-4000000000.parquet"];
        assert_refused(shards_of(&huge, None, "train"), "and 3999999996 more are missing");
    }
}
