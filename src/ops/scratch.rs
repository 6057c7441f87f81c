//! Work memory that a thread keeps from one operation to the next: neither allocated nor cleared again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use rayon::prelude::*;

/// Zeros per block of [`zeros`].
const BLOCK: usize = 4096;

/// `n` zeros, written by all threads: `vec![0.0; n]` of memory that was used before is the work of one.
pub(super) fn zeros(n: usize) -> Vec<f32> {
    if n < 16 * BLOCK {
        return vec![0.0; n];
    }
    let mut blocks: Vec<[f32; BLOCK]> = Vec::new();
    (0..n.div_ceil(BLOCK)).into_par_iter().map(|_| [0.0; BLOCK]).collect_into_vec(&mut blocks);
    let mut zeros = blocks.into_flattened();
    zeros.truncate(n);
    zeros
}

/// Buffers that a thread keeps; attention's backward needs eight at a time, others two or three.
const KEPT: usize = 10;

thread_local! {
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Work memory of some length, given back when it is dropped.
pub(super) struct Scratch {
    buffer: Vec<f32>,
    len: usize,
}

impl Scratch {
    /// `len` values, whatever they are: they are to be written before they are read.
    pub(super) fn new(len: usize) -> Self {
        let mut buffer = FREE.with_borrow_mut(|free| {
            // The smallest that is large enough, or else the largest, which grows.
            let fits = free.iter().position(|buffer| buffer.len() >= len);
            let at = fits.or_else(|| free.len().checked_sub(1));
            at.map(|at| free.remove(at)).unwrap_or_default()
        });
        if buffer.len() < len {
            buffer = vec![0.0; len];
        }
        Self { buffer, len }
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        // A thread that ends has no list any more: its memory goes with it.
        let _gone = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            let at = free.partition_point(|other| other.len() < buffer.len());
            free.insert(at, buffer);
            if free.len() > KEPT {
                free.remove(0);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_as_many_as_asked_for() {
        for n in [0, 1, 16 * BLOCK - 1, 16 * BLOCK, 17 * BLOCK + 3] {
            assert!(zeros(n).len() == n && zeros(n).iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn memory_is_found_again_by_the_thread_that_gave_it_back() {
        let mut first = Scratch::new(10);
        first.fill(7.0);
        let at = first.as_ptr();
        drop(first);
        let (again, other) = (Scratch::new(6), Scratch::new(6));
        assert_eq!((again.as_ptr(), again.len()), (at, 6));
        assert_ne!(other.as_ptr(), at);
        assert_eq!(*again, [7.0; 6]);
        drop((again, other));
        assert_eq!(Scratch::new(9).as_ptr(), at, "the smallest that is large enough");
        assert_eq!(*Scratch::new(100), [0.0; 100]);
    }
}
