//! A disc that an agent pushes to a goal, after Push-T (Florence et al., 2021; Chi et al., 2023),
//! without rotation: the agent starts in front of the disc and must go around it, by the left or by
//! the right. Both are right, their mean is not: it leads into the disc and pushes it away.

mod geometry;
mod arena;
mod draw;
mod expert;

pub use arena::{ARENA, GOAL, MAX_STEPS, Push, RADII, TOLERANCE};
pub use draw::draw;
pub use expert::{Demonstrations, demonstrate};
