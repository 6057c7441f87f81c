//! Errors of data: each variant is a fact with its operands, its remedy is in [`Error::help`].

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::closest;
use crate::file_names::IMAGE_ENDINGS;
use crate::files;
use crate::registry::Unbuildable;
use crate::user_error::{ExitCode, UserError};

/// The data cannot be used (exit 3), or its loader threads cannot run.
#[derive(Debug, Error)]
pub enum Error {
    /// A key that this kind of data needs is absent.
    #[error("`{key}` is not set, but `data.name = \"{kind}\"` needs it")]
    MissingKey {
        /// Key of the experiment.
        key: &'static str,
        /// Kind of data set.
        kind: &'static str,
    },
    /// The program does not know this data set, or it does not take these options.
    #[error(transparent)]
    Kind(#[from] Unbuildable),
    /// Inputs of this data set have no answers of one kind each.
    #[error("`ddprun predict` does not support this data set: {why}")]
    NotPredicted { why: &'static str },
    /// A file or folder is not there.
    #[error("{what} `{}` does not exist", shown(.path))]
    Missing {
        /// The missing thing, as in "the training folder".
        what: &'static str,
        path: PathBuf,
        /// The contents that were expected.
        expected: &'static str,
    },
    /// A file stands where a folder is needed.
    #[error("{what} `{}` is not a folder", shown(.path))]
    NotAFolder {
        /// The missing thing.
        what: &'static str,
        path: PathBuf,
        /// The contents that were expected.
        expected: &'static str,
    },
    /// Shapes cannot be written: a folder without permission, a full disk.
    #[error("cannot {action} `{}`: {source}", shown(.path))]
    Write {
        /// "create", "write", "replace" ...
        action: &'static str,
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Something cannot be read.
    #[error("cannot {action} `{}`: {source}", shown(.path))]
    Io {
        /// "read" or "list".
        action: &'static str,
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// An image folder without class folders.
    #[error("`{}` contains no class folders", shown(.path))]
    NoClasses {
        /// The root.
        path: PathBuf,
    },
    /// Class folders without images.
    #[error("{}", without_images(.path, .classes))]
    EmptyClasses {
        /// The root.
        path: PathBuf,
        /// Names of the empty folders.
        classes: Vec<String>,
    },
    /// Training and validation data do not have the same classes.
    #[error("class folders differ: {}", only_in(.train, .only_train, .val, .only_val))]
    ClassListsDiffer {
        /// Training root.
        train: PathBuf,
        /// Validation root.
        val: PathBuf,
        /// Classes without validation folder.
        only_train: Vec<String>,
        /// Classes without training folder.
        only_val: Vec<String>,
    },
    /// A file holds nothing.
    #[error("`{}` is empty", shown(.path))]
    Empty {
        path: PathBuf,
        /// The contents that were expected.
        expected: &'static str,
    },
    /// A file is not what its format demands.
    #[error("`{}`: {what}", shown(.path))]
    Format { path: PathBuf, what: String },
    /// A file has the wrong format, and there is a remedy.
    #[error("`{}`: {what}", shown(.path))]
    WithHelp { path: PathBuf, what: String, help: String },
    /// The generated data cannot be used.
    #[error("the generated data: {what}")]
    Generated { what: String },
    /// A cell or line of a table is not usable.
    #[error("`{}`, line {line}: {what}", shown(.path))]
    Line {
        /// The table.
        path: PathBuf,
        /// Counted from 1, the header included.
        line: u64,
        what: String,
    },
    /// A cell of a table is not usable, for which there is a remedy.
    #[error("`{}`, line {line}: {what}", shown(.path))]
    Cell {
        /// The table.
        path: PathBuf,
        /// Counted from 1, the header included.
        line: u64,
        what: String,
        help: String,
    },
    /// The rows of a table are not in the order of their dates.
    #[error("`{}`, line {line}: {what}", shown(.path))]
    DateOrder {
        /// The table.
        path: PathBuf,
        /// Counted from 1, the header included.
        line: u64,
        /// The problem with its date.
        what: String,
    },
    /// A table has no column of this name.
    #[error("`{}` has no column `{column}`; its columns are {}", shown(.path), named(.columns))]
    NoColumn {
        /// The key that names it: `data.ignore[1]`
        key: String,
        /// The table.
        path: PathBuf,
        /// The missing column.
        column: String,
        /// The columns of the table.
        columns: Vec<String>,
    },
    /// A repository or folder has no split of this name.
    #[error("`{root}` has no split `{split}`; its splits are {}", named(.splits))]
    NoSplit {
        /// The key that names it: `data.val_split`
        key: &'static str,
        root: String,
        /// The missing split.
        split: String,
        /// The splits of the configuration.
        splits: Vec<String>,
    },
    /// A repository or folder has no configuration of this name, or several, of which none is named.
    #[error("`{root}` {}", no_config(.config.as_deref(), .configs))]
    NoConfig { root: String, config: Option<String>, configs: Vec<String> },
    /// Several columns of a parquet file may be meant.
    #[error("`{}` has several columns of {of}: {}", shown(.path), named(.columns))]
    ManyColumns {
        /// The key that is to name one: `data.label_column`
        key: &'static str,
        path: PathBuf,
        /// "images" or "classes".
        of: &'static str,
        columns: Vec<String>,
    },
    /// Several fields of a sample in a tar shard may be its image.
    #[error("sample `{sample}` of `{}` has several images: {}", shown(.path), named(.fields))]
    ManyFields { path: PathBuf, sample: String, fields: Vec<String> },
    /// A cache cannot be written.
    #[error("{}", .0.with_cause())]
    Cache(#[source] files::Error),
    /// Lines of JSON have no key of this name.
    #[error("line {line} of `{}` has no key `{name}`; its keys are {}", shown(.path), named(.names))]
    NoKey {
        /// The key of the experiment that names it: `data.inputs[1]`
        key: String,
        path: PathBuf,
        /// The first line that is not empty.
        line: u64,
        /// The missing key.
        name: String,
        /// The names that exist.
        names: Vec<String>,
    },
    /// Hardly a value of the target occurs twice, though the loss takes them for classes.
    #[error("`{column}` has {classes} distinct values in the {rows} rows of `{}`, so {classes} classes", shown(.path))]
    ManyClasses {
        /// The table.
        path: PathBuf,
        /// The target.
        column: String,
        /// Rows of the table.
        rows: usize,
        /// Distinct values of the target.
        classes: usize,
        /// True if all of these are numbers.
        are_numbers: bool,
    },
    /// No sample of a part has a token that counts.
    #[error("`{}`: {what}", shown(.path))]
    AnswersCutOff {
        path: PathBuf,
        /// The part, and the reason.
        what: String,
        /// Tokens before the answers: half of them begin later.
        begin: usize,
    },
    /// A text takes more than any tokenizer needs to be cut.
    #[error("`{}`: cutting it into tokens took more than {taken}", shown(.path))]
    TooMuch {
        /// The text.
        path: PathBuf,
        /// The exhausted resource, as in "30 s of processor time".
        taken: String,
    },
    /// A data set has no images of this camera.
    #[error("`{}` has no images `{camera}`; it has {}", shown(.path), named(.cameras))]
    NoCamera {
        /// The file or folder.
        path: PathBuf,
        /// The missing camera.
        camera: String,
        /// The cameras of the data set.
        cameras: Vec<String>,
    },
    /// A camera's images are frames of videos.
    #[error("the images `{camera}` of `{}` are videos, which ddprun does not decode", shown(.path))]
    Video { path: PathBuf, camera: String },
    /// The two tables have different columns.
    #[error("`{}` and `{}` have different columns: {} and {}", shown(.train), shown(.val), named(.train_columns), named(.val_columns))]
    ColumnsDiffer {
        /// Training table.
        train: PathBuf,
        /// Validation table.
        val: PathBuf,
        train_columns: Vec<String>,
        val_columns: Vec<String>,
    },
    /// The data are not what the plan was made for.
    #[error("the data changed since the run was planned:{}", lines(.differences))]
    Changed {
        /// "train: 812 samples, was 815"
        differences: Vec<String>,
    },
    /// Shapes would be generated over something that ddprun did not generate.
    #[error("`{}` is not empty and was not generated by ddprun", shown(.path))]
    ForeignFolder { path: PathBuf },
    /// The code of a data set in Python cannot be used.
    #[error("{what}")]
    Python {
        /// The key of the experiment that asks for it: `data.object`
        key: &'static str,
        what: String,
        help: Option<String>,
    },
    /// Another process has been generating the same folder for too long.
    #[error("another process has been generating `{}` for {seconds} s", shown(.path))]
    Busy {
        path: PathBuf,
        /// The wait.
        seconds: u64,
    },
    /// The transforms do not fit together or the data.
    #[error("transforms cannot be applied: {what}")]
    Transforms { what: String },
    /// A sample cannot be read.
    #[error("sample {index}: {source}")]
    Sample {
        /// Index in its data set.
        index: usize,
        /// The file, and the reason.
        source: SampleError,
    },
    /// So many samples in a row cannot be read that the data set as a whole is at fault.
    #[error(
        "{count} samples in a row cannot be read, from sample {first} on; the last one: {source}"
    )]
    ManyBadSamples {
        /// First of the row.
        first: usize,
        /// Length of the row.
        count: usize,
        /// The error of the last one.
        source: SampleError,
    },
    /// More samples of an epoch or an evaluation cannot be read, over all ranks, than are passed
    /// over.
    #[error("{}", too_many(split, *unreadable, *samples, *most))]
    TooManyUnreadable {
        /// "training", "validation" or "test".
        split: &'static str,
        /// Number of unreadable samples.
        unreadable: u64,
        /// Samples of the epoch or the evaluation.
        samples: u64,
        /// `data.max_bad_fraction`
        most: f64,
    },
    /// A loader thread cannot be started: out of a resource.
    #[error("cannot start loader thread {number} of {wanted}: {source}")]
    Spawn {
        /// Counted from 1.
        number: usize,
        /// `data.num_workers`
        wanted: usize,
        /// The reason.
        source: io::Error,
    },
    /// The samples of a pass do not make a tensor.
    #[error("cannot make a batch: {what}")]
    Batch {
        /// The reason.
        what: String,
    },
    /// A loader thread panicked outside of decoding: our bug.
    #[error("a loader thread panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
}

impl Error {
    /// Builds the error of `what`, the file at `path` that should hold `expected`, which cannot be
    /// read.
    pub(crate) fn reading(
        what: &'static str,
        path: &Path,
        expected: &'static str,
    ) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { what, path: path.to_owned(), expected },
            _ => Self::Io { action: "read", path: path.to_owned(), source },
        }
    }

    /// The key of the experiment that asks for what is not there, if it is one.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::NoCamera { .. } | Self::Video { .. } => Some("data.cameras"),
            Self::NoColumn { key, .. } | Self::NoKey { key, .. } => Some(key),
            Self::NoSplit { key, .. }
            | Self::ManyColumns { key, .. }
            | Self::Python { key, .. } => Some(key),
            Self::NoConfig { .. } => Some("data.config_name"),
            Self::ManyFields { .. } => Some("data.image_field"),
            Self::ManyClasses { are_numbers: true, .. } => Some("loss.name"),
            Self::ManyClasses { .. } => Some("data.target"),
            Self::AnswersCutOff { .. } => Some("data.seq_len"),
            _ => None,
        }
    }
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Write { .. } | Self::Cache(_) => ExitCode::Storage,
            Self::Spawn { .. } => ExitCode::Resource,
            Self::Batch { .. } | Self::Panicked { .. } => ExitCode::Bug,
            _ => ExitCode::Data,
        }
    }

    fn place(&self) -> Option<(&Path, Option<u64>)> {
        match self {
            Self::Line { path, line, .. }
            | Self::Cell { path, line, .. }
            | Self::DateOrder { path, line, .. }
            | Self::NoKey { path, line, .. } => Some((path, Some(*line))),
            Self::Missing { path, .. }
            | Self::NotAFolder { path, .. }
            | Self::Io { path, .. }
            | Self::NoClasses { path }
            | Self::EmptyClasses { path, .. }
            | Self::Empty { path, .. }
            | Self::Format { path, .. }
            | Self::NoColumn { path, .. }
            | Self::ManyColumns { path, .. }
            | Self::ManyFields { path, .. }
            | Self::ManyClasses { path, .. }
            | Self::AnswersCutOff { path, .. }
            | Self::TooMuch { path, .. }
            | Self::NoCamera { path, .. }
            | Self::Video { path, .. }
            | Self::ForeignFolder { path } => Some((path, None)),
            _ => None,
        }
    }

    fn help(&self) -> Option<String> {
        let help = match self {
            Self::MissingKey { key, .. } => format!("set `{key}` in the experiment file"),
            Self::Io { source, .. }
            | Self::Sample { source: SampleError::Io { source, .. }, .. }
                if NotDownloaded::is_why(source) =>
            {
                NotDownloaded::HELP.to_owned()
            }
            Self::Missing { expected, .. } | Self::NotAFolder { expected, .. } => {
                format!(
                    "check the path (relative ones start at the current folder); expected: \
                     {expected}"
                )
            }
            Self::Empty { expected, .. } => format!("put {expected} into it"),
            Self::NoClasses { .. } => {
                "put each class into a folder of its own: <root>/<class>/<image>".to_owned()
            }
            Self::EmptyClasses { .. } => {
                let endings = IMAGE_ENDINGS.join(" ");
                format!(
                    "add images ({endings}), remove the folders without images, or set \
                     `data.allow_empty = true`"
                )
            }
            Self::ClassListsDiffer { .. } => "remove the class folders that the training folder \
                                              lacks, or add images of them to it"
                .to_owned(),
            Self::Changed { .. } => "restore the original data, or start a new run; `ddprun \
                                     resume --accept-changed-data` continues this one with the \
                                     data as they are now"
                .to_owned(),
            Self::ForeignFolder { .. } => {
                "choose another `data.dir`, or remove the folder yourself".to_owned()
            }
            Self::Sample { source: SampleError::Io { .. }, .. } => {
                "put the file back, or make it readable; `ddprun resume` continues a run".to_owned()
            }
            Self::Sample { source: SampleError::TooLarge { .. }, .. } => {
                "make the picture smaller, or set `data.on_bad_sample = \"skip\"`".to_owned()
            }
            Self::Sample { source: SampleError::Transform { .. }, .. } => {
                "change `data.transforms` so that they fit all images".to_owned()
            }
            Self::Sample { source: SampleError::Python { .. }, .. } => {
                "correct the code, or set `data.on_bad_sample = \"skip\"`".to_owned()
            }
            Self::Sample { source: SampleError::PythonProcess { is_late: true, .. }, .. } => {
                "raise `data.timeout`, if a sample may take as long".to_owned()
            }
            Self::Sample { source: SampleError::PythonProcess { .. }, .. } => {
                "look into the log of the rank for what it printed last, and at the memory that \
                 `data.num_workers` processes take"
                    .to_owned()
            }
            Self::Sample { .. } => {
                "remove or repair the file, or set `data.on_bad_sample = \"skip\"`".to_owned()
            }
            Self::ManyBadSamples { .. } => "check that the data is mounted and complete, and \
                                            remove or repair these files"
                .to_owned(),
            Self::TooManyUnreadable { .. } => "remove or repair the files, whose names are in \
                                               `events.jsonl` and in the log of rank 0, or raise \
                                               `data.max_bad_fraction`"
                .to_owned(),
            Self::Spawn { .. } => "lower `data.num_workers`, or raise `ulimit -u`".to_owned(),
            Self::DateOrder { .. } => "sort the rows by their dates and keep one of each, or set \
                                       `data.check_dates = false`: rows are cut in their order, \
                                       so that training may see what is to be predicted"
                .to_owned(),
            Self::Cell { help, .. } | Self::WithHelp { help, .. } => help.clone(),
            Self::Python { help, .. } => return help.clone(),
            Self::NoColumn { columns, .. } if columns.iter().all(|name| is_number(name)) => {
                "write the column names into the first line, if the header line is missing"
                    .to_owned()
            }
            Self::NoConfig { config: None, .. } => "name one with `data.config_name`".to_owned(),
            Self::ManyColumns { key, .. } => format!("name one with `{key}`"),
            Self::ManyFields { .. } => "name one with `data.image_field`".to_owned(),
            Self::Cache(error) => {
                error.help_or("choose a folder for it on another disk with `DDPRUN_CACHE`")
            }
            Self::NoColumn { column: wanted, columns: names, .. }
            | Self::NoSplit { split: wanted, splits: names, .. }
            | Self::NoConfig { config: Some(wanted), configs: names, .. }
            | Self::NoKey { name: wanted, names, .. } => {
                match closest(wanted, names.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "name one of them".to_owned(),
                }
            }
            Self::TooMuch { .. } => {
                "look at the tokenizer and the chat template: a rule, a regular \
                                     expression or a loop in one of them does not end"
                    .to_owned()
            }
            Self::AnswersCutOff { begin, .. } => {
                format!("raise it: half of the answers begin after {begin} tokens")
            }
            Self::ManyClasses { are_numbers: true, .. } => {
                "use `loss.name = \"mse\"`, which learns numbers".to_owned()
            }
            Self::ManyClasses { .. } => {
                "name the column that is to be predicted: a class needs several rows".to_owned()
            }
            Self::NoCamera { cameras, .. } if cameras.is_empty() => {
                "omit `data.cameras` to train on the numbers alone".to_owned()
            }
            Self::NoCamera { .. } => "name some of these in `data.cameras`".to_owned(),
            Self::Video { camera, .. } => format!(
                "unpack each episode: `ffmpeg -i EPISODE.mp4 -start_number 0 \
                 images/{camera}/episode_000000/frame_%06d.png`"
            ),
            _ => return None,
        };
        Some(help)
    }
}

/// One sample cannot be read. Policy `data.on_bad_sample` decides what follows.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The operating system refused.
    #[error("cannot read `{}`: {source}", shown(.path))]
    Io { path: PathBuf, source: io::Error },
    /// The file is there but is not a usable image.
    #[error("cannot decode `{}`: {reason}", shown(.path))]
    Decode { path: PathBuf, reason: String },
    /// The image would take too much memory.
    #[error("`{}` is too large: {reason}", shown(.path))]
    TooLarge {
        path: PathBuf,
        /// The size, and the largest one allowed.
        reason: String,
    },
    /// An image among observations is not usable.
    #[error("cannot read {name}: {reason}")]
    Image { name: String, reason: String },
    /// The decoder or a transform panicked.
    #[error("the decoder panicked on {name}: {message}")]
    Panicked {
        /// The sample.
        name: String,
        /// The panic's message.
        message: String,
    },
    /// Python code raised an exception, or returned what is no sample.
    #[error("{name} {what}")]
    Python {
        /// The sample: `Digits[17]`
        name: String,
        /// The exception, or what is wrong.
        what: String,
        #[source]
        traceback: Option<Traceback>,
    },
    /// The process that runs Python code is gone, or does not answer. No other sample replaces this
    /// one.
    #[error("{name} {what}")]
    PythonProcess {
        /// The sample.
        name: String,
        what: String,
        /// True if it does not answer.
        is_late: bool,
        /// The place in the code where it is, if that is known.
        #[source]
        stack: Option<Traceback>,
    },
    /// A transform does not fit the image.
    #[error("cannot transform {name}: {reason}")]
    Transform {
        /// The sample.
        name: String,
        reason: String,
    },
}

impl SampleError {
    /// True if the sample is not to blame, so that the run ends whatever `data.on_bad_sample` says.
    pub(crate) fn ends_the_run(&self) -> bool {
        matches!(self, Self::PythonProcess { .. })
    }

    /// The reason without the name of the file, for a message that has named it.
    pub fn reason(&self) -> String {
        match self {
            Self::Io { source, .. } => format!("it cannot be read: {source}"),
            Self::Decode { reason, .. }
            | Self::TooLarge { reason, .. }
            | Self::Image { reason, .. }
            | Self::Transform { reason, .. } => reason.clone(),
            Self::Python { what, .. } | Self::PythonProcess { what, .. } => what.clone(),
            Self::Panicked { message, .. } => format!("the decoder panicked: {message}"),
        }
    }
}

/// Calls of Python code, a line each.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Traceback(pub String);

impl Traceback {
    /// The lines, indented, so that they stay as they are in a message.
    pub(crate) fn indented(&self) -> String {
        self.0.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }
}

/// True if a column name is a number, as in a table without a header line.
pub(crate) fn is_number(name: &str) -> bool {
    name.parse::<f64>().is_ok()
}

/// A path as it may be shown on a terminal: control characters escaped.
pub fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    if !text.chars().any(char::is_control) {
        return text;
    }
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// Up to ten names in backticks: "`a`, `b` and 3 more"; "none" for no name.
pub(crate) fn named(names: &[String]) -> String {
    const MAX_NAMES: usize = 10;
    if names.is_empty() {
        return "none".to_owned();
    }
    let listed: Vec<String> =
        names.iter().take(MAX_NAMES).map(|name| format!("`{}`", shown(Path::new(name)))).collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    if more == 0 { listed.join(", ") } else { format!("{} and {more} more", listed.join(", ")) }
}

fn no_config(config: Option<&str>, configs: &[String]) -> String {
    let configs = named(configs);
    match config {
        None => format!("has several configurations: {configs}"),
        Some(config) => format!("has no configuration `{config}`; it has {configs}"),
    }
}

/// The classes that only one of two folders has.
fn only_in(train: &Path, only_train: &[String], val: &Path, only_val: &[String]) -> String {
    let sides = [(train, only_train), (val, only_val)];
    let some = sides.iter().filter(|(_, classes)| !classes.is_empty());
    let words =
        some.map(|(root, classes)| format!("only in `{}`: {}", shown(root), named(classes)));
    words.collect::<Vec<_>>().join("; ")
}

fn too_many(split: &str, unreadable: u64, samples: u64, most: f64) -> String {
    if unreadable == samples {
        return format!("none of the {samples} {split} samples can be read");
    }
    format!(
        "{unreadable} of {samples} {split} samples cannot be read, more than \
         `data.max_bad_fraction` = {most} allows"
    )
}

/// Puts each difference on a line of its own.
fn lines(differences: &[String]) -> String {
    let line = |difference: &String| "\n  ".to_owned() + &shown(Path::new(difference));
    differences.iter().map(line).collect()
}

fn without_images(root: &Path, classes: &[String]) -> String {
    if let [class] = classes {
        return format!("class folder `{}` contains no images", shown(&root.join(class)));
    }
    let count = classes.len();
    let root = shown(root);
    format!("{count} class folders of `{root}` contain no images: {}", named(classes))
}

/// A file is what git-lfs leaves in the place of it.
#[derive(Debug, thiserror::Error)]
#[error("it is a git-lfs pointer, not the file itself")]
pub(crate) struct NotDownloaded;

impl NotDownloaded {
    /// The remedy.
    pub(crate) const HELP: &'static str =
        "run `git lfs pull` in its folder, or download the file itself";

    /// True if an error of reading a file means this.
    fn is_why(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Self>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_names_are_cut_and_control_characters_escaped() {
        let names: Vec<String> = (0..12).map(|i| format!("c{i}")).collect();
        assert!(named(&names).ends_with("`c9` and 2 more"));
        assert_eq!(named(&["a\u{1b}[31m".to_owned()]), "`a\\u{1b}[31m`");
        assert_eq!(named(&[]), "none");
    }
}
