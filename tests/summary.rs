//! The last words of `cargo test`: what its tests left out on this machine, and why. Nothing to
//! test by itself.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test binary, which prints a list")]

use test_support::skipped;

fn main() {
    let folder = skipped::notes();
    let notes: Vec<String> = std::fs::read_dir(&folder).map_or_else(
        |_| Vec::new(),
        |files| files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect(),
    );
    println!("\ntests that could not run on this machine: {}", notes.len());
    let mut lines = notes;
    lines.sort();
    for line in &lines {
        print!("  {line}");
    }
    // The next run begins a list of its own.
    if !lines.is_empty() {
        std::fs::remove_dir_all(folder).unwrap();
    }
}
