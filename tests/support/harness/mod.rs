//! The program as tests run it: a folder in which the binary runs, its processes, what they train
//! and what they leave.

pub(crate) mod bits;
pub(crate) mod experiments;
pub(crate) mod faults;
pub(crate) mod lab;
pub(crate) mod running;
