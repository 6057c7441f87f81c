//! A checkpoint -> files for other programs: weights as safetensors, a model as ONNX, adapters as
//! PEFT reads them, and a description of the inputs.

use std::error::Error;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::checkpoint;
use crate::config::closest;
use crate::data;
use crate::files;
use crate::kinds::Kinds;
use crate::model::{ExportedWeights, Library, peft};
use crate::nn::state_dict::{Strict, load_state_dict_bytes};
use crate::record::to_stderr;
use crate::runs::ChosenCheckpoint;
use crate::session::source_of;
use crate::user_error::{ErrorPage, ExitCode};

/// Describes how inputs are prepared.
const INPUTS: &str = "preprocessing.json";
/// Read by Hugging Face's image processors.
const PROCESSOR: &str = "preprocessor_config.json";
/// Extensions of the formats that are written here.
const OURS: [&str; 2] = ["onnx", "safetensors"];
/// Extensions of files that PyTorch users expect to be pickled.
const PICKLES: [&str; 4] = ["pt", "pth", "bin", "ckpt"];
/// Extensions of formats that are not written here.
const OTHERS: [&str; 9] =
    ["tflite", "h5", "keras", "pb", "gguf", "mlmodel", "npz", "engine", "torchscript"];

/// Format of an exported model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// The weights.
    Safetensors,
    /// The model in evaluation mode, including its weights.
    Onnx,
}

impl ExportFormat {
    /// Extension of such files.
    fn extension(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Onnx => "onnx",
        }
    }
}

/// Options of an export.
#[derive(Debug)]
pub struct ExportRequest<'a> {
    /// The file to write, as the user named it; with `peft` a folder.
    pub to: &'a Path,
    /// `None` = by the file's extension.
    pub format: Option<ExportFormat>,
    /// True for the adapters alone.
    pub peft: bool,
    /// True for weights with the adapters merged in.
    pub merge: bool,
    /// The library that is to read the weights.
    pub names: Option<Library>,
}

/// Files to write, in this order: all of them, or none.
#[derive(Default)]
pub struct ExportedFiles(Vec<(PathBuf, Vec<u8>)>);

impl ExportedFiles {
    fn add(&mut self, to: &Path, bytes: impl Into<Vec<u8>>) {
        self.0.push((to.to_owned(), bytes.into()));
    }

    /// Paths of the files that are not there with the same content.
    pub fn changed(&self) -> impl Iterator<Item = &Path> {
        let is_same = |to: &Path, bytes: &[u8]| files::read(to).is_ok_and(|there| there == bytes);
        self.0.iter().filter(move |(to, bytes)| !is_same(to, bytes)).map(|(to, _)| &**to)
    }

    /// Writes them, and reports each path.
    pub fn write(self, report: impl Fn(&Path) -> Result<(), ErrorPage>) -> Result<(), ErrorPage> {
        for (to, bytes) in self.0 {
            let written = files::create_parent(&to).and_then(|()| files::write_atomic(&to, &bytes));
            written.map_err(|error| ErrorPage::of(ExitCode::Storage, &error))?;
            report(&to)?;
        }
        Ok(())
    }
}

impl ExportRequest<'_> {
    /// Absolute paths of the main files: looking for a run may lead to another working folder.
    ///
    /// # Errors
    ///
    /// A name that contradicts the format, or is inside a checkpoint.
    pub fn main_files(&self) -> Result<Vec<PathBuf>, ErrorPage> {
        if !self.peft {
            self.refuse_name()?;
        }
        let file = self.absolute();
        if file.parent().is_some_and(checkpoint::is_checkpoint) {
            let what = format!(
                "`{}` would lie in a checkpoint, which holds what ddprun wrote and nothing \
                 else",
                self.to.display()
            );
            return Err(ErrorPage::refused(what, "name a file in another folder"));
        }
        Ok(if self.peft {
            [peft::ADAPTERS, peft::CONFIG].map(|name| file.join(name)).to_vec()
        } else {
            vec![file]
        })
    }

    /// The absolute path of the file or folder.
    pub fn absolute(&self) -> PathBuf {
        std::path::absolute(self.to).unwrap_or_else(|_| self.to.to_owned())
    }

    /// The contents of all files; the main one is at the absolute path `to`.
    pub fn files(
        &self,
        exported: &ChosenCheckpoint,
        to: &Path,
        kinds: &Kinds,
    ) -> Result<ExportedFiles, ErrorPage> {
        let mut files = ExportedFiles::default();
        if self.peft {
            export_peft(exported, to, &mut files)?;
            return Ok(files);
        }
        let format = self.format();
        match format {
            ExportFormat::Safetensors => export_weights(exported, to, self, kinds, &mut files)?,
            ExportFormat::Onnx if self.names.is_some() => {
                let what = "`--names` is for weights: an ONNX file holds the model itself";
                return Err(ErrorPage::refused(what, "omit it, or name a `.safetensors` file"));
            }
            ExportFormat::Onnx => files.add(to, onnx(exported, kinds)?),
        }
        describe_inputs(exported, to, format, kinds, &mut files)?;
        Ok(files)
    }

    /// The given format, or that of the file's extension.
    fn format(&self) -> ExportFormat {
        let by_extension =
            if is_onnx(self.to) { ExportFormat::Onnx } else { ExportFormat::Safetensors };
        self.format.unwrap_or(by_extension)
    }

    /// Refuses a name by which a reader would take the file for another kind.
    fn refuse_name(&self) -> Result<(), ErrorPage> {
        let to = self.to;
        let extension = to.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let is_pickle = PICKLES.contains(&extension);
        let (what, load) = match self.format() {
            ExportFormat::Safetensors if is_pickle => (
                "safetensors, not what `torch.load` reads",
                ", and load it with `safetensors.torch.load_file`",
            ),
            ExportFormat::Safetensors if is_onnx(to) => ("safetensors, not ONNX", ""),
            _ if self.format.is_none()
                && !OURS.contains(&extension)
                && !OTHERS.contains(&extension) =>
            {
                return Err(unnamed_format(to, extension));
            }
            ExportFormat::Safetensors if OTHERS.contains(&extension) => {
                ("safetensors, not what its name says", ", or a file that ends in `.onnx`")
            }
            ExportFormat::Onnx
                if is_pickle || OTHERS.contains(&extension) || extension == "safetensors" =>
            {
                ("ONNX", "")
            }
            _ => return Ok(()),
        };
        let meant = to.with_extension(self.format().extension());
        let what = format!("`{}` would hold {what}", to.display());
        Err(ErrorPage::refused(what, format!("write `{}`{load}", meant.display())))
    }
}

fn is_onnx(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "onnx")
}

/// The refusal of a name from which the format does not follow.
fn unnamed_format(to: &Path, extension: &str) -> ErrorPage {
    let shown = to.display();
    let meant = closest(extension, OURS).map_or_else(
        || format!("end it in `.onnx` or `.safetensors`, as in `{shown}.safetensors`"),
        |ending| format!("write `{}`", to.with_extension(ending).display()),
    );
    let what =
        format!("`{shown}` ends in neither `.onnx` nor `.safetensors`, which says what is written");
    ErrorPage::refused(what, format!("{meant}, or add `--format`"))
}

/// The checked weights, or their averages where the run kept some, as one safetensors file.
fn export_weights(
    exported: &ChosenCheckpoint,
    to: &Path,
    request: &ExportRequest<'_>,
    kinds: &Kinds,
    files: &mut ExportedFiles,
) -> Result<(), ErrorPage> {
    let mut model = exported.averaged()?;
    let has_adapters = !request.merge && exported.adapters().is_ok();
    if request.merge {
        let (lora, _) = exported.adapters()?;
        model = checkpoint::merged(&model, &lora)?;
    }
    let plan = match exported.plan() {
        Ok(plan) => plan,
        // Its own names need no plan.
        Err(_) if request.names.is_none() => {
            files.add(to, model);
            return Ok(());
        }
        Err(refusal) => return Err(refusal),
    };
    if request.names.is_some() && has_adapters {
        let what = "the weights have adapters, which no library reads among them".to_owned();
        return Err(ErrorPage::refused(what, "add `--merge`"));
    }
    let library = request.names.or_else(|| kinds.models.library_of_weights(&plan.model));
    let written = match kinds.models.export_for(&plan.model, library, &model) {
        Ok(written) => written,
        Err(what) if request.names.is_some() => {
            let what = format!("`{}` under other names: {what}", plan.model.name());
            return Err(ErrorPage::refused(
                what,
                "omit `--names`, or name the library that computes alike",
            ));
        }
        Err(_) => ExportedWeights::own(&model),
    };
    if let Some(library) = written.library.filter(|_| written.weights != model) {
        to_stderr(&format!("its names are those of {}", library.words()));
    }
    files.add(to, written.weights);
    if let Some(config) = written.config.filter(|_| library.is_some()) {
        add_config(to, &config, files);
    }
    Ok(())
}

/// Describes the model beside its weights; a description that is there already stays.
fn add_config(to: &Path, config: &Value, files: &mut ExportedFiles) {
    let path = to.with_file_name("config.json");
    let bytes = format!("{config:#}\n");
    match files::read(&path) {
        Ok(there) if there != bytes.as_bytes() => {
            let page = format!(
                "note: `{}` is there already and stays; these weights are described by\n{bytes}",
                path.display()
            );
            to_stderr(page.trim_end());
        }
        _ => files.add(&path, bytes),
    }
}

/// The model with those weights, as ONNX.
fn onnx(exported: &ChosenCheckpoint, kinds: &Kinds) -> Result<Vec<u8>, ErrorPage> {
    let (plan, weights) = (exported.plan()?, exported.averaged()?);
    let refused = |error: &(dyn Error + 'static)| ErrorPage::of(ExitCode::Refused, error);
    let built = kinds.models.instantiate(&plan.model, plan.seed);
    let (model, params) = built.map_err(|error| refused(&error))?;
    let path = exported.opened.path.join(checkpoint::MODEL);
    let weights = [(path.clone(), weights)];
    load_state_dict_bytes(&params, &path, &weights, Strict::All)
        .map_err(|error| ErrorPage::of(ExitCode::Checkpoint, &error))?;
    kinds.models.onnx(&plan.model, model.as_ref()).map_err(|error| refused(&error))
}

/// Describes the model's inputs beside the file. Weights alone are worth having.
fn describe_inputs(
    exported: &ChosenCheckpoint,
    to: &Path,
    format: ExportFormat,
    kinds: &Kinds,
    files: &mut ExportedFiles,
) -> Result<(), ErrorPage> {
    let plan = match exported.plan() {
        Ok(plan) => plan,
        Err(_) if format == ExportFormat::Safetensors => {
            to_stderr(&format!(
                "note: the run of this checkpoint is not here: no `{INPUTS}` is written"
            ));
            return Ok(());
        }
        Err(refusal) => return Err(refusal),
    };
    let source = source_of(plan, kinds)?;
    let (described, missing) = data::preprocessing(plan, source.as_ref(), &kinds.transforms);
    if let Some(missing) = missing {
        to_stderr(&format!("note: `{INPUTS}` lacks what only the data tell: {missing}"));
    }
    files.add(&to.with_file_name(INPUTS), format!("{described:#}\n"));
    if let Some(processor) = data::image_processor(plan) {
        files.add(&to.with_file_name(PROCESSOR), format!("{processor:#}\n"));
    }
    copy_beside(to, source.text().iter().flat_map(data::text_files), files);
    Ok(())
}

/// Copies files that the inputs are made with to where the model is.
fn copy_beside<'a>(to: &Path, sources: impl Iterator<Item = &'a Path>, files: &mut ExportedFiles) {
    for file in sources {
        let Some(name) = file.file_name() else { continue };
        let copy = to.with_file_name(name);
        match files::read(file) {
            Ok(_) if copy.canonicalize().ok() == file.canonicalize().ok() => {}
            Ok(bytes) => files.add(&copy, bytes),
            Err(error) => to_stderr(&format!("note: `{}` is not copied: {error}", file.display())),
        }
    }
}

/// The adapters alone, and what PEFT must know of them.
fn export_peft(
    exported: &ChosenCheckpoint,
    to: &Path,
    files: &mut ExportedFiles,
) -> Result<(), ErrorPage> {
    let (lora, base) = exported.adapters()?;
    let adapters = checkpoint::peft(&exported.averaged_adapters()?, &lora)?;
    files.add(&to.join(peft::ADAPTERS), adapters);
    files.add(&to.join(peft::CONFIG), checkpoint::peft_config(&lora, base.as_deref()));
    Ok(())
}
