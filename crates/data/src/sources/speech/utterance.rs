//! One utterance, and many of them in little memory.

use std::path::PathBuf;

use crate::listing::paths::Paths;
use crate::sources::holdout::{Divisible, Units, numbered};
use crate::sources::speech::audio::Span;

/// The class of utterances that name none.
pub(super) const UNNAMED: &str = "speech";

/// A recording or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Utterance {
    pub(super) path: PathBuf,
    pub(super) class: String,
    /// The part; the whole recording if there is none.
    pub(super) span: Option<Span>,
    /// Who speaks, where that is known.
    pub(super) speaker: Option<String>,
}

/// Utterances with their labels, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Recordings {
    files: Paths,
    /// Empty where all are whole recordings.
    spans: Vec<Span>,
    /// Who is held back together; empty where nobody is.
    groups: Vec<u32>,
}

impl Divisible for Recordings {
    fn units(&self) -> Units {
        if self.groups.is_empty() { self.files.units() } else { Units::Groups(self.groups.clone()) }
    }

    fn only(&self, places: &[usize]) -> Self {
        let spans = places.iter().filter_map(|&place| self.span(place));
        Self { files: self.files.only(places), spans: spans.collect(), groups: Vec::new() }
    }
}

impl Recordings {
    /// `utterances`, labelled by their place in `classes`, which are in order.
    pub(super) fn labelled(utterances: &[Utterance], classes: &[String]) -> Self {
        let mut all = Self::default();
        for Utterance { path, class, span, .. } in utterances {
            let label = classes.binary_search(class).unwrap_or(0);
            all.files.push_path(path, label as u32);
            all.spans.extend(*span);
        }
        all
    }

    /// The same, with the utterances of a speaker held back together.
    pub(super) fn grouped(self, utterances: &[Utterance]) -> Self {
        let speakers: Vec<String> =
            utterances.iter().filter_map(|utterance| utterance.speaker.clone()).collect();
        Self { groups: numbered(&speakers).unwrap_or_default(), ..self }
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
