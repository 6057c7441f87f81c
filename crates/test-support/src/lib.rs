//! What the tests of several crates share: damaged inputs, notes of what could not be tested, and
//! errors by their message.

use std::fmt::Display;

pub mod mutated;
pub mod skipped;

/// Asserts that `result` is an error whose message contains `part`.
///
/// # Panics
///
/// It is none, or says something else.
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
