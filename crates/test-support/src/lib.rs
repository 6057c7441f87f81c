//! What the tests of several crates share: damaged inputs, and notes of what could not be tested.

pub mod mutated;
pub mod skipped;
