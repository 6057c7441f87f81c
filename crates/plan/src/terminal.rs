//! Text as a terminal may show it: made harmless, and in lines that fit.

mod counted;
mod escape;
mod wrap;

pub use counted::counted;
pub use escape::{escape, escape_lines, mask};
pub use wrap::{fitted, message, wrapped};
