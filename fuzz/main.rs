//! The fuzz target that the environment variable `FUZZ_TARGET` names, a folder of `corpus`.

#![no_main]

use std::sync::OnceLock;

use ddprun::internals::fuzzing::{TARGETS, Target};

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: choose(),
    |bytes: &[u8]| if let Some(target) = TARGET.get() { target(bytes) }
);

fn choose() {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let Some((_, target)) = TARGETS.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("FUZZ_TARGET must be one of {}", names.join(", "));
        std::process::exit(2);
    };
    // Libraries panic at some damaged images and tables, and what they say is caught: only a panic
    // that leaves our code ends the fuzzer.
    if ["image", "parquet"].contains(&name.as_str()) {
        std::panic::set_hook(Box::new(|_| ()));
    }
    TARGET.get_or_init(|| *target);
}
