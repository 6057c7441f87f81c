//! `ddprun predict [RUN | CHECKPOINT] INPUT...`: what a run's best checkpoint answers to files
//! without answers.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::cli::args::PredictArgs;
use crate::cli::{answer, progress_bar};
use crate::kinds::Kinds;
use crate::launch::Role;
use crate::launch::rank_env::{self, Foreign};
use crate::predict::{self, Format, Job, Progress};
use crate::record::{self, is_json, json_line, to_stderr};
use crate::runs::{self, CheckpointRef, RUN, choose_checkpoint, find_sweep};
use crate::sweep;
use crate::terminal::escape_lines;
use crate::units::BatchSize;
use crate::user_error::{ErrorPage, ExitCode};

/// Predicts, and prints or writes the rows; exit 3 if every one has an error.
pub(crate) fn predict(args: &PredictArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let launched = launched(args)?;
    let here = std::env::current_dir().unwrap_or_default();
    let (run, inputs) = split(&args.words)?;
    let chosen = choose_checkpoint(run, args.latest, args.strict)?;
    let mut plan = chosen.run()?.plan.clone();
    if let Some(size) = args.batch_size.and_then(BatchSize::new) {
        plan.val_batch_size = size;
    }
    // Looking for the run may have led elsewhere.
    let is_here = std::env::current_dir().is_ok_and(|now| now == here);
    let seen = |path: PathBuf| if is_here { path } else { here.join(path) };
    let paths: Vec<PathBuf> = inputs.into_iter().map(seen).collect();
    let out = args.out.clone().map(seen);
    let job = Job {
        plan: &plan,
        opened: &chosen.opened,
        kinds,
        paths: &paths,
        ranks: args.nproc_per_node as usize,
        launched: launched.as_ref(),
        top: args.top.map(|k| k as usize),
        out: out.as_deref().map(|path| (path, args.overwrite)),
        form: if is_json() { Format::Jsonl } else { Format::Csv },
    };
    // One rank of a launcher speaks for all; which one writes the file is not known before.
    let is_heard = launched.as_ref().is_none_or(|place| place.rank.is_first());
    // Rows on a terminal show by themselves how far it is, and a bar would stand among them.
    let hides_bar = out.is_none() && io::stdout().is_terminal();
    let line = "{bar:30} {human_pos}/{human_len}  {per_sec}  {eta} left";
    let bar = if is_heard && !hides_bar { progress_bar(line) } else { ProgressBar::hidden() };
    let mut stdout = Stdout::default();
    let ended = predict::run(&job, &mut stdout, &|said| show(&bar, said, is_heard));
    bar.finish_and_clear();
    if stdout.is_closed {
        return Ok(ExitCode::Ok);
    }
    let Some(ended) = ended? else { return Ok(ExitCode::Ok) };
    tell(&ended, out.as_deref());
    let predict::Ended { rows, failed, .. } = &ended;
    answer("predicted", || json!({ "rows": rows, "failed": failed, "file": out }), String::new)?;
    Ok(if ended.rows > 0 && ended.failed == ended.rows { ExitCode::Data } else { ExitCode::Ok })
}

/// Which rank this process is, if another launcher has started it.
fn launched(args: &PredictArgs) -> Result<Option<Foreign>, ErrorPage> {
    let role = rank_env::from_environment();
    let role = role.map_err(|error| ErrorPage::of(ExitCode::Refused, &error))?;
    let Role::Foreign(place) = role else { return Ok(None) };
    let refuse = |page: &str| Err(ErrorPage::new(ExitCode::Refused, page));
    if args.out.is_none() {
        return refuse(
            "error: another launcher has started this rank, but its rows have no common file\n  \
             do: name one with `--out FILE`, in a folder that all ranks see",
        );
    }
    if args.nproc_per_node > 1 {
        return refuse(
            "error: another launcher has started this rank, and `--nproc-per-node` asks for more\n  \
             do: leave one of them out",
        );
    }
    Ok(Some(place))
}

/// Data goes to stdout; a reader that has seen enough (`| head`) is no failure, but the end.
#[derive(Default)]
struct Stdout {
    is_closed: bool,
    /// Of a row that is to be an object for `--json`.
    begun: Vec<u8>,
}

impl Stdout {
    /// The rows that are whole, as objects, or escaped where people look at them: they hold names
    /// from others.
    fn shown(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if !is_json() && !io::stdout().is_terminal() {
            return None;
        }
        self.begun.extend_from_slice(bytes);
        let end = self.begun.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let whole: Vec<u8> = self.begun.drain(..end).collect();
        let whole = String::from_utf8_lossy(&whole);
        if !is_json() {
            return Some(escape_lines(&whole).into_owned().into_bytes());
        }
        let object = |row: &str| {
            let row: Value = serde_json::from_str(row).unwrap_or_default();
            json_line("prediction", json!({ "prediction": row }))
        };
        Some(whole.lines().map(object).collect::<String>().into_bytes())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.shown(bytes) {
            Some(shown) => io::stdout().write_all(&shown).map(|()| bytes.len()),
            None => io::stdout().write(bytes),
        };
        written.inspect_err(|error| self.is_closed |= error.kind() == ErrorKind::BrokenPipe)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = io::stdout().flush();
        flushed.inspect_err(|error| self.is_closed |= error.kind() == ErrorKind::BrokenPipe)
    }
}

/// The run or checkpoint, if the first word names one, and the inputs. A word that is a run as well
/// as a file or folder is the run where inputs follow, and the input where it stands alone.
fn split(words: &[String]) -> Result<(Option<&str>, Vec<PathBuf>), ErrorPage> {
    let (first, rest) = words.split_first().map_or(("", &[][..]), |(f, rest)| (f.as_str(), rest));
    let paths = |words: &[String]| words.iter().map(PathBuf::from).collect();
    let is_input = match CheckpointRef::parse(first) {
        _ if first.starts_with(RUN) => false,
        CheckpointRef::Checkpoint(_) | CheckpointRef::Folder(..) => false,
        CheckpointRef::Run(run, _) if is_run(Path::new(run)) => false,
        CheckpointRef::Run(run, _) if Path::new(first).exists() && runs::is_name(run) => {
            let is_input = rest.is_empty();
            to_stderr(&taken(first, is_input));
            is_input
        }
        CheckpointRef::Run(..) if runs::is_experiment(first) => {
            let help = runs::of_experiment(first);
            let page = format!("error: `{first}` is not data\n  do: {help}");
            return Err(ErrorPage::new(ExitCode::Refused, page));
        }
        CheckpointRef::Run(..) if Path::new(first).exists() => true,
        CheckpointRef::Run(run, _) if is_named(run) => false,
        CheckpointRef::Run(..) => return Err(unknown(first)),
    };
    if is_input { some(None, paths(words)) } else { some(Some(first), paths(rest)) }
}

/// How a first word is understood that is a file or folder and names a run.
fn taken(first: &str, is_input: bool) -> String {
    let what = if Path::new(first).is_dir() { "folder" } else { "file" };
    if is_input {
        format!("`{first}` is the {what}; for the run of that name: `{RUN}{first}`, then inputs")
    } else {
        format!("`{first}` is the run; for the {what} of that name: `./{first}`")
    }
}

/// The first word is nothing that is there.
fn unknown(first: &str) -> ErrorPage {
    let page = format!(
        "error: there is no file, folder, run or checkpoint `{first}`\n  do: name a run first \
         (`ddprun predict RUN INPUT...`), or only the inputs, and the newest run is taken"
    );
    ErrorPage::new(ExitCode::Refused, page)
}

fn some(
    run: Option<&str>,
    inputs: Vec<PathBuf>,
) -> Result<(Option<&str>, Vec<PathBuf>), ErrorPage> {
    if inputs.is_empty() {
        let page = "error: there is nothing to predict\n  do: name files or folders after the run";
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    Ok((run, inputs))
}

/// Whether a folder is that of a run's logs, or of a sweep.
fn is_run(path: &Path) -> bool {
    record::is_run(path) || path.join(sweep::JOURNAL).is_file()
}

/// Whether a word names a run or a sweep.
fn is_named(word: &str) -> bool {
    find_sweep(Path::new(word)).is_some()
        || runs::find_run(Path::new(runs::LOGS), Some(word)).is_ok()
}

fn show(bar: &ProgressBar, said: Progress<'_>, is_heard: bool) {
    match said {
        Progress::Began { items, done } => {
            if done > 0 && is_heard {
                to_stderr(&format!("continuing: {done} of {items} inputs are done"));
            }
            bar.set_length(items as u64);
            bar.set_position(done as u64);
        }
        Progress::Done(n) => bar.inc(n as u64),
        Progress::Noted(note) if is_heard => to_stderr(&format!("warning: {note}")),
        Progress::Noted(_) => {}
    }
}

/// What could not be read, and what was written.
fn tell(ended: &predict::Ended, out: Option<&Path>) {
    let predict::Ended { rows, failed, first, .. } = ended;
    if *failed > 0 {
        let noun = if *rows == 1 { "row" } else { "rows" };
        let have = if *failed == 1 { "has" } else { "have" };
        to_stderr(&format!("warning: {failed} of {rows} {noun} {have} an error:"));
        for line in first {
            to_stderr(&format!("  {line}"));
        }
        if *failed > first.len() {
            to_stderr(&format!("  ... and {} more", failed - first.len()));
        }
    }
    if let Some(out) = out {
        let noun = if *rows == 1 { "row" } else { "rows" };
        to_stderr(&format!("wrote `{}`: {rows} {noun}", out.display()));
    }
}
