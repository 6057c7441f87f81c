#![doc = include_str!("../README.md")]

mod geometry;
mod arena;
mod draw;
mod expert;

pub use arena::{ARENA, GOAL, MAX_STEPS, Push, RADII, TOLERANCE};
pub use draw::draw;
pub use expert::{Demonstrations, demonstrate};
