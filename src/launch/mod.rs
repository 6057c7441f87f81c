//! launch

mod memory;

pub use memory::shared_memory;
