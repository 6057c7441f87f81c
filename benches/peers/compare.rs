//! Alternating pairs: ours, theirs, ours, theirs ... and the ratio of each pair.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

use serde_json::Value;

use crate::python::Python;
use crate::work::WORKS;

/// Time by name, in any unit that both sides share; less is better.
type Figures = BTreeMap<String, f64>;

/// Ranks, and threads of each.
pub(crate) type Shape = (u32, u32);

/// In which training is compared, if not told otherwise.
const SHAPES: [Shape; 3] = [(1, 1), (1, 2), (2, 1)];

/// Precisions in which both sides train; bf16 is autocast.
const PRECISIONS: [&str; 2] = ["fp32", "bf16"];
/// Runs of each mode by whose median the fastest is chosen.
const TRIALS: usize = 3;
/// Times that a run that fails is tried.
const TRIES: usize = 3;

/// Part of the comparisons of training that is made, where not all are.
pub(crate) struct Selection {
    pub(crate) shape: Option<Shape>,
    pub(crate) precision: Option<String>,
}

/// Takes a time out of a line that a program printed.
type Read = fn(&Value) -> Option<(String, f64)>;

/// One side of a comparison.
struct Side {
    command: Command,
    /// `None`: the figure is the whole time of the command.
    read: Option<Read>,
}

/// A comparison with a name.
struct Comparison {
    name: &'static str,
    /// Text before the figure's own name.
    label: String,
    /// Precision of training.
    precision: Option<&'static str>,
    ours: Side,
    /// PyTorch in each of its modes; the fastest counts.
    theirs: Vec<(String, Side)>,
}

/// Runs the comparisons of the given names (all without one), and prints a line for each and a
/// table of all.
pub(crate) fn all(names: &[String], pairs: usize, only: &Selection) {
    let python = Python::open();
    let wanted = |comparison: &Comparison| {
        names.is_empty() || names.iter().any(|name| name == comparison.name)
    };
    let mut tables = Tables::default();
    for comparison in comparisons(&python, only).into_iter().filter(wanted) {
        tables.add(comparison, pairs);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "\nddprun {}, {}, {cores} cores, {pairs} pairs\n",
        env!("CARGO_PKG_VERSION"),
        python.version()
    );
    println!("| work | ddprun | PyTorch | ratio: median (least to most) |\n|---|---|---|---|");
    for row in tables.rows.iter().chain(&tables.best_of_each()) {
        println!("{row}");
    }
    println!("\n| work | PyTorch's mode | median of {TRIALS} runs |\n|---|---|---|");
    for row in tables.modes {
        println!("{row}");
    }
}

/// Rows of the tables so far.
#[derive(Default)]
struct Tables {
    rows: Vec<String>,
    /// Each mode of PyTorch.
    modes: Vec<String>,
    /// Training: medians of ours and of PyTorch's fastest mode, by label and precision.
    training: BTreeMap<String, Vec<(&'static str, [f64; 2])>>,
}

impl Tables {
    fn add(&mut self, comparison: Comparison, pairs: usize) {
        let (label, precision) = (comparison.label.clone(), comparison.precision);
        for Row { text, medians } in compare(comparison, pairs, &mut self.modes) {
            self.rows.push(text);
            if let Some(precision) = precision {
                self.training.entry(label.clone()).or_default().push((precision, medians));
            }
        }
    }

    /// Our fastest precision against PyTorch's fastest mode in any.
    fn best_of_each(&self) -> Vec<String> {
        let least = |found: &[(&'static str, [f64; 2])], side: usize| {
            let by_time = |a: &&(_, [f64; 2]), b: &&(_, [f64; 2])| a.1[side].total_cmp(&b.1[side]);
            found.iter().min_by(by_time).map(|(precision, medians)| (*precision, medians[side]))
        };
        let row = |(label, found): (&String, &Vec<_>)| {
            let ((own, ours), (other, theirs)) = (least(found, 0)?, least(found, 1)?);
            let (ratio, [ours, theirs]) =
                (theirs / ours, [ours, theirs].map(|time| milliseconds(vec![time])));
            let text = format!("| {label}, best of each | {ours} ({own}) | {theirs} ({other}) |");
            (found.len() > 1).then(|| format!("{text} {ratio:.2}x |"))
        };
        self.training.iter().filter_map(row).collect()
    }
}

/// A row of the table, and its times: ours, PyTorch's.
struct Row {
    text: String,
    medians: [f64; 2],
}

/// Names of all comparisons.
pub(crate) fn names() -> Vec<&'static str> {
    let works = WORKS.iter().map(|work| work.name);
    works
        .chain(["allreduce", "startup", "first_step", "loader", "rand_augment", "checkpoint"])
        .collect()
}

fn comparisons(python: &Python, only: &Selection) -> Vec<Comparison> {
    let mut all = Vec::new();
    let is_wanted =
        |precision: &&str| only.precision.as_ref().is_none_or(|wanted| wanted == precision);
    for work in &WORKS {
        let shapes = only.shape.map_or(SHAPES.to_vec(), |shape| vec![shape]);
        for shape in shapes {
            let precisions = PRECISIONS.into_iter().filter(is_wanted);
            all.extend(precisions.map(|precision| training(python, work.name, precision, shape)));
        }
    }
    all.extend([allreduce(python), startup(python), first_step(python)]);
    all.push(loader(python, "loader", "crop", "JPEG loader, 1 core"));
    all.push(loader(python, "rand_augment", "rand_augment", "the same with RandAugment"));
    all.push(checkpoint(python));
    all
}

/// A way to run PyTorch's training program: its name and flags.
type Mode = (String, String);

/// Every way to train with PyTorch that may be its fastest: each of its options alone and with the
/// others.
fn modes(precision: &str, has_images: bool, ranks: u32) -> Vec<Mode> {
    let options = [
        ("bucket_view", "--bucket-view", ranks > 1),
        ("fused", "--fused", true),
        ("channels_last", "--cl", has_images),
        ("compile", "--compile", true),
    ];
    let admitted = options.iter().filter(|(.., is_possible)| *is_possible);
    let none = vec![(Vec::new(), Vec::new())];
    let sets = admitted.fold(none, |sets: Vec<(Vec<&str>, Vec<&str>)>, (name, flag, _)| {
        let with = |(names, flags): &(Vec<&'static str>, Vec<&'static str>)| {
            ([&names[..], &[*name]].concat(), [&flags[..], &[*flag]].concat())
        };
        sets.iter().cloned().chain(sets.iter().map(with)).collect()
    });
    let mode = |(names, flags): (Vec<&str>, Vec<&str>)| {
        let name = if names.is_empty() { "default".to_owned() } else { names.join(" ") };
        (name, format!("--dtype {precision} {}", flags.join(" ")))
    };
    sets.into_iter().map(mode).collect()
}

/// Training in `precision` on both sides.
fn training(
    python: &Python,
    name: &'static str,
    precision: &'static str,
    (ranks, threads): Shape,
) -> Comparison {
    let ours =
        own(&format!("train {name} --ranks {ranks} --threads {threads} --dtype {precision}"));
    let ddp = if ranks > 1 { "--ddp" } else { "" };
    let theirs = modes(precision, name.starts_with("resnet"), ranks).into_iter();
    let theirs = theirs.map(|(mode, flags)| {
        let program = format!(
            "bench_train.py --model {name} --threads {threads} {flags} {ddp} --reps 3 --seg 2 --warm 1"
        );
        (mode, Side { command: python.command(&program, ranks > 1), read: Some(their_step) })
    });
    let unit = if ranks > 1 { "ranks" } else { "threads" };
    let label = format!("{name}, {} {unit}", ranks.max(threads));
    Comparison {
        name,
        label,
        precision: Some(precision),
        ours: Side { command: ours, read: Some(our_step) },
        theirs: theirs.collect(),
    }
}

fn allreduce(python: &Python) -> Comparison {
    let theirs =
        Side { command: python.command("bench_allreduce.py", true), read: Some(reduction) };
    Comparison {
        name: "allreduce",
        label: "all-reduce, 2 ranks".into(),
        precision: None,
        ours: Side { command: cargo("collectives"), read: Some(reduction) },
        theirs: vec![("gloo".to_owned(), theirs)],
    }
}

/// From the command to its end, with nothing between but the meeting of two ranks and, on our side,
/// a model and a step.
fn startup(python: &Python) -> Comparison {
    let theirs = Side { command: python.command("trivial.py", true), read: None };
    Comparison {
        name: "startup",
        label: "start, meet and end, 2 ranks".into(),
        precision: None,
        ours: Side { command: own("train mlp --ranks 2 --repetitions 0"), read: None },
        theirs: vec![("torchrun".to_owned(), theirs)],
    }
}

fn first_step(python: &Python) -> Comparison {
    let ours = own("train resnet18_imagenet --ranks 2 --repetitions 0");
    let theirs = Side { command: python.command("first_step.py", true), read: Some(first) };
    Comparison {
        name: "first_step",
        label: "command to first ResNet-18 step, 2 ranks".into(),
        precision: None,
        ours: Side { command: ours, read: Some(first) },
        theirs: vec![("torchrun".to_owned(), theirs)],
    }
}

/// JPEGs, cut at random, with these transforms.
fn loader(python: &Python, name: &'static str, transforms: &str, label: &str) -> Comparison {
    let images = python.scratch.join("jpegs/train");
    if !images.is_dir() {
        let made = python.command("gen_jpegs.py", false).status();
        assert!(made.is_ok_and(|status| status.success()), "the images are generated");
    }
    let mut ours = cargo("loader");
    ours.args(["--", "--json", transforms]).arg(&images).args(["0", "3"]);
    let theirs = python.command(&format!("bench_loader.py {transforms} 0 1 1"), false);
    Comparison {
        name,
        label: label.into(),
        precision: None,
        ours: Side { command: ours, read: Some(per_image) },
        theirs: vec![(
            "torchvision.io".to_owned(),
            Side { command: theirs, read: Some(per_image) },
        )],
    }
}

fn checkpoint(python: &Python) -> Comparison {
    let theirs = Side { command: python.command("bench_ckpt.py", false), read: Some(saved) };
    Comparison {
        name: "checkpoint",
        label: "checkpoint".into(),
        precision: None,
        ours: Side { command: cargo("checkpoint"), read: Some(saved) },
        theirs: vec![("safetensors".to_owned(), theirs)],
    }
}

/// This program.
fn own(words: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(words.split_whitespace());
    command
}

/// Another benchmark of this project.
fn cargo(bench: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["bench", "--locked", "--quiet", "--bench", bench]);
    command
}

fn our_step(line: &Value) -> Option<(String, f64)> {
    Some((String::new(), line["ms_per_step"].as_f64()?))
}

fn their_step(line: &Value) -> Option<(String, f64)> {
    Some((String::new(), line["modes"]["sync"]["ms_per_microbatch"].as_f64()?))
}

fn reduction(line: &Value) -> Option<(String, f64)> {
    let is_reduction = line["bench"].as_str()?.ends_with("_all_reduce");
    let (bytes, us) = (line["bytes"].as_u64()?, line["us"].as_f64()?);
    is_reduction.then(|| (format!("{:>9.3} MB", bytes as f64 / 1e6), us / 1e3))
}

fn first(line: &Value) -> Option<(String, f64)> {
    Some((String::new(), 1e3 * line["total_to_first_step"].as_f64()?))
}

fn per_image(line: &Value) -> Option<(String, f64)> {
    (line["bench"] == "loader").then_some(())?;
    let rate = line["img_s"].as_f64().or_else(|| line["steady_img_s"].as_f64())?;
    Some((String::new(), 1e3 / rate))
}

fn saved(line: &Value) -> Option<(String, f64)> {
    let name = match line["name"].as_str()? {
        name if name.starts_with("raw write + fsync") => "raw write + fsync",
        name if name.starts_with("safetensors save_file + fsync") => "save + fsync + rename",
        name if name.starts_with("safetensors load_file + copy") => "load into the model",
        _ => return None,
    };
    Some((name.to_owned(), 1e3 * line["s"].as_f64()?))
}

/// Runs one side, again if it fails: a rank of gloo now and then aborts as it ends.
fn run(side: &mut Side) -> Figures {
    let mut figures = Figures::new();
    for _ in 0..TRIES {
        figures = run_once(side);
        if !figures.is_empty() {
            break;
        }
    }
    figures
}

fn run_once(side: &mut Side) -> Figures {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    side.command.env("T0", now.as_secs_f64().to_string());
    side.command.stdin(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let output = side.command.output();
    let seconds = began.elapsed().as_secs_f64();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        eprintln!("failed: {:?}", side.command);
        return Figures::new();
    };
    let Some(read) = side.read else { return [(String::new(), 1e3 * seconds)].into() };
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| read(&line)).collect()
}

/// Rows of the table, one for each figure that both sides have; and one for each of `modes`.
fn compare(mut comparison: Comparison, pairs: usize, modes: &mut Vec<String>) -> Vec<Row> {
    let precision =
        comparison.precision.map_or(String::new(), |precision| format!(", {precision}"));
    comparison.label += &precision;
    let Some((mode, mut theirs)) = best_mode(&comparison.label, comparison.theirs, modes) else {
        return vec![];
    };
    let mut figures: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for _ in 0..pairs {
        let (ours, theirs) = (run(&mut comparison.ours), run(&mut theirs));
        for (name, ours) in ours {
            if let Some(&theirs) = theirs.get(&name) {
                figures.entry(name).or_default().push((ours, theirs));
            }
        }
    }
    let rows = figures.into_iter().map(|(name, pairs)| {
        let label = [comparison.label.as_str(), name.trim()].join(" ");
        let ratios = sorted(pairs.iter().map(|(ours, theirs)| theirs / ours));
        let ratio = spread(&ratios);
        println!("{}: {ratio}", label.trim());
        let (ours, theirs) = pairs.into_iter().unzip::<_, _, Vec<f64>, Vec<f64>>();
        let medians = [&ours, &theirs].map(|times| median(&sorted(times.iter().copied())));
        let (ours, theirs) = (milliseconds(ours), milliseconds(theirs));
        let text = format!("| {} | {ours} | {theirs} ({mode}) | {ratio} |", label.trim());
        Row { text, medians }
    });
    rows.collect()
}

/// The mode that is fastest by the median of some runs of each, in turn; a mode that fails here
/// does not count. Prints what each took, and adds it to `told`.
fn best_mode(
    label: &str,
    mut modes: Vec<(String, Side)>,
    told: &mut Vec<String>,
) -> Option<(String, Side)> {
    if modes.len() == 1 {
        return modes.pop();
    }
    let mut times = vec![Vec::new(); modes.len()];
    for _ in 0..TRIALS {
        for ((_, side), times) in modes.iter_mut().zip(&mut times) {
            times.extend(run(side).into_values().next());
        }
    }
    let mut timed: Vec<_> = modes
        .into_iter()
        .zip(times)
        .filter(|(_, times)| times.len() == TRIALS)
        .map(|(mode, times)| (median(&sorted(times)), mode))
        .collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let words: Vec<String> =
        timed.iter().map(|(time, (mode, _))| format!("{mode} {time:.2} ms")).collect();
    println!("{label}: PyTorch's modes, medians of {TRIALS} runs: {}", words.join(", "));
    let row =
        |(time, (mode, _)): &(f64, (String, Side))| format!("| {label} | {mode} | {time:.2} ms |");
    told.extend(timed.iter().map(row));
    timed.into_iter().next().map(|(_, mode)| mode)
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// `1.62x (1.55-1.70)`
fn spread(sorted: &[f64]) -> String {
    format!("{:.2}x ({:.2}-{:.2})", median(sorted), sorted[0], sorted[sorted.len() - 1])
}

fn milliseconds(values: Vec<f64>) -> String {
    let median = median(&sorted(values));
    let digits = if median < 0.1 { 4 } else { 2 };
    format!("{median:.digits$} ms")
}
