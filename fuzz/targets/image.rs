#![no_main]

// The library panics at some damaged files, and what it says is caught: only a panic that leaves
// ours ends the fuzzer.
libfuzzer_sys::fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| ())),
    |bytes: &[u8]| ddprun::internals::fuzzing::image(bytes)
);
