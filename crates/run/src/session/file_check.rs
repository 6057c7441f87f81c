//! A file -> whether it is right as it is written: an experiment, a sweep or clusters.
//!
//! Neither its data nor its weights, neither devices nor clusters need be there, and `DDPRUN_*` has no
//! effect: the answer is the same on every machine.

use std::path::Path;

use crate::config::kind::Spec;
use crate::config::{self, FileKind, Problems, Vocabulary};
use crate::kinds::Kinds;
use crate::plan::Modality;
use crate::session::other_file::refuse_other_files;
use crate::session::prepare::refuse_other_samples;
use crate::user_error::ErrorPage;

/// A file that was checked.
pub struct CheckedFile {
    /// What it describes, as far as that can be told.
    pub kind: Option<FileKind>,
    /// All that is wrong with it.
    pub refusal: Option<ErrorPage>,
}

/// Checks the file `path`.
pub fn check_file(path: &Path, vocabulary: &Vocabulary, kinds: &Kinds) -> CheckedFile {
    let kind = match kind_of(path) {
        Ok(kind) => kind,
        Err(refusal) => return CheckedFile { kind: None, refusal: Some(refusal) },
    };
    let checked = match kind {
        FileKind::Experiment => check_experiment(path, vocabulary, kinds),
        FileKind::Sweep => config::sweep::load_alone(path, vocabulary).map(drop),
        FileKind::Clusters => config::clusters::load_all(path, vocabulary).map(drop),
    };
    let name = path.display().to_string();
    let refusal = checked.err().map(|problems| problems.in_file(&name).into());
    CheckedFile { kind: Some(kind), refusal }
}

fn kind_of(path: &Path) -> Result<FileKind, ErrorPage> {
    if path.is_dir() {
        let what = format!("`{}` is a folder", path.display());
        let help = format!("name the files in it: `ddprun check {}/*.toml`", path.display());
        return Err(ErrorPage::refused(what, help));
    }
    refuse_other_files(path)?;
    Ok(FileKind::of(path)?)
}

fn check_experiment(path: &Path, vocabulary: &Vocabulary, kinds: &Kinds) -> Result<(), Problems> {
    let loaded = config::load_alone(path, &[], vocabulary)?;
    let samples = kinds.data.kind(&loaded.experiment.data.name).and_then(Spec::modality);
    // Those of arrays are only known when one is there.
    let samples = samples.filter(|given| *given != Modality::Arrays);
    Ok(samples.map_or(Ok(()), |given| refuse_other_samples(&loaded, given, kinds))?)
}
