//! `ddprun checkpoint verify | show | export`: looks at checkpoints, changes nothing
//! (`export.rs` writes what is exported).

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Opened};
use crate::cli::args::{CheckpointVerb, ExportArgs};
use crate::cli::chosen::{Chosen, chosen};
use crate::cli::run_files::enter_best_run;
use crate::cli::{Refusal, export, to_stderr, to_stdout};
use crate::kinds::Kinds;
use crate::launch::exit_code as exit;
use crate::record::text::metric;
use crate::runs::StoredRun;
use crate::units::Bytes;

/// Does what the verb says.
pub(crate) fn dispatch(verb: &CheckpointVerb, kinds: &Kinds) -> Result<u8, Refusal> {
    match verb {
        CheckpointVerb::Verify { checkpoints } => verify(checkpoints.as_deref()),
        CheckpointVerb::Show { checkpoints } => show(checkpoints.as_deref()),
        CheckpointVerb::Export(args) => {
            let to = export::file(args)?;
            export::export(args, &one_meant(args)?, &to, kinds)
        }
    }
}

/// A line for each checkpoint; exit 7 if one is damaged.
fn verify(word: Option<&str>) -> Result<u8, Refusal> {
    let mut code = 0;
    for path in meant(word)? {
        match checkpoint::verify(&path) {
            // Its run goes on, and has deleted it since it was listed.
            Err(checkpoint::Error::Gone { .. }) => {}
            Ok(_) => drop(to_stdout(&format!("{}: intact\n", path.display()))?),
            Err(error) => {
                to_stderr(&format!("error: {error}"));
                code = exit::CHECKPOINT;
            }
        }
    }
    Ok(code)
}

/// What is in each checkpoint; in one that was named, every tensor.
fn show(word: Option<&str>) -> Result<u8, Refusal> {
    let paths = meant(word)?;
    let with_tensors = word.is_some_and(|word| checkpoint::is_checkpoint(Path::new(word)));
    let mut page = String::new();
    let mut code = 0;
    for path in paths {
        let opened = checkpoint::open(&path);
        let shown = opened.and_then(|opened| describe(&mut page, &opened, with_tensors));
        if matches!(shown, Err(checkpoint::Error::Gone { .. })) {
            // Its run goes on, and has deleted it since it was listed.
            continue;
        }
        if let Err(error) = shown {
            to_stderr(&format!("error: {error}"));
            code = exit::CHECKPOINT;
        }
    }
    to_stdout(&page)?;
    Ok(code)
}

/// Writes what is known of a checkpoint without reading its values.
fn describe(
    page: &mut String,
    opened: &Opened,
    with_tensors: bool,
) -> Result<(), checkpoint::Error> {
    let Opened { path, manifest, state, .. } = opened;
    let size: u64 = manifest.files.values().map(|file| file.bytes).sum();
    // Writing to a string does not fail.
    let _ = writeln!(page, "{}", path.display());
    let _ = writeln!(page, "  step {}, {} updates, {}", state.step, state.updates, Bytes(size));
    let _ = writeln!(page, "  ddprun {}, format {}", manifest.version, manifest.format);
    for (name, value) in &state.metrics {
        let value = metric(name, *value);
        let _ = writeln!(page, "  {name} {value} at step {}", state.evaluated_at);
    }
    for (name, file) in &manifest.files {
        let _ = writeln!(page, "  {name}  {}", Bytes(file.bytes));
        let is_shown = with_tensors && name.ends_with(".safetensors");
        let tensors = if is_shown { checkpoint::tensors(opened, name)? } else { Vec::new() };
        for tensor in tensors {
            let _ = writeln!(page, "    {}  {} {:?}", tensor.name, tensor.dtype, tensor.shape);
        }
    }
    Ok(())
}

/// The checkpoint that `word` names: itself, or the best one (the newest, if that is asked for) of
/// a folder of them or of a run.
fn one_meant(args: &ExportArgs) -> Result<Chosen, Refusal> {
    let word = args.checkpoint.as_str();
    let chosen = chosen(Some(word), args.latest, args.strict);
    chosen.map_err(|refusal| or_checkpoint(refusal, word))
}

/// The checkpoints that `word` names: one, those of a folder, those of a run; without a word those
/// of the newest run.
fn meant(word: Option<&str>) -> Result<Vec<PathBuf>, Refusal> {
    let path = word.map(PathBuf::from);
    if let Some(path) = path.as_ref().filter(|path| checkpoint::is_checkpoint(path)) {
        return Ok(vec![path.clone()]);
    }
    let mut found = path.as_ref().map_or(Ok(Vec::new()), |folder| in_folder(folder))?;
    let mut looked_in = path.clone().unwrap_or_default();
    if found.is_empty() {
        match run_of(word) {
            Ok(description) => looked_in = description.run.checkpoints,
            // A folder that is there was meant as one.
            Err(_) if path.is_some_and(|path| path.is_dir()) => {}
            Err(refusal) => return Err(refusal),
        }
        found = in_folder(&looked_in)?;
    }
    if found.is_empty() {
        let page = format!("error: there is no checkpoint in `{}`", looked_in.display());
        return Err(Refusal::new(exit::CHECKPOINT, page));
    }
    Ok(found)
}

/// The checkpoints of a folder; none where there is no such folder.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Refusal> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let all = checkpoint::all(folder).map_err(|error| unusable(&error))?;
    Ok(all.into_iter().map(|found| found.path).collect())
}

/// The run that `word` names, or what else it could have named.
fn run_of(word: Option<&str>) -> Result<StoredRun, Refusal> {
    let Some(word) = word else { return enter_best_run(None) };
    enter_best_run(Some(word)).map_err(|refusal| or_checkpoint(refusal, word))
}

/// What else an unknown word could have named.
fn or_checkpoint(refusal: Refusal, word: &str) -> Refusal {
    if refusal.code() != exit::REFUSED {
        return refusal;
    }
    let page = format!(
        "error: there is no run or checkpoint `{word}`\n  do: name a run (`<name>` or \
         `<time>-<id>`), or a checkpoint (`checkpoints/<name>/<time>-<id>/best`)"
    );
    Refusal::new(exit::REFUSED, page)
}

fn unusable(error: &checkpoint::Error) -> Refusal {
    Refusal::of(exit::CHECKPOINT, error, None)
}
