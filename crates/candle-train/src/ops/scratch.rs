//! Work memory that a thread keeps from one operation to the next: neither allocated nor cleared
//! again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use rayon::prelude::*;

/// Zeros that one thread writes.
const BLOCK: usize = 1 << 16;

/// Pieces of work at least, where there are as many blocks.
const PIECES: usize = 64;

/// `n` zeros, written by all threads: `vec![0.0; n]` of memory that was used before is the work of
/// one.
pub(super) fn zeros<T: Copy + Default + Send>(n: usize) -> Vec<T> {
    filled(n, BLOCK, |_, _| {})
}

/// `n` values in blocks of `block`, in parallel: `fill(start, values)` is given each block, zeroed
/// just before, so that it finds it in the cache, and memory is written once.
pub(super) fn filled<T: Copy + Default + Send>(
    n: usize,
    block: usize,
    fill: impl Fn(usize, &mut [T]) + Sync,
) -> Vec<T> {
    let ([values], _) =
        filled_blocks(&lengths(n, block), |index, [values]| fill(index * block, values));
    values
}

/// Lengths of the blocks of `n` values.
pub(super) fn lengths(n: usize, block: usize) -> Vec<usize> {
    (0..n).step_by(block.max(1)).map(|start| block.min(n - start)).collect()
}

/// [`filled`] of `N` vectors, of which `fill` is given the same block.
pub(super) fn filled_together<const N: usize>(
    n: usize,
    block: usize,
    fill: impl Fn(usize, [&mut [f32]; N]) + Sync,
) -> [Vec<f32>; N] {
    let (values, _) =
        filled_blocks(&lengths(n, block), |index, blocks| fill(index * block, blocks));
    values
}

/// [`filled_together`] of blocks of any lengths, which `fill` is given by their numbers, and what
/// it returns of each.
#[expect(unsafe_code, reason = "memory is handed out before all of it is written")]
pub(super) fn filled_blocks<T: Copy + Default + Send, R: Send, const N: usize>(
    lens: &[usize],
    fill: impl Fn(usize, [&mut [T]; N]) -> R + Sync,
) -> ([Vec<T>; N], Vec<R>) {
    let n = lens.iter().sum();
    let mut vectors: [Vec<T>; N] = std::array::from_fn(|_| Vec::with_capacity(n));
    let mut rest = vectors.each_mut().map(|values| &mut values.spare_capacity_mut()[..n]);
    let next =
        |&len: &usize| rest.each_mut().map(|rest| rest.split_off_mut(..len).unwrap_or_default());
    let blocks: Vec<_> = lens.iter().map(next).collect();
    // Many small pieces of work, so that a core that is slower for a while takes fewer of them.
    let together = blocks.len().div_ceil(PIECES).max(1);
    let blocks = blocks.into_par_iter().enumerate().with_max_len(together);
    let results = blocks.map(|(index, blocks)| {
        let zeroed = blocks.map(|values| {
            for value in &mut *values {
                value.write(T::default());
            }
            // SAFETY: each value was written by the loop.
            unsafe { values.assume_init_mut() }
        });
        fill(index, zeroed)
    });
    let results = results.collect();
    for values in &mut vectors {
        // SAFETY: the blocks are the first `n` values, and each was written.
        unsafe { values.set_len(n) };
    }
    (vectors, results)
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
        for n in [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 3] {
            let values: Vec<f32> = zeros(n);
            assert!(values.len() == n && values.iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn each_block_is_given_once_and_zeroed() {
        for (n, block) in [(0, 4), (0, 0), (1, 4), (8, 4), (11, 4), (3, 100)] {
            let values = filled(n, block, |start, values| {
                assert!(values.len() <= block && values.iter().all(|value| *value == 0.0));
                values.iter_mut().enumerate().for_each(|(i, value)| *value = (start + i) as f32);
            });
            assert!(values.len() == n && values.iter().enumerate().all(|(i, v)| *v == i as f32));
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
