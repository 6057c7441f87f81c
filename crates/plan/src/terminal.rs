//! Text as a terminal may show it: made harmless, and in lines that fit.

mod escape;
mod wrap;

pub use escape::{escape, mask};
pub use wrap::{fitted, message, wrapped};
