//! `ddprun checkpoint verify | show | export`: looks at checkpoints, changes nothing.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Opened};
use crate::cli::args::CheckpointVerb;
use crate::cli::prepare::find_run;
use crate::cli::{Refusal, to_stderr, to_stdout};
use crate::files;
use crate::model::peft;
use crate::plan::LoraPlan;
use crate::units::Bytes;
use crate::worker::exit;

/// Does what the verb says.
pub(crate) fn dispatch(verb: &CheckpointVerb) -> Result<u8, Refusal> {
    match verb {
        CheckpointVerb::Verify { checkpoints } => verify(checkpoints.as_deref()),
        CheckpointVerb::Show { checkpoints } => show(checkpoints.as_deref()),
        CheckpointVerb::Export { checkpoint, to, peft: true, .. } => export_peft(checkpoint, to),
        CheckpointVerb::Export { checkpoint, to, merge, .. } => export(checkpoint, to, *merge),
    }
}

/// A line for each checkpoint; exit 7 if one is damaged.
fn verify(word: Option<&str>) -> Result<u8, Refusal> {
    let mut code = 0;
    for path in meant(word)? {
        match checkpoint::verify(&path) {
            Ok(_) => drop(to_stdout(&format!("{}: whole\n", path.display()))?),
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
    let Opened { path, manifest, state } = opened;
    let size: u64 = manifest.files.values().map(|file| file.bytes).sum();
    // Writing to a string does not fail.
    let _ = writeln!(page, "{}", path.display());
    let _ = writeln!(page, "  step {}, {} updates, {}", state.step, state.updates, Bytes(size));
    let _ = writeln!(page, "  ddprun {}, format {}", manifest.version, manifest.format);
    for (metric, value) in &state.metrics {
        let _ = writeln!(page, "  {metric} {value:.6} at step {}", state.evaluated_at);
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

/// The checked weights, or their averages where the run kept some, as one safetensors file.
fn export(checkpoint: &Path, to: &Path, merge: bool) -> Result<u8, Refusal> {
    let mut model = weights(checkpoint)?;
    if merge {
        let (lora, _) = adapters(checkpoint)?;
        model = checkpoint::merged(&model, &lora).map_err(|error| unusable(&error))?;
    }
    write(to, &model)?;
    Ok(0)
}

/// The adapters alone, and what PEFT must know of them.
fn export_peft(checkpoint: &Path, to: &Path) -> Result<u8, Refusal> {
    let (lora, base) = adapters(checkpoint)?;
    let model = weights(checkpoint)?;
    let adapters = checkpoint::peft(&model).map_err(|error| unusable(&error))?;
    files::create_writable_folder(to).map_err(|error| Refusal::of(exit::STORAGE, &error, None))?;
    write(&to.join(peft::ADAPTERS), &adapters)?;
    let config = checkpoint::peft_config(&lora, base.as_deref());
    write(&to.join(peft::CONFIG), config.as_bytes())?;
    Ok(0)
}

fn weights(checkpoint: &Path) -> Result<Vec<u8>, Refusal> {
    let opened = checkpoint::open(checkpoint).map_err(|error| unusable(&error))?;
    checkpoint::averaged_model(&opened).map_err(|error| unusable(&error))
}

/// The adapters of the checkpoint's run, as its description says, and the folder of the weights that it started from.
fn adapters(checkpoint: &Path) -> Result<(LoraPlan, Option<PathBuf>), Refusal> {
    let real = std::fs::canonicalize(checkpoint).unwrap_or_else(|_| checkpoint.to_owned());
    let run = real.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let model = find_run(run)?.plan.model;
    let without = || {
        let page = format!("error: `{}` has no adapters", checkpoint.display());
        Refusal::new(exit::REFUSED, page + "\n  do: export it without `--peft` and `--merge`")
    };
    let base = model.pretrained.as_deref().and_then(Path::parent).map(Path::to_owned);
    Ok((model.lora.ok_or_else(without)?, base))
}

fn write(to: &Path, bytes: &[u8]) -> Result<(), Refusal> {
    files::write_atomic(to, bytes).map_err(|error| Refusal::of(exit::STORAGE, &error, None))?;
    to_stderr(&format!("wrote `{}`", to.display()));
    Ok(())
}

/// The checkpoints that `word` names: one, those of a folder, those of a run; without a word those of the
/// newest run.
fn meant(word: Option<&str>) -> Result<Vec<PathBuf>, Refusal> {
    let path = word.map(PathBuf::from);
    if let Some(path) = path.as_ref().filter(|path| checkpoint::is_checkpoint(path)) {
        return Ok(vec![path.clone()]);
    }
    let in_folder = |folder: &Path| -> Result<Vec<PathBuf>, Refusal> {
        let all = checkpoint::all(folder).map_err(|error| unusable(&error))?;
        Ok(all.into_iter().map(|found| found.path).collect())
    };
    let mut found = path.as_ref().map_or(Ok(Vec::new()), |folder| in_folder(folder))?;
    let mut looked_in = path.clone().unwrap_or_default();
    if found.is_empty() {
        match find_run(word) {
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

fn unusable(error: &checkpoint::Error) -> Refusal {
    Refusal::of(exit::CHECKPOINT, error, None)
}
