//! Experiment file -> plan -> run folder: what stands before any rank is started.

use std::path::{Path, PathBuf};

use crate::cli::Refusal;
use crate::config::{self, Loaded, Vocabulary};
use crate::launch::Role;
use crate::model::Registry;
use crate::plan::{Facts, Plan, RunFolders};
use crate::record::Environment;
use crate::worker::exit;
use crate::{data, files};

/// An experiment with everything decided.
pub(crate) struct Prepared {
    pub(crate) loaded: Loaded,
    pub(crate) plan: Plan,
}

/// Reads the experiment at `path` with `changes` and decides everything. Touches no folder but that of
/// generated data.
pub(crate) fn prepare(
    path: &Path,
    changes: &[String],
    role: &Role,
    registry: &Registry,
) -> Result<Prepared, Refusal> {
    let loaded = config::load(path, changes, &vocabulary(registry)).map_err(refused)?;
    decide(loaded, role, registry)
}

/// Decides everything about a loaded experiment.
pub(crate) fn decide(
    loaded: Loaded,
    role: &Role,
    registry: &Registry,
) -> Result<Prepared, Refusal> {
    let facts = measure(&loaded, role)?;
    let plan = Plan::new(&loaded, &facts, &|model| registry.describe(model)).map_err(refused)?;
    Ok(Prepared { loaded, plan })
}

/// Names that an experiment may use.
pub(crate) fn vocabulary(registry: &Registry) -> Vocabulary {
    Vocabulary { models: registry.names().into_iter().map(str::to_owned).collect() }
}

pub(crate) fn refused(problems: config::Problems) -> Refusal {
    Refusal::new(exit::REFUSED, problems.page(use_color(), WIDTH))
}

/// Columns of an error page.
const WIDTH: usize = 100;

/// Colour for a terminal, unless `NO_COLOR` says otherwise (<https://no-color.org>).
fn use_color() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Looks at the machine and counts the data.
fn measure(loaded: &Loaded, role: &Role) -> Result<Facts, Refusal> {
    let experiment = &loaded.experiment;
    let classify = experiment.loss.name == crate::plan::LossKind::CrossEntropy;
    let data = data::survey(&experiment.data, experiment.experiment.seed, classify)
        .map_err(|error| Refusal::of(exit::DATA, &error, error.help()))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Facts { cores, data, launched_world: role.launched_world() })
}

/// Makes the folders of a new run and writes down what was asked and what was decided.
pub(crate) fn open_run(prepared: &Prepared) -> Result<RunFolders, Refusal> {
    let plan = &prepared.plan;
    let id = new_id();
    let run = RunFolders {
        logs: plan.logging.dir.join(&plan.name).join(&id),
        checkpoints: plan.checkpoint.dir.join(&plan.name).join(&id),
        id,
    };
    let storage = |error: files::Error| {
        let help = "make the folder writable, or choose another with `logging.dir` and \
                    `checkpoint.dir`";
        Refusal::of(exit::STORAGE, &error, Some(help.into()))
    };
    files::create_writable_folder(&run.logs).map_err(storage)?;
    files::create_writable_folder(&run.checkpoints).map_err(storage)?;
    write_description(prepared, &run).map_err(storage)?;
    Ok(run)
}

/// `experiment.toml` as written, `resolved.toml` with everything filled in, `run.json` for a resume,
/// `environment.json`.
pub(crate) fn write_description(prepared: &Prepared, run: &RunFolders) -> Result<(), files::Error> {
    let resolved = config::resolved(&prepared.loaded.experiment);
    let description = Description { format: FORMAT, run: run.clone(), plan: prepared.plan.clone() };
    let description = serde_json::to_vec_pretty(&description).unwrap_or_default();
    if let Ok(text) = std::fs::read(&prepared.loaded.path) {
        files::write_atomic(&run.logs.join("experiment.toml"), &text)?;
    }
    files::write_atomic(&run.logs.join(RESOLVED), resolved.as_bytes())?;
    files::write_atomic(&run.logs.join(DESCRIPTION), &description)?;
    Environment::collect().write(&run.logs)
}

/// Version of `run.json`.
const FORMAT: u32 = 1;
/// The resolved experiment of a run, runnable as it is.
pub(crate) const RESOLVED: &str = "resolved.toml";
/// What a run is: its folders and its plan.
pub(crate) const DESCRIPTION: &str = "run.json";

/// Contents of `run.json`.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Description {
    pub(crate) format: u32,
    pub(crate) run: RunFolders,
    pub(crate) plan: Plan,
}

/// `20261120-134205-3f9a`: sorts by time, and two runs of one second differ.
fn new_id() -> String {
    let now = jiff::Zoned::now();
    let tail = (now.timestamp().as_nanosecond() as u64 ^ u64::from(std::process::id()) << 20)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        >> 48;
    format!("{}-{tail:04x}", now.strftime("%Y%m%d-%H%M%S"))
}

/// Finds the run that `word` names: a run folder, an experiment's name (its newest run) or a run's id;
/// without a word the newest run of all.
pub(crate) fn find_run(word: Option<&str>) -> Result<Description, Refusal> {
    let folder = match word {
        Some(word) if Path::new(word).join(DESCRIPTION).is_file() => PathBuf::from(word),
        _ => newest_run(word)?,
    };
    read_description(&folder)
}

fn read_description(folder: &Path) -> Result<Description, Refusal> {
    let path = folder.join(DESCRIPTION);
    let unusable = |why: String| {
        let page = format!("error: `{}` cannot be used: {why}", path.display());
        Refusal::new(exit::CHECKPOINT, page)
    };
    let bytes = std::fs::read(&path).map_err(|error| unusable(error.to_string()))?;
    let description: Description =
        serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
    if description.format > FORMAT {
        let found = description.format;
        return Err(unusable(format!("format {found}; this ddprun reads up to {FORMAT}")));
    }
    Ok(description)
}

/// The newest run below `logs/`, by its id; `word` restricts it to an experiment or an id.
fn newest_run(word: Option<&str>) -> Result<PathBuf, Refusal> {
    let children = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let is = |path: &Path, word: &str| path.file_name().is_some_and(|name| name == word);
    let runs = children(Path::new("logs")).into_iter().flat_map(|experiment| {
        let named = word.is_none_or(|word| is(&experiment, word));
        let wanted = move |run: &PathBuf| named || word.is_some_and(|word| is(run, word));
        children(&experiment).into_iter().filter(wanted).collect::<Vec<_>>()
    });
    let runs = runs.filter(|run| run.join(DESCRIPTION).is_file());
    runs.max_by_key(|run| run.file_name().map(ToOwned::to_owned)).ok_or_else(|| {
        let asked = word.map_or_else(|| "no run".to_owned(), |word| format!("no run `{word}`"));
        let page = format!(
            "error: there is {asked} below `logs/`\n  do: name a run folder \
             (`logs/<name>/<time>-<id>`), or start from the folder that holds `logs/`"
        );
        Refusal::new(exit::REFUSED, page)
    })
}
