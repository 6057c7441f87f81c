//! The names by which kernels are launched.

use std::path::Path;

use crate::emulator::emulator;

/// Whether there is a kernel of the name `wanted`, which may have places for what is put into it:
/// at its end, each of the number types.
fn is_there(names: &[String], wanted: &str) -> bool {
    let begins = |stem: &str| names.iter().any(|name| name.starts_with(stem));
    let is_typed = |stem: &str| {
        let of_type = |number| names.contains(&format!("{stem}{number}"));
        ["f32", "bf16", "f16"].into_iter().all(of_type)
    };
    match wanted.split_once('{') {
        // The name stands elsewhere, and is looked for there.
        Some(("", _)) => true,
        Some((stem, "}" | "name}")) => is_typed(stem),
        Some((stem, _)) => begins(stem),
        None => {
            names.iter().any(|name| name == wanted)
                || is_typed(&format!("{wanted}_"))
                || begins(&format!("attention_{wanted}_"))
        }
    }
}

/// Words in quotes of lines that launch something or name a kernel, and of the line after each.
fn wanted_in(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().starts_with("//")).collect();
    let says = |line: &str| ["launch", "kernel", "reorder("].iter().any(|word| line.contains(word));
    let near = lines.windows(2).filter(|lines| says(lines[0])).flatten();
    let words = near.flat_map(|line| line.split('"').skip(1).step_by(2));
    let is_name = |word: &&str| {
        let is_of_name =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_{}".contains(c);
        !word.is_empty() && word.chars().all(is_of_name)
    };
    words.filter(is_name).collect()
}

#[test]
fn every_kernel_that_is_launched_is_there() {
    let Some(gpu) = emulator() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops/cuda");
    let mut found = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Those named so translate kernels, and launch none.
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        if !is_rust || name.starts_with("kernel_") {
            continue;
        }
        for wanted in wanted_in(&std::fs::read_to_string(&path).unwrap()) {
            assert!(is_there(&gpu.names, wanted), "{name}: no kernel `{wanted}`");
            found += 1;
        }
    }
    assert!(found > 80, "{found} names");
}
