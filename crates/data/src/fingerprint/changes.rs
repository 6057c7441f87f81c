//! Differences between the data of now and of an earlier start, in words.

use std::collections::BTreeMap;

use super::{FileMark, Fingerprint, Part};
use crate::terminal::counted;

/// Classes that are named.
const MAX_NAMED_CLASSES: usize = 6;

impl Fingerprint {
    /// Lists the differences from `then`. Fields that either does not know are not compared.
    pub fn differences(&self, then: &Self) -> Vec<String> {
        let mut found = classes(&self.classes, &then.classes);
        for (split, now, before) in [
            ("train", self.n_train, then.n_train),
            ("val", self.n_val, then.n_val),
            ("test", self.n_test, then.n_test),
        ] {
            if now != before {
                found.push(format!("{split}: {}, was {before}", counted(now as u64, "sample")));
            }
        }
        found.extend(shape("sample", self.sample.as_deref(), then.sample.as_deref()));
        found.extend(shape("target", self.target.as_deref(), then.target.as_deref()));
        if let (Some(now), Some(then)) = (&self.own, &then.own)
            && now != then
        {
            found.push(format!("the data set's own fingerprint is {now:?}, was {then:?}"));
        }
        for now in &self.parts {
            let before = then.parts.iter().find(|part| part.name == now.name);
            found.extend(before.filter(|part| part.blake3 != now.blake3).map(|b| part(now, b)));
        }
        found
    }
}

/// "class `cat` is now label 3, was 2": those that are gone, those that are new, and those whose
/// label is another.
fn classes(now: &[String], then: &[String]) -> Vec<String> {
    let labels = |classes: &[String]| -> BTreeMap<String, usize> {
        classes.iter().cloned().zip(0..).collect()
    };
    let now = labels(now);
    let then = labels(then);
    let gone = then.iter().filter(|(class, _)| !now.contains_key(*class));
    let gone = gone.map(|(class, label)| format!("class `{class}` (label {label}) is gone"));
    let new = now.iter().filter(|(class, _)| !then.contains_key(*class));
    let new = new.map(|(class, label)| format!("class `{class}` (label {label}) is new"));
    let moved = now.iter().filter_map(|(class, label)| {
        let before = then.get(class).filter(|before| *before != label)?;
        Some(format!("class `{class}` is now label {label}, was {before}"))
    });
    let mut lines: Vec<String> = gone.chain(new).chain(moved).collect();
    let more = lines.len().saturating_sub(MAX_NAMED_CLASSES);
    lines.truncate(MAX_NAMED_CLASSES);
    lines.extend((more > 0).then(|| format!("... and {} more", counted(more as u64, "class"))));
    lines
}

fn shape(what: &str, now: Option<&[usize]>, then: Option<&[usize]>) -> Option<String> {
    let now = now?;
    let then = then?;
    (now != then).then(|| format!("the shape of a {what} is {now:?}, was {then:?}"))
}

/// Describes the difference between two states of a part.
fn part(now: &Part, then: &Part) -> String {
    let name = &now.name;
    let said = match (&now.listing, &then.listing) {
        (Some(now), Some(then)) => files(now, then),
        _ => folders(now, then),
    };
    if said.is_empty() {
        return format!("{name}: file names or sizes changed");
    }
    format!("{name}: {}", said.join("; "))
}

/// "3 files are missing, e.g. `dog/12.jpg`"
fn files(now: &[FileMark], then: &[FileMark]) -> Vec<String> {
    let by_path = |marks: &[FileMark]| -> BTreeMap<String, FileMark> {
        marks.iter().map(|mark| (mark.path.clone(), mark.clone())).collect()
    };
    let now = by_path(now);
    let then = by_path(then);
    let missing: Vec<&FileMark> =
        then.values().filter(|mark| !now.contains_key(&mark.path)).collect();
    let new: Vec<&FileMark> = now.values().filter(|mark| !then.contains_key(&mark.path)).collect();
    let changed: Vec<(&FileMark, &FileMark)> = now
        .values()
        .filter_map(|mark| Some((mark, then.get(&mark.path)?)))
        .filter(|(now, then)| now.differs(then))
        .collect();
    let mut said = Vec::new();
    if let [first, ..] = &missing[..] {
        said.push(format!("{} missing, e.g. `{}`", are(missing.len()), first.path));
    }
    if let [first, ..] = &new[..] {
        said.push(format!("{} new, e.g. `{}`", are(new.len()), first.path));
    }
    match &changed[..] {
        [] => {}
        [(now, then)] => said.push(change(now, then)),
        [(now, then), ..] => {
            said.push(format!("{} changed, e.g. {}", have(changed.len()), change(now, then)));
        }
    }
    said
}

impl FileMark {
    /// Contents differ only where they were looked at both times.
    fn differs(&self, then: &Self) -> bool {
        let now = (self.bytes, &self.blake3);
        let then = (then.bytes, &then.blake3);
        now.0 != then.0 || (now.1.is_some() && then.1.is_some() && now.1 != then.1)
    }
}

/// "`train.csv` has 900 bytes, had 1000"
fn change(now: &FileMark, then: &FileMark) -> String {
    let path = &now.path;
    match (now.bytes, then.bytes) {
        (Some(now), Some(then)) if now != then => format!("`{path}` has {now} bytes, had {then}"),
        (None, Some(_)) => format!("`{path}` cannot be read"),
        _ => format!("the contents of `{path}` changed"),
    }
}

/// "`dog` has 270 files, had 273"
fn folders(now: &Part, then: &Part) -> Vec<String> {
    let names = now.folders.keys().chain(then.folders.keys());
    let names: std::collections::BTreeSet<&String> = names.collect();
    let count = |part: &Part, name: &String| part.folders.get(name).copied().unwrap_or(0);
    let differ = names.into_iter().filter(|name| count(now, name) != count(then, name));
    let said = differ.map(|name| {
        format!(
            "`{name}` has {}, had {}",
            counted(count(now, name) as u64, "file"),
            count(then, name)
        )
    });
    said.take(MAX_NAMED_CLASSES).collect()
}

fn are(n: usize) -> String {
    format!("{} {}", counted(n as u64, "file"), if n == 1 { "is" } else { "are" })
}

fn have(n: usize) -> String {
    format!("{} {}", counted(n as u64, "file"), if n == 1 { "has" } else { "have" })
}
