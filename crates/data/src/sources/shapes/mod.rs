//! Generated images.

mod draw;
mod generated;

pub use generated::Shapes;
