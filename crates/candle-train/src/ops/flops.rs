//! Counts the floating-point operations of products, to say what a model costs.

use std::cell::Cell;

thread_local! {
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

/// What `f` returns, and the operations of the products whose forward pass this thread began in it:
/// two for each multiplication of a convolution, a linear layer or an attention (its masked half
/// too), as `torch.utils.flop_counter` counts them.
pub fn count_flops<R>(f: impl FnOnce() -> R) -> (R, u64) {
    let before = COUNTED.get();
    let result = f();
    (result, COUNTED.get().wrapping_sub(before))
}

/// A product of so many multiplications begins.
pub(super) fn add_multiplications(count: usize) {
    COUNTED.set(COUNTED.get().wrapping_add(2 * count as u64));
}
