//! Tables of constants that an operation reads in each pass, kept in the GPU's memory.

use std::cell::RefCell;
use std::collections::HashMap;

use candle_core::cuda_backend::DeviceId;
use candle_core::{Result, Shape, Tensor};

use super::gpu::Gpu;

/// What a table holds: its name, and the numbers that it is made of.
type Key = (&'static str, Vec<u64>);

/// The table of this name and these numbers, made once for each GPU of this thread.
pub(in crate::ops) fn table(
    gpu: &Gpu,
    key: Key,
    shape: impl Into<Shape>,
    make: impl FnOnce() -> Vec<f32>,
) -> Result<Tensor> {
    thread_local! {
        static TABLES: RefCell<HashMap<(DeviceId, Key), Tensor>> = RefCell::default();
    }
    TABLES.with_borrow_mut(|tables| {
        let key = (gpu.cuda().id(), key);
        if let Some(table) = tables.get(&key) {
            return Ok(table.clone());
        }
        let table = Tensor::from_vec(make(), shape, &gpu.device())?;
        tables.insert(key, table.clone());
        Ok(table)
    })
}
