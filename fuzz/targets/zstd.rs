#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ddprun::internals::fuzzing::zstd(bytes));
