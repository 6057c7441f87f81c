#![doc = include_str!("../README.md")]

mod arena;
mod expert;

pub use arena::{ARENA, GOAL, MAX_STEPS, PushEnv, RADII, TOLERANCE, draw};
pub use expert::{Demonstrations, demonstrate};
