//! `[data]` -> [`DataFacts`], and a plan -> its splits.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Splits;
use crate::config::kind::{Choice, Spec};
use crate::error::{Error, shown};
use crate::fingerprint::Fingerprint;
use crate::plan::{DataFacts, DataPlan, SourcePlan};
use crate::read;
use crate::sources::source::{DataSource, DataSources, OpenRequest, SurveyRequest};
use crate::subset::Subset;
use crate::transform::Transforms;

/// Counts the samples and classes of the chosen data set, and changes nothing: what is still to be
/// generated is counted as it will be.
///
/// # Errors
///
/// The data is absent, incomplete or inconsistent; names the path and what was expected there.
pub fn survey(
    sources: &DataSources,
    choice: &Choice,
    request: &SurveyRequest<'_>,
) -> Result<DataFacts, Error> {
    let mut found = sources.build(choice)?.survey(request)?;
    found.notes.extend(trained_on(choice));
    // The words of a vocabulary are not counted.
    if found.class_counts.len() == found.classes.len() {
        found.notes.extend(alike(&found.classes));
    }
    found.notes.dedup();
    let line = if found.line.is_empty() { choice.to_string() } else { found.line };
    let line = line + &request.split.words();
    let line = std::iter::once(line).chain(found.columns).collect::<Vec<String>>().join("\n");
    let modality = sources.kind(&choice.name).and_then(Spec::modality).unwrap_or_default();
    Ok(DataFacts {
        source: SourcePlan {
            kind: choice.clone(),
            modality,
            line,
            memory: found.held,
            survey: found.found,
        },
        n_train: found.n_train,
        subset_of: None,
        n_val: found.n_val,
        n_test: found.n_test,
        notes: found.notes,
        classes: found.classes,
        token_bytes: found.token_bytes,
        class_counts: found.class_counts,
        multi_label: found.multi_label,
        n_targets: found.n_targets,
        target_columns: found.target_columns,
        one_hot: found.one_hot,
        sample: found.sample,
        target: found.target,
        cameras: found.cameras,
        pixels: found.pixels,
        pixel_dtype: found.pixel_dtype,
    })
}

/// Note that classes differ in their spelling only. Single letters and signs are classes of their
/// own.
fn alike(classes: &[String]) -> Option<String> {
    const TRUE: [&str; 5] = ["1", "true", "yes", "y", "t"];
    const FALSE: [&str; 5] = ["0", "false", "no", "n", "f"];
    let is_truth = |class: &String| ["true", "false"].contains(&class.to_lowercase().as_str());
    let has_truths = classes.iter().any(is_truth);
    let meaning = |class: &String| -> Option<String> {
        let lower = class.to_lowercase();
        let is_separator = |c: char| c.is_whitespace() || c == '-' || c == '_';
        let words = lower.split(is_separator).filter(|word| !word.is_empty());
        match words.collect::<Vec<_>>().join(" ") {
            word if has_truths && TRUE.contains(&word.as_str()) => Some("true".to_owned()),
            word if has_truths && FALSE.contains(&word.as_str()) => Some("false".to_owned()),
            word => (word.chars().count() > 2).then_some(word),
        }
    };
    let mut groups = BTreeMap::<String, Vec<String>>::new();
    for class in classes {
        if let Some(meaning) = meaning(class) {
            groups.entry(meaning).or_default().push(format!("`{class}`"));
        }
    }
    let same = groups.into_values().find(|group| group.len() > 1)?;
    Some(format!(
        "the classes {} may be the same, but are learnt as {} different ones; if they are, write \
         them alike",
        same.join(", "),
        same.len()
    ))
}

/// Parts that are the training data themselves, or a copy of the file, in words.
fn trained_on(choice: &Choice) -> Vec<String> {
    let path = |key: String| {
        let path = choice.options.get(&key)?.as_str()?;
        Some((key, PathBuf::from(path)))
    };
    let others = |end: &str| ["val", "test"].map(|part| format!("{part}_{end}"));
    let pairs = ["file", "dir"].into_iter().flat_map(|end| {
        let train = path(format!("train_{end}"));
        let others = others(end).into_iter().filter_map(path);
        train.into_iter().flat_map(move |train| others.clone().map(move |it| (train.clone(), it)))
    });
    let note = |((train_key, train), (key, other)): ((String, PathBuf), (String, PathBuf))| {
        let say = "its metrics say nothing about new data";
        if train.canonicalize().ok()? == other.canonicalize().ok()? {
            return Some(format!("`data.{key}` is `data.{train_key}`: {say}"));
        }
        let is_copy = other.is_file() && are_equal(&train, &other).unwrap_or(false);
        is_copy.then(|| format!("`{}` is a copy of `{}`: {say}", shown(&other), shown(&train)))
    };
    pairs.filter_map(note).collect()
}

/// True if two files of a usual size have the same contents.
fn are_equal(one: &Path, other: &Path) -> io::Result<bool> {
    const MOST_BYTES: u64 = 64 << 20;
    let [bytes, others] = [one, other].map(|path| std::fs::metadata(path).map(|it| it.len()));
    let bytes = bytes?;
    Ok(bytes == others? && bytes <= MOST_BYTES && read::whole(one)? == read::whole(other)?)
}

/// Opens the data that `plan` describes, with its transforms, and checks that it still is what was
/// planned.
pub fn open(
    source: &dyn DataSource,
    plan: &DataPlan,
    request: &SurveyRequest<'_>,
    transforms: &Transforms,
) -> Result<Splits, Error> {
    let mut splits = source.open(&OpenRequest {
        survey: request,
        found: &plan.source.survey,
        train_transforms: &plan.train_transforms,
        val_transforms: &plan.val_transforms,
        transforms,
    })?;
    if plan.subset_of == Some(splits.train.len()) {
        // The labels of a text or of numbers are no classes of samples.
        let classes = if splits.train.label(0).is_some() { splits.classes.len() } else { 0 };
        splits.train = Arc::new(Subset::of(splits.train, classes, plan.n_train));
    }
    let planned = Fingerprint::of_plan(plan);
    let n_test = splits.test.as_ref().map_or(0, |test| test.len());
    let counts = [splits.train.len(), splits.val.len(), n_test];
    let differences = planned.counting(counts, splits.classes.clone()).differences(&planned);
    if differences.is_empty() { Ok(splits) } else { Err(Error::Changed { differences }) }
}

#[cfg(test)]
mod tests;
