//! One utterance, and many of them in little memory.

use std::path::PathBuf;

use crate::data::listing::paths::Paths;
use crate::data::sources::holdout::{Divisible, Units};
use crate::data::sources::speech::audio::Span;

/// The class of utterances that name none.
pub(super) const UNNAMED: &str = "speech";

/// A recording or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Utterance {
    pub(super) path: PathBuf,
    pub(super) class: String,
    /// The part; the whole recording if there is none.
    pub(super) span: Option<Span>,
}

/// Utterances with their labels, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Recordings {
    files: Paths,
    /// Empty where all are whole recordings.
    spans: Vec<Span>,
}

impl Divisible for Recordings {
    fn units(&self) -> Units {
        self.files.units()
    }

    fn only(&self, places: &[usize]) -> Self {
        let spans = places.iter().filter_map(|&place| self.span(place));
        Self { files: self.files.only(places), spans: spans.collect() }
    }
}

impl Recordings {
    /// `utterances`, labelled by their place in `classes`, which are in order.
    pub(super) fn labelled(utterances: &[Utterance], classes: &[String]) -> Self {
        let mut all = Self::default();
        for Utterance { path, class, span } in utterances {
            let label = classes.binary_search(class).unwrap_or(0);
            all.files.push_path(path, label as u32);
            all.spans.extend(*span);
        }
        all
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// File and label of an utterance.
    pub(super) fn get(&self, index: usize) -> (PathBuf, u32) {
        self.files.get(index)
    }

    /// The part of its file.
    pub(super) fn span(&self, index: usize) -> Option<Span> {
        self.spans.get(index).copied()
    }
}
