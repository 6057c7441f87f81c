//! `ddprun checkpoint verify | show | export`: looks at checkpoints, and changes none.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::checkpoint::{self, OpenCheckpoint, Tensor};
use crate::cli::args::{CheckpointVerb, ExportArgs};
use crate::cli::{answer, refuse_existing};
use crate::export::ExportRequest;
use crate::kinds::Kinds;
use crate::record::text::metric;
use crate::record::{print_error, to_stderr};
use crate::runs::{choose_checkpoint, named_checkpoints, or_checkpoint};
use crate::units::Bytes;
use crate::user_error::{ErrorPage, ExitCode};

pub(crate) fn dispatch(verb: &CheckpointVerb, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    match verb {
        CheckpointVerb::Verify { checkpoints } => verify(checkpoints.as_deref()),
        CheckpointVerb::Show { checkpoints } => show(checkpoints.as_deref()),
        CheckpointVerb::Export(args) => export(args, kinds),
    }
}

/// Writes the files of an export: all of them, or none.
fn export(args: &ExportArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let ExportArgs { format, peft, merge, names, .. } = *args;
    let request = ExportRequest { to: &args.to, format, peft, merge, names };
    let main_files = request.main_files()?;
    main_files.iter().try_for_each(|file| refuse_existing(file, args.overwrite))?;
    // Looking for a run may lead to another working folder.
    let to = request.absolute();
    let word = args.checkpoint.as_str();
    let chosen = choose_checkpoint(Some(word), args.latest, args.strict);
    let chosen = chosen.map_err(|refusal| or_checkpoint(refusal, word))?;
    let files = request.files(&chosen, &to, kinds)?;
    files.changed().try_for_each(|file| refuse_existing(file, args.overwrite))?;
    files.write(|file| {
        to_stderr(&format!("wrote `{}`", file.display()));
        answer("file", || json!({ "path": file }), String::new).map(drop)
    })?;
    Ok(ExitCode::Ok)
}

/// Prints a line for each checkpoint; exit 7 if one is damaged.
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
                print_error(&ErrorPage::from(error));
                code = ExitCode::Checkpoint;
            }
        }
    }
    Ok(code)
}

/// Prints the contents of each checkpoint; of one that was named, every tensor.
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
                print_error(&ErrorPage::from(error));
                code = ExitCode::Checkpoint;
            }
        }
    }
    Ok(code)
}

/// A checkpoint without its values.
struct Contents {
    opened: OpenCheckpoint,
    /// The tensors of each file, if they are listed.
    tensors: BTreeMap<String, Vec<Tensor>>,
}

impl Contents {
    fn read(opened: OpenCheckpoint, with_tensors: bool) -> Result<Self, checkpoint::Error> {
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
        let OpenCheckpoint { path, manifest, state, .. } = &self.opened;
        let mut page = format!("{}\n", path.display());
        let size = Bytes(self.bytes());
        // Writing to a string does not fail.
        let _ = writeln!(page, "  step {}, {} updates, {size}", state.step, state.updates);
        let _ = writeln!(page, "  ddprun {}, format {}", manifest.version, manifest.format);
        for (name, value) in &state.metrics {
            let value = metric(name, *value);
            let _ = writeln!(page, "  {name} {value} at step {}", state.evaluated_at);
        }
        if let Some(base) = &manifest.base {
            let (path, hash) = (base.path.display(), &base.blake3);
            let _ = writeln!(page, "  adapters on `{path}`, weights with the hash {hash:.16}");
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
        let OpenCheckpoint { path, manifest, state, .. } = &self.opened;
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
            "base": manifest.base.as_ref().map(|base| {
                json!({ "path": base.path, "blake3": base.blake3 })
            }),
            "files": files,
            "tensors": tensors,
        })
    }
}
