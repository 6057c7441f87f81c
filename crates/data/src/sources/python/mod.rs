//! `data.name = "python"`: samples of a class or function that the user has written in Python.
//!
//! A rank asks worker processes for its samples, one for each of its loader threads: `worker` starts
//! them and speaks with `worker.py`, `samples` and `numbers` read what they send, and `data_set` is
//! what the experiment chooses.

mod numbers;
mod worker;
mod samples;
mod data_set;

pub use data_set::PythonData;
