//! `ddprun checkpoint verify | show | export`: looks at checkpoints, changes nothing
//! (`export.rs` writes what is exported).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::checkpoint::{self, Opened, Tensor};
use crate::cli::args::{CheckpointVerb, ExportArgs};
use crate::cli::{answer, export};
use crate::kinds::Kinds;
use crate::record::complain;
use crate::record::text::metric;
use crate::runs::{self, ChosenCheckpoint, StoredRun, choose_checkpoint, enter_best_run};
use crate::units::Bytes;
use crate::user_error::{ErrorPage, ExitCode};

/// Does what the verb says.
pub(crate) fn dispatch(verb: &CheckpointVerb, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    match verb {
        CheckpointVerb::Verify { checkpoints } => verify(checkpoints.as_deref()),
        CheckpointVerb::Show { checkpoints } => show(checkpoints.as_deref()),
        CheckpointVerb::Export(args) => {
            let to = export::file(args)?;
            export::export(args, &named_checkpoint(args)?, &to, kinds)
        }
    }
}

/// A line for each checkpoint; exit 7 if one is damaged.
fn verify(word: Option<&str>) -> Result<ExitCode, ErrorPage> {
    let mut code = ExitCode::Ok;
    for path in named_checkpoints(word)? {
        match checkpoint::verify(&path) {
            // Its run goes on, and has deleted it since it was listed.
            Err(checkpoint::Error::Gone { .. }) => {}
            Ok(_) => {
                let object = || json!({ "path": path, "intact": true });
                answer("checkpoint", object, || format!("{}: intact\n", path.display()))?;
            }
            Err(error) => {
                let object = || json!({ "path": path, "intact": false });
                answer("checkpoint", object, String::new)?;
                complain(&ErrorPage::from(error));
                code = ExitCode::Checkpoint;
            }
        }
    }
    Ok(code)
}

/// What is in each checkpoint; in one that was named, every tensor.
fn show(word: Option<&str>) -> Result<ExitCode, ErrorPage> {
    let paths = named_checkpoints(word)?;
    let with_tensors = word.is_some_and(|word| checkpoint::is_checkpoint(Path::new(word)));
    let mut code = ExitCode::Ok;
    for path in paths {
        let opened = checkpoint::open(&path);
        match opened.and_then(|opened| Contents::read(opened, with_tensors)) {
            Ok(contents) => drop(answer("checkpoint", || contents.object(), || contents.page())?),
            // Its run goes on, and has deleted it since it was listed.
            Err(checkpoint::Error::Gone { .. }) => {}
            Err(error) => {
                complain(&ErrorPage::from(error));
                code = ExitCode::Checkpoint;
            }
        }
    }
    Ok(code)
}

/// What is known of a checkpoint without reading its values.
struct Contents {
    opened: Opened,
    /// The tensors of each file, if they are listed.
    tensors: BTreeMap<String, Vec<Tensor>>,
}

impl Contents {
    fn read(opened: Opened, with_tensors: bool) -> Result<Self, checkpoint::Error> {
        let mut tensors = BTreeMap::new();
        let names = opened.manifest.files.keys();
        for name in names.filter(|name| with_tensors && name.ends_with(".safetensors")) {
            tensors.insert(name.clone(), checkpoint::tensors(&opened, name)?);
        }
        Ok(Self { opened, tensors })
    }

    fn bytes(&self) -> u64 {
        self.opened.manifest.files.values().map(|file| file.bytes).sum()
    }

    fn page(&self) -> String {
        let Opened { path, manifest, state, .. } = &self.opened;
        let mut page = format!("{}\n", path.display());
        let size = Bytes(self.bytes());
        // Writing to a string does not fail.
        let _ = writeln!(page, "  step {}, {} updates, {size}", state.step, state.updates);
        let _ = writeln!(page, "  ddprun {}, format {}", manifest.version, manifest.format);
        for (name, value) in &state.metrics {
            let value = metric(name, *value);
            let _ = writeln!(page, "  {name} {value} at step {}", state.evaluated_at);
        }
        for (name, file) in &manifest.files {
            let _ = writeln!(page, "  {name}  {}", Bytes(file.bytes));
            for tensor in self.tensors.get(name).into_iter().flatten() {
                let _ = writeln!(page, "    {}  {} {:?}", tensor.name, tensor.dtype, tensor.shape);
            }
        }
        page
    }

    fn object(&self) -> Value {
        let Opened { path, manifest, state, .. } = &self.opened;
        let files: BTreeMap<&String, u64> =
            manifest.files.iter().map(|(name, file)| (name, file.bytes)).collect();
        let tensor = |tensor: &Tensor| json!({ "name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape });
        let tensors: BTreeMap<&String, Vec<Value>> = self
            .tensors
            .iter()
            .map(|(name, all)| (name, all.iter().map(tensor).collect()))
            .collect();
        json!({
            "path": path,
            "step": state.step,
            "updates": state.updates,
            "bytes": self.bytes(),
            "version": manifest.version,
            "checkpoint_format": manifest.format,
            "metrics": state.metrics,
            "evaluated_at": state.evaluated_at,
            "files": files,
            "tensors": tensors,
        })
    }
}

/// The checkpoint that `word` names: itself, or the best one (the newest, if that is asked for) of
/// a folder of them or of a run.
fn named_checkpoint(args: &ExportArgs) -> Result<ChosenCheckpoint, ErrorPage> {
    let word = args.checkpoint.as_str();
    let chosen = choose_checkpoint(Some(word), args.latest, args.strict);
    chosen.map_err(|refusal| or_checkpoint(refusal, word))
}

/// The checkpoints that `word` names: one, those of a folder, those of a run; without a word those
/// of the newest run.
fn named_checkpoints(word: Option<&str>) -> Result<Vec<PathBuf>, ErrorPage> {
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
        return Err(ErrorPage::new(ExitCode::Checkpoint, page));
    }
    Ok(found)
}

/// The checkpoints of a folder; none where there is no such folder.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, ErrorPage> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let all = checkpoint::all(folder)?;
    Ok(all.into_iter().map(|found| found.path).collect())
}

/// The run that `word` names, or what else it could have named.
fn run_of(word: Option<&str>) -> Result<StoredRun, ErrorPage> {
    let Some(word) = word else { return enter_best_run(None) };
    enter_best_run(Some(word)).map_err(|refusal| or_checkpoint(refusal, word))
}

/// What else an unknown word could have named.
fn or_checkpoint(refusal: ErrorPage, word: &str) -> ErrorPage {
    if refusal.code() != ExitCode::Refused || runs::find_sweep(Path::new(word)).is_some() {
        return refusal;
    }
    let page = format!(
        "error: there is no run or checkpoint `{word}`\n  do: name a run (`<name>` or \
         `<time>-<id>`), or a checkpoint (`checkpoints/<name>/<time>-<id>/best`)"
    );
    ErrorPage::new(ExitCode::Refused, page)
}
