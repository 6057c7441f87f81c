//! Buffers of pixels that a loader thread uses again for its next image.

use std::cell::RefCell;

/// Most buffers that a thread keeps: the decoded image, the resized one, and one more.
const MAX_BUFFERS: usize = 3;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of `length` bytes with arbitrary contents.
pub(crate) fn take(length: usize) -> Vec<u8> {
    let mut buffer = SPARE.with_borrow_mut(|spare| {
        // The smallest that is long enough, else the longest: what grows has to be cleared.
        let best = (0..spare.len()).min_by_key(|&i| {
            let have = spare[i].len();
            if have >= length { (0, have) } else { (1, usize::MAX - have) }
        });
        best.map(|i| spare.swap_remove(i)).unwrap_or_default()
    });
    buffer.resize(length, 0);
    buffer
}

/// Keeps a buffer for [`take`].
pub(crate) fn give(buffer: Vec<u8>) {
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < MAX_BUFFERS {
            spare.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_buffer_that_is_long_enough_is_used_again() {
        let large = vec![1; 100];
        let (small_at, large_at) = {
            let small = vec![2; 10];
            let places = (small.as_ptr(), large.as_ptr());
            give(small);
            give(large);
            places
        };
        let (found, other) = (take(8), take(90));
        assert_eq!((found.as_ptr(), found.len()), (small_at, 8));
        assert_eq!((other.as_ptr(), other.len()), (large_at, 90));
        assert_eq!(take(5), [0; 5]);
    }
}
