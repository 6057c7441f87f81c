//! What is drawn: a recipe of data, model and settings, and what disturbs its starts. Pure.
//!
//! A schedule is a list of parts, each of which can be left out: so a failing one is made smaller,
//! and the numbers of the parts that remain are enough to play it again.

use std::fmt;

use train_numbers::rng::{Key, Purpose, Stream};

use crate::data::{KINDS, Kind};

/// Schedules in a row that share a recipe, and so the run that they are compared with.
const SHARING: u64 = 4;
/// Starts that may be disturbed before the last one, which is not.
const MAX_DISTURBED: u64 = 3;

/// What trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One run.
    Run,
    /// Two trials of a grid, so many at a time.
    Sweep(u64),
    /// Two folds, one after the other.
    Folds,
}

/// Who starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    /// ddprun itself.
    Parent,
    /// As torchrun does: a process for each rank, with its variables.
    Torchrun,
    Mpirun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Int,
    Term,
    Kill,
    /// Stopped for so many milliseconds.
    Pause(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Parent,
    Rank(u64),
    /// All processes of the start, as Ctrl-C in a terminal.
    Group,
}

/// What another process does while a start trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Ls,
    Report,
    Verify,
    Show,
    Predict,
    Eval,
    Logs,
    Serve,
}

/// A piece of a schedule. `start` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// `key=value` of the recipe.
    Setting(String),
    Mode(Mode),
    /// A start has this many ranks instead of two.
    Ranks {
        start: usize,
        ranks: u64,
    },
    Launcher {
        start: usize,
        launcher: Launcher,
    },
    /// A rule of `DDPRUN_FP`.
    Point {
        start: usize,
        rule: String,
    },
    /// A signal after so many milliseconds.
    Signal {
        start: usize,
        after: u64,
        fault: Fault,
        target: Target,
    },
    Reader {
        start: usize,
        after: u64,
        reader: Reader,
    },
    /// The end is predicted from, by so many ranks.
    Predicted(u64),
}

/// One schedule.
#[derive(Clone)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) kind: &'static Kind,
    pub(crate) model: (&'static str, &'static str),
    /// Starts before the last one.
    pub(crate) n_disturbed: usize,
    /// The parts, each with its number.
    pub(crate) parts: Vec<(usize, Part)>,
}

/// Where it can happen to any rank.
const PHASES: [&str; 12] = [
    "starting",
    "join",
    "joining",
    "sample",
    "loading_data",
    "forward",
    "backward",
    "reducing",
    "collective",
    "optimizer",
    "evaluating",
    "finishing",
];
/// Where it can happen to rank 0 alone, which writes.
const WRITES: [&str; 9] = [
    "saving",
    "checkpoint.write",
    "checkpoint.manifest",
    "checkpoint.sync",
    "checkpoint.rename",
    "checkpoint.renamed",
    "checkpoint.link",
    "checkpoint.rotate",
    "epoch",
];
/// Where it can happen to the parent of a sweep.
const SWEEPS: [&str; 4] = ["sweep.started", "sweep.draw", "sweep.ended", "sweep.end"];

/// Settings, of each line at most one.
const SETTINGS: [&[&str]; 18] = [
    &["train.precision=bf16", "train.precision=bf16", "train.precision=fp16"],
    &["train.global_batch_size=8", "train.batch_size=2 train.global_batch_size=8"],
    &["ema.decay=0.9", "swa.start=1 epoch", "lookahead.k=2", "ema.decay=0.9 ema.use_buffers=true"],
    &["data.drop_last=false"],
    &["data.num_workers=1", "data.num_workers=2"],
    &[
        "checkpoint.every=1 step",
        "checkpoint.every=1 step",
        "checkpoint.every=3 steps",
        "checkpoint.every=1 epoch",
        "checkpoint.every=never",
    ],
    &["checkpoint.keep_last=1", "checkpoint.keep_last=4"],
    &["checkpoint.keep_best=0", "checkpoint.keep_best=2"],
    &["checkpoint.monitor=train/loss"],
    &[
        "optimizer.name=sgd optimizer.momentum=0.9",
        "optimizer.name=lion",
        "optimizer.name=nadam",
        "optimizer.name=rmsprop",
        "optimizer.name=adagrad",
        "optimizer.name=adam",
    ],
    &["train.clip_grad_norm=0.5"],
    &[
        "scheduler.name=cosine scheduler.interval=step scheduler.warmup=30 %",
        "scheduler.name=one_cycle",
        "scheduler.name=step scheduler.step_size=1",
        "scheduler.name=plateau scheduler.patience=0",
    ],
    &["validation.every=1 step", "validation.every=2 steps", "validation.every=never"],
    &["distributed.zero_stage=1", "distributed.zero_stage=2"],
    &["distributed.overlap=false", "distributed.bucket_cap=1KiB"],
    &["early_stopping.patience=1"],
    &["logging.sinks=[\"csv\"]", "logging.sinks=[\"jsonl\"]", "logging.every=3 steps"],
    &["fault.compare_weights=1 step", "distributed.min_world_size=1", "fault.max_restarts=0"],
];

impl Schedule {
    /// The schedule of a seed; with `only`, no other parts than those.
    pub(crate) fn of(seed: u64, only: Option<&[usize]>) -> Self {
        let mut dice = Key::new(seed / SHARING, Purpose::Generate, 0, 0).stream();
        let kind = one_of(&mut dice, &KINDS);
        let model = *one_of(&mut dice, kind.models);
        let mut parts = Vec::new();
        for settings in SETTINGS {
            let setting = match *one_of(&mut dice, settings) {
                // Its first epoch is longer than the run.
                "swa.start=1 epoch" if kind.is_long => "swa.start=5 steps swa.every=1 step",
                setting => setting,
            };
            if dice.below(5) == 0 {
                parts.push(Part::Setting(setting.to_owned()));
            }
        }
        let has = |parts: &[Part], key: &str| {
            parts.iter().any(|part| matches!(part, Part::Setting(text) if text.starts_with(key)))
        };
        if has(&parts, "validation.every=never") {
            // What is never measured can neither stop a run nor rank its checkpoints.
            let watches = |text: &str| {
                text.starts_with("early_stopping") || text.starts_with("scheduler.name=plateau")
            };
            parts.retain(|part| !matches!(part, Part::Setting(text) if watches(text)));
        }
        let mode = match dice.below(16) {
            0 => Mode::Sweep(1 + dice.below(2)),
            1 if kind.folds.is_some() => Mode::Folds,
            _ => Mode::Run,
        };
        if mode != Mode::Run {
            // A sweep ranks its trials by what is validated.
            parts.retain(|part| *part != Part::Setting("validation.every=never".to_owned()));
            parts.push(Part::Mode(mode));
        }
        let mut dice = Key::new(seed, Purpose::Generate, 1, 0).stream();
        let n_disturbed = 1 + dice.below(MAX_DISTURBED) as usize;
        for start in 0..=n_disturbed {
            draw_start(&mut dice, start, start < n_disturbed, mode, &mut parts);
        }
        if mode == Mode::Run && kind.input.is_some() && dice.below(3) == 0 {
            parts.push(Part::Predicted(1 + dice.below(2)));
        }
        let all = parts.into_iter().enumerate();
        let parts = all.filter(|(n, _)| only.is_none_or(|only| only.contains(n))).collect();
        Self { seed, kind, model, n_disturbed, parts }
    }

    /// The same without the parts that `leave_out` names.
    pub(crate) fn without(&self, leave_out: &[usize]) -> Self {
        let parts = self.parts.iter().filter(|(n, _)| !leave_out.contains(n)).cloned().collect();
        Self { parts, ..self.clone() }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().map(|(_, part)| part)
    }

    pub(crate) fn mode(&self) -> Mode {
        let mode = self.all().find_map(|part| match part {
            Part::Mode(mode) => Some(*mode),
            _ => None,
        });
        mode.unwrap_or(Mode::Run)
    }

    /// The recipe's settings, as arguments.
    pub(crate) fn settings(&self) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        for part in self.all() {
            let Part::Setting(text) = part else { continue };
            // A value may have blanks in it; a word with an equals sign begins another setting.
            for word in text.split(' ') {
                match args.last_mut() {
                    Some(last) if !word.contains('=') => {
                        last.push(' ');
                        last.push_str(word);
                    }
                    _ => args.push(word.to_owned()),
                }
            }
        }
        args
    }

    /// Ranks of the undisturbed run. A sweep plans its trials for those that it has.
    pub(crate) fn ranks_of_reference(&self) -> u64 {
        if self.mode() == Mode::Run { 1 } else { self.ranks(0) }
    }

    pub(crate) fn ranks(&self, at: usize) -> u64 {
        let ranks = self.all().find_map(|part| match part {
            Part::Ranks { start, ranks } if *start == at => Some(*ranks),
            _ => None,
        });
        ranks.unwrap_or(2)
    }

    pub(crate) fn launcher(&self, at: usize) -> Launcher {
        let launcher = self.all().find_map(|part| match part {
            Part::Launcher { start, launcher } if *start == at => Some(*launcher),
            _ => None,
        });
        launcher.unwrap_or(Launcher::Parent)
    }

    /// `DDPRUN_FP` of a start.
    pub(crate) fn points(&self, at: usize) -> Vec<&str> {
        // A parent whose rank is told to kill it must be ddprun, not what plays the schedule.
        let is_parent = self.launcher(at) == Launcher::Parent;
        let rules = self.parts.iter().filter_map(|(_, part)| rule_of(part, at));
        rules.filter(|rule| is_parent || !rule.contains("(parent)")).collect()
    }

    pub(crate) fn signals(&self, at: usize) -> Vec<(u64, Fault, Target)> {
        let signal = |part: &Part| match part {
            Part::Signal { start, after, fault, target } if *start == at => {
                Some((*after, *fault, *target))
            }
            _ => None,
        };
        self.all().filter_map(signal).collect()
    }

    pub(crate) fn readers(&self, at: usize) -> Vec<(u64, Reader)> {
        let reader = |part: &Part| match part {
            Part::Reader { start, after, reader } if *start == at => Some((*after, *reader)),
            _ => None,
        };
        self.all().filter_map(reader).collect()
    }

    pub(crate) fn predicted(&self) -> Option<u64> {
        self.all().find_map(|part| match part {
            Part::Predicted(ranks) => Some(*ranks),
            _ => None,
        })
    }

    /// The numbers of the parts, as `just chaos` reads them.
    pub(crate) fn numbers(&self) -> String {
        let numbers: Vec<String> = self.parts.iter().map(|(n, _)| n.to_string()).collect();
        numbers.join(",")
    }
}

fn rule_of(part: &Part, at: usize) -> Option<&str> {
    match part {
        Part::Point { start, rule } if *start == at => Some(rule),
        _ => None,
    }
}

fn one_of<'a, T>(dice: &mut Stream, items: &'a [T]) -> &'a T {
    &items[dice.below(items.len() as u64) as usize]
}

fn draw_start(
    dice: &mut Stream,
    start: usize,
    is_disturbed: bool,
    mode: Mode,
    parts: &mut Vec<Part>,
) {
    let ranks = *one_of(dice, &[1, 1, 2, 2, 2, 4]);
    if ranks != 2 {
        parts.push(Part::Ranks { start, ranks });
    }
    let launcher = match dice.below(16) {
        0..=2 => Launcher::Torchrun,
        3 => Launcher::Mpirun,
        _ => Launcher::Parent,
    };
    if launcher != Launcher::Parent && mode == Mode::Run {
        parts.push(Part::Launcher { start, launcher });
    }
    if dice.below(2) == 0 {
        let rule = "checkpoint.queued=wait@*,*,*".to_owned();
        parts.push(Part::Point { start, rule });
    }
    if is_disturbed {
        for _ in 0..=dice.below(2) {
            parts.push(match dice.below(2) {
                0 => Part::Point { start, rule: draw_point(dice, mode) },
                _ => draw_signal(dice, start),
            });
        }
    }
    for _ in 0..dice.below(3) / 2 * (1 + dice.below(2)) {
        let reader = *one_of(
            dice,
            &[
                Reader::Ls,
                Reader::Report,
                Reader::Verify,
                Reader::Show,
                Reader::Predict,
                Reader::Eval,
                Reader::Logs,
                Reader::Serve,
            ],
        );
        parts.push(Part::Reader { start, after: 10 * dice.below(60), reader });
    }
}

/// A fail point, in one of the attempts of a start.
fn draw_point(dice: &mut Stream, mode: Mode) -> String {
    if mode != Mode::Run && dice.below(4) == 0 {
        let point = one_of(dice, &SWEEPS);
        let fault = one_of(dice, &["kill", "term"]);
        return format!("{point}={fault}@parent,*,*,{}", 1 + dice.below(2));
    }
    let (point, rank) = match dice.below(3) {
        0 => (*one_of(dice, &WRITES), 0),
        _ => (*one_of(dice, &PHASES), dice.below(2)),
    };
    let fault = match dice.below(24) {
        0 => "stop",
        1..=8 => "kill",
        9..=13 => "term",
        14..=19 => "kill(parent)",
        _ => "term(parent)",
    };
    let restart = [0, 0, 0, 1][dice.below(4) as usize];
    let (step, hit) = match dice.below(2) {
        0 => ((1 + dice.below(12)).to_string(), "*".to_owned()),
        _ => ("*".to_owned(), (1 + dice.below(4)).to_string()),
    };
    format!("{point}={fault}@{rank},{step},{restart},{hit}")
}

fn draw_signal(dice: &mut Stream, start: usize) -> Part {
    let after = 5 * dice.below(120);
    let fault = match dice.below(8) {
        0 | 1 => Fault::Int,
        2 | 3 => Fault::Term,
        4 | 5 => Fault::Kill,
        _ => Fault::Pause(20 * (1 + dice.below(20))),
    };
    let target = match dice.below(3) {
        0 => Target::Parent,
        1 if fault != Fault::Int => Target::Rank(dice.below(2)),
        _ => Target::Group,
    };
    Part::Signal { start, after, fault, target }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(text) => f.write_str(text),
            Self::Mode(mode) => write!(f, "{mode:?}"),
            Self::Ranks { start, ranks } => write!(f, "start {start}: {ranks} ranks"),
            Self::Launcher { start, launcher } => write!(f, "start {start}: {launcher:?}"),
            Self::Point { start, rule } => write!(f, "start {start}: {rule}"),
            Self::Signal { start, after, fault, target } => {
                write!(f, "start {start}: {fault:?} to {target:?} after {after} ms")
            }
            Self::Reader { start, after, reader } => {
                write!(f, "start {start}: {reader:?} beside it after {after} ms")
            }
            Self::Predicted(ranks) => write!(f, "predicted by {ranks} ranks"),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, model) = (self.kind.name, self.model.0);
        write!(f, "schedule {}: {kind}, {model}, {} starts", self.seed, self.n_disturbed + 1)?;
        self.parts.iter().try_for_each(|(n, part)| write!(f, "\n  {n:>2}  {part}"))
    }
}

#[test]
fn a_seed_is_one_schedule_and_neighbours_share_a_recipe() {
    let text = |seed| Schedule::of(seed, None).to_string();
    assert_eq!(text(17), text(17));
    assert_ne!(text(16), text(17));
    assert_eq!(Schedule::of(16, None).settings(), Schedule::of(17, None).settings());
    let whole = Schedule::of(17, None);
    let n = whole.parts.len();
    let (some, rest): (Vec<usize>, Vec<usize>) = (0..n).partition(|number| number % 2 == 0);
    assert_eq!(Schedule::of(17, Some(&some)).numbers(), whole.without(&rest).numbers());
}
