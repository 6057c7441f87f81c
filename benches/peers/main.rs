//! ddprun against PyTorch on the same work, in alternating pairs. `just bench-peers [NAME ...]` is
//! the usual way in.
//!
//! ```text
//! PYTHON=/venv/bin/python cargo bench -p ddprun-benches --bench peers -- \
//!     pairs [NAME ...] [--pairs 5] [--ranks 1 --threads 2] [--dtype bf16]               both sides
//! cargo bench -p ddprun-benches --bench peers -- train NAME [--ranks 2] [--threads 1] [--dtype bf16]      our side alone
//! cargo bench -p ddprun-benches --bench peers -- list
//! ```
//!
//! `list` names what can be compared. PyTorch's programs lie next to this file. Both sides run real
//! steps on samples that are already in memory; ours are real ranks, started and watched as
//! `ddprun` does it.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a benchmark may stop, prints, and reads its own variables"
)]

mod compare;
mod python;
mod rank;
mod work;

use std::process::ExitCode;

use rank::Task;
use work::{Shape, WORKS, Work};

/// As the command `ddprun`.
#[global_allocator]
static ALLOCATOR: ddprun::memory::Allocator = ddprun::memory::Allocator;

/// Arguments of the command line.
struct Args(Vec<String>);

impl Args {
    /// The number after `flag`.
    fn number(&self, flag: &str, default: f64) -> f64 {
        let at = self.0.iter().position(|word| word == flag);
        let word = at.and_then(|at| self.0.get(at + 1));
        word.map_or(default, |word| word.parse().unwrap_or_else(|_| panic!("{flag} {word}")))
    }

    fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|word| word == flag)
    }

    /// Ranks, threads of each, and the precision.
    fn shape(&self) -> Shape {
        let dtype = self.0.iter().position(|word| word == "--dtype");
        let dtype = dtype.and_then(|at| self.0.get(at + 1)).map_or("fp32", String::as_str);
        let [ranks, threads] = ["--ranks", "--threads"].map(|flag| self.number(flag, 1.0) as u32);
        Shape { ranks, threads, dtype: dtype.to_owned() }
    }

    /// The words from `first` on that are neither a flag nor its number.
    fn names(&self, first: usize) -> Vec<String> {
        let is_number = |at: usize| at > 0 && self.0[at - 1].starts_with("--");
        let words = self.0.iter().enumerate().skip(first);
        let names = words.filter(|(at, word)| !word.starts_with("--") && !is_number(*at));
        names.map(|(_, word)| word.clone()).collect()
    }
}

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let words = Args(std::env::args().skip(1).filter(|word| word != "--bench").collect());
    let task = Task {
        repetitions: words.number("--repetitions", 3.0) as usize,
        seconds: words.number("--seconds", 2.0),
    };
    match words.0.first().map(String::as_str) {
        Some("worker") => rank::run(named(&words), task),
        Some("train") => {
            return rank::train(named(&words), &words.shape(), task);
        }
        Some("pairs") => {
            let Shape { ranks, threads, dtype } = words.shape();
            let only = compare::Selection {
                shape: words.has("--threads").then_some((ranks, threads)),
                precision: words.has("--dtype").then_some(dtype),
            };
            compare::all(&words.names(1), words.number("--pairs", 5.0) as usize, &only);
        }
        Some("list") => println!("{}", compare::names().join("\n")),
        // `cargo bench` without a name: this program takes long and needs a Python.
        _ => println!("peers: nothing was asked for; see `just bench-peers`"),
    }
    ExitCode::SUCCESS
}

fn named(words: &Args) -> &'static Work {
    let name = words.0.get(1).map_or("", String::as_str);
    let known: Vec<&str> = WORKS.iter().map(|work| work.name).collect();
    Work::of(name).unwrap_or_else(|| panic!("no work is called `{name}`; there are {known:?}"))
}
