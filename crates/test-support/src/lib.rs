//! Helpers for the tests of several crates: damaged inputs, notes of skipped tests, and assertions
//! on error messages, and the states of processes; and a server that imitates the Hugging Face hub.

use std::fmt::Display;

pub mod hub_server;
pub mod mutated;
pub mod processes;
pub mod skipped;

/// Asserts that `result` is an error whose message contains `part`.
///
/// # Panics
///
/// `result` is no error, or its message says something else.
#[expect(clippy::panic, reason = "for tests")]
#[track_caller]
pub fn assert_refused<T, E: Display>(result: Result<T, E>, part: &str) {
    match result {
        Ok(_) => panic!("nothing is wrong, instead of: {part}"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    }
}
