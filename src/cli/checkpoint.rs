//! `ddprun checkpoint verify | show | export`: looks at checkpoints, changes nothing.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Opened};
use crate::cli::args::CheckpointVerb;
use crate::cli::evaluate::checkpoint_of;
use crate::cli::run_files::{Description, enter_best_run, find_run};
use crate::cli::{Refusal, to_stderr, to_stdout};
use crate::files;
use crate::launch::exit_code as exit;
use crate::model::peft;
use crate::nn::LoraConfig;
use crate::record::text::metric;
use crate::units::Bytes;

/// Names of files that PyTorch users expect to be pickled.
const PICKLES: [&str; 4] = ["pt", "pth", "bin", "ckpt"];

/// Does what the verb says.
pub(crate) fn dispatch(verb: &CheckpointVerb) -> Result<u8, Refusal> {
    match verb {
        CheckpointVerb::Verify { checkpoints } => verify(checkpoints.as_deref()),
        CheckpointVerb::Show { checkpoints } => show(checkpoints.as_deref()),
        CheckpointVerb::Export { checkpoint, to, latest, peft: true, .. } => {
            let to = from_here(to);
            export_peft(&one_meant(checkpoint, *latest)?, &to)
        }
        CheckpointVerb::Export { checkpoint, to, latest, merge, .. } => {
            refuse_pickle(to)?;
            let to = from_here(to);
            export(&one_meant(checkpoint, *latest)?, &to, *merge)
        }
    }
}

/// The whole path: it is meant from here, and looking for a run may lead elsewhere.
fn from_here(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Refuses a name by which a reader would take the file for a pickled one.
fn refuse_pickle(to: &Path) -> Result<(), Refusal> {
    let extension = to.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if !PICKLES.contains(&extension) {
        return Ok(());
    }
    let page = format!(
        "error: `{}` would hold safetensors, not what `torch.load` reads\n  do: write `{}`, and load it with \
         `safetensors.torch.load_file`",
        to.display(),
        to.with_extension("safetensors").display()
    );
    Err(Refusal::new(exit::REFUSED, page))
}

/// A line for each checkpoint; exit 7 if one is damaged.
fn verify(word: Option<&str>) -> Result<u8, Refusal> {
    let mut code = 0;
    for path in meant(word)? {
        match checkpoint::verify(&path) {
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

/// The checked weights, or their averages where the run kept some, as one safetensors file.
fn export(opened: &Opened, to: &Path, merge: bool) -> Result<u8, Refusal> {
    let mut model = checkpoint::averaged_model(opened).map_err(|error| unusable(&error))?;
    if merge {
        let (lora, _) = adapters(opened)?;
        model = checkpoint::merged(&model, &lora).map_err(|error| unusable(&error))?;
    }
    write(to, &model)?;
    Ok(0)
}

/// The adapters alone, and what PEFT must know of them.
fn export_peft(opened: &Opened, to: &Path) -> Result<u8, Refusal> {
    let (lora, base) = adapters(opened)?;
    let model = checkpoint::averaged_model(opened).map_err(|error| unusable(&error))?;
    let adapters = checkpoint::peft(&model).map_err(|error| unusable(&error))?;
    files::create_writable_folder(to).map_err(|error| Refusal::of(exit::STORAGE, &error, None))?;
    write(&to.join(peft::ADAPTERS), &adapters)?;
    let config = checkpoint::peft_config(&lora, base.as_deref());
    write(&to.join(peft::CONFIG), config.as_bytes())?;
    Ok(0)
}

/// The adapters of the checkpoint's run, as its description says, and the folder of the weights
/// that it started from.
fn adapters(opened: &Opened) -> Result<(LoraConfig, Option<PathBuf>), Refusal> {
    let real = std::fs::canonicalize(&opened.path).unwrap_or_else(|_| opened.path.clone());
    let plan = find_run(logs_of(&real).as_deref())?.plan;
    let without = || {
        let page = format!("error: `{}` has no adapters", opened.path.display());
        Refusal::new(exit::REFUSED, page + "\n  do: export it without `--peft` and `--merge`")
    };
    let base = plan.pretrained().and_then(Path::parent).map(Path::to_owned);
    Ok((plan.lora().and_then(|lora| lora.decided()).ok_or_else(without)?, base))
}

/// The run of a checkpoint: its logs beside the folder of all checkpoints, or its id.
fn logs_of(checkpoint: &Path) -> Option<String> {
    let run = checkpoint.parent()?;
    let id = run.file_name()?;
    let beside = || {
        let name = run.parent()?;
        Some(name.parent()?.parent()?.join("logs").join(name.file_name()?).join(id))
    };
    let logs = beside().filter(|logs| logs.is_dir());
    Some(logs.unwrap_or_else(|| id.into()).to_string_lossy().into_owned())
}

fn write(to: &Path, bytes: &[u8]) -> Result<(), Refusal> {
    files::write_atomic(to, bytes).map_err(|error| Refusal::of(exit::STORAGE, &error, None))?;
    to_stderr(&format!("wrote `{}`", to.display()));
    Ok(())
}

/// The checkpoint that `word` names: itself, or the best one (the newest, if that is asked for) of
/// a folder of them or of a run.
fn one_meant(word: &str, latest: bool) -> Result<Opened, Refusal> {
    let path = Path::new(word);
    if checkpoint::is_checkpoint(path) {
        return checkpoint::open(path).map_err(|error| unusable(&error));
    }
    if in_folder(path)?.is_empty() {
        return checkpoint_of(&run_of(Some(word))?, latest);
    }
    let best = path.join("best");
    let newest = latest || !best.is_dir();
    let opened = if newest { checkpoint::newest(path) } else { checkpoint::open(&best) };
    opened.map_err(|error| unusable(&error))
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
fn run_of(word: Option<&str>) -> Result<Description, Refusal> {
    let Some(word) = word else { return enter_best_run(None) };
    enter_best_run(Some(word)).map_err(|refusal| {
        if refusal.code() != exit::REFUSED {
            return refusal;
        }
        let page = format!(
            "error: there is no run or checkpoint `{word}`\n  do: name a run (`<name>` or `<time>-<id>`), or a checkpoint \
             (`checkpoints/<name>/<time>-<id>/best`)"
        );
        Refusal::new(exit::REFUSED, page)
    })
}

fn unusable(error: &checkpoint::Error) -> Refusal {
    Refusal::of(exit::CHECKPOINT, error, None)
}
