#![expect(unsafe_code, reason = "an allocator")]
//! An allocator for training: large blocks are kept for the next step instead of being given back
//! to the system and faulted in again, and are counted.
//!
//! A training step asks for the same sizes again and again. Sizes are rounded up to one of eight
//! classes per power of two; a freed block waits in the list of its class. Blocks in use and
//! waiting together stay below a multiple of what was in use at once: where a new block would
//! exceed it, one that waits is made as long as the new one, and what still exceeds it goes back to
//! the system. The multiple grows, within bounds, where blocks that went back are wanted again: the
//! system would clear their pages anew in every step.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::plan::KEPT_SHARE;
use crate::units::Bytes;

/// Smaller blocks are the system allocator's.
const LARGE_BLOCK: usize = 1 << 16;
/// Alignment of every mapping.
const PAGE: usize = 4096;
/// Classes per power of two.
const STEPS: usize = 8;
/// All classes, up to blocks of 2^46 bytes.
const CLASSES: usize = STEPS * 32;

static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks::NONE);

/// Record of denied memory: a file, and a position in it.
static DENIALS: OnceLock<(File, u64)> = OnceLock::new();

/// Has the bytes that the system denies us written at `place` of `file`: a process that is denied
/// memory aborts, and cannot say why by itself. Only the first call counts.
pub fn write_denials_to(file: File, place: u64) {
    drop(DENIALS.set((file, place)));
}

/// Writes down that `bytes` were denied, without memory. Returns null.
fn denied(bytes: usize) -> *mut u8 {
    if let Some((file, place)) = DENIALS.get() {
        // The caller learns it anyway.
        let _ = file.write_all_at(&(bytes as u64).to_le_bytes(), *place);
    }
    ptr::null_mut()
}

/// `block`, or what is to be done without one.
fn given(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() { denied(bytes) } else { block }
}

/// True if this process has the [`Allocator`], which is known from its first large block on;
/// without it nothing is counted.
pub fn is_installed() -> bool {
    blocks().most > 0
}

/// Bytes of large blocks in use right now; 0 without the [`Allocator`].
pub fn in_use() -> Bytes {
    Bytes(blocks().bytes_in_use as u64)
}

/// Most bytes of large blocks in use at once since [`reset_peak`]; 0 without the [`Allocator`].
pub fn peak() -> Bytes {
    Bytes(blocks().peak as u64)
}

/// Begins to look for the peak anew.
pub fn reset_peak() {
    let mut blocks = blocks();
    blocks.peak = blocks.bytes_in_use;
}

/// Most bytes that the process had resident, its part of shared mappings included (`VmHWM`); `None`
/// where the system does not tell.
pub fn most_resident() -> Option<Bytes> {
    status("VmHWM:")
}

/// Memory that this process has resident; `None` where the system does not tell.
pub fn resident() -> Option<Bytes> {
    status("VmRSS:")
}

/// Resident memory of the program and its libraries in a process that has computed with them
/// (`RssFile`), more in a development build than in a release; `None` if the system does not tell.
pub fn of_program() -> Option<Bytes> {
    status("RssFile:")
}

fn status(key: &str) -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse().ok().map(|kib: u64| Bytes(kib << 10))
}

/// Kinds of pages that hold values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// This process's.
    Private,
    /// Shared memory's, mapped by several processes.
    Shared,
}

/// Gives the whole pages among those of `values` back to the system; they come again, as zeros,
/// when they are next touched. A system that refuses leaves everything as it is.
pub fn release_pages(values: &mut [f32], pages: Pages) {
    let range = values.as_mut_ptr_range();
    // The system's, which is larger than [`PAGE`] on some: it rounds lengths up.
    let page = rustix::param::page_size();
    let start = range.start.addr().next_multiple_of(page);
    let end = range.end.addr() / page * page;
    if start >= end {
        return;
    }
    let advice = match pages {
        Pages::Private => Advice::LinuxDontNeed,
        Pages::Shared => Advice::LinuxRemove,
    };
    let first = range.start.with_addr(start);
    // SAFETY: the pages lie inside `values`, which is borrowed mutably; any bits are an f32.
    let _ = unsafe { rustix::mm::madvise(first.cast(), end - start, advice) };
}

/// The allocator, which a program installs in its own binary; the `ddprun` command does. Without it
/// training works, but large blocks are faulted in again at each step, the memory of activations is
/// unknown to `ddprun plan`, and a rank that is denied memory cannot say how much it asked for.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: ddprun_host::memory::Allocator = ddprun_host::memory::Allocator;
///
/// let block = vec![1u8; 1 << 20];
/// assert!(ddprun_host::memory::is_installed() && ddprun_host::memory::in_use().0 >= 1 << 20);
/// # drop(block);
/// ```
pub struct Allocator;

/// Waiting blocks, and the bytes in use.
struct Blocks {
    /// The first block of each class.
    waiting: [Option<NonNull<FreeBlock>>; CLASSES],
    bytes_waiting: usize,
    bytes_in_use: usize,
    /// Most bytes in use since the last reset.
    peak: usize,
    /// Most bytes ever in use.
    most: usize,
    /// Blocks of each class that went back to the system or became others, and were not requested
    /// since.
    released: [u32; CLASSES],
    /// Bytes of blocks that went back and were wanted again.
    missed: usize,
}

/// The beginning of a block that is not in use.
struct FreeBlock {
    next: Option<NonNull<FreeBlock>>,
}

// SAFETY: the blocks that it points to are not used elsewhere.
unsafe impl Send for Blocks {}

fn blocks() -> MutexGuard<'static, Blocks> {
    // Nothing below can panic while it holds the lock.
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The class of blocks of `size` bytes, at least [`LARGE_BLOCK`], and their bytes: a multiple of
/// [`PAGE`].
fn class(size: usize) -> (usize, usize) {
    let power = (size - 1).ilog2() as usize;
    let step = (1 << power) / STEPS;
    let steps = (size - (1 << power)).div_ceil(step);
    ((power + 1 - LARGE_BLOCK.ilog2() as usize) * STEPS + steps, (1 << power) + steps * step)
}

fn is_large(layout: &Layout) -> bool {
    (LARGE_BLOCK..1 << 46).contains(&layout.size()) && layout.align() <= PAGE
}

impl Blocks {
    /// Nothing was asked for yet.
    const NONE: Self = Self {
        waiting: [None; CLASSES],
        bytes_waiting: 0,
        bytes_in_use: 0,
        peak: 0,
        most: 0,
        released: [0; CLASSES],
        missed: 0,
    };

    /// A waiting block of `class`, which is in use from now on.
    fn reuse(&mut self, class: usize, bytes: usize) -> Option<NonNull<FreeBlock>> {
        let block = self.waiting[class]?;
        // SAFETY: a waiting block begins with its link, and belongs to us alone.
        self.waiting[class] = unsafe { block.as_ref().next };
        self.bytes_waiting -= bytes;
        Some(block)
    }

    fn wait(&mut self, class: usize, bytes: usize, block: NonNull<FreeBlock>) {
        // SAFETY: the block is mapped, aligned to a page, longer than a link, and it is no longer
        // used.
        unsafe { block.write(FreeBlock { next: self.waiting[class] }) };
        self.waiting[class] = Some(block);
        self.bytes_waiting += bytes;
        self.bytes_in_use -= bytes;
    }

    fn count(&mut self, bytes: usize) {
        self.bytes_in_use += bytes;
        self.peak = self.peak.max(self.bytes_in_use);
        self.most = self.most.max(self.bytes_in_use);
    }

    /// Bytes in use and waiting beyond what may be: a quarter above the most that was ever in use,
    /// and a sixteenth more where blocks were missed.
    fn excess(&self) -> usize {
        let missed = self.missed.min(self.most / (4 * KEPT_SHARE));
        let limit = self.most + self.most / KEPT_SHARE + missed;
        (self.bytes_waiting + self.bytes_in_use).saturating_sub(limit)
    }

    /// Notes that a new block of `class` is needed.
    fn miss(&mut self, class: usize, bytes: usize) {
        if let Some(fewer) = self.released[class].checked_sub(1) {
            self.released[class] = fewer;
            self.missed += bytes;
        }
    }

    /// The class of the smallest waiting block of at least `bytes`, or else of the largest.
    fn nearest(&self, bytes: usize) -> Option<usize> {
        let mut waiting = (0..CLASSES).filter(|&class| self.waiting[class].is_some());
        waiting.clone().find(|&class| bytes_of(class) >= bytes).or_else(|| waiting.next_back())
    }

    /// A waiting block of another class, made `bytes` long: only the pages that are added are
    /// cleared by the system. `None` where none waits, or it refuses.
    fn resized(&mut self, bytes: usize) -> Option<NonNull<FreeBlock>> {
        let class = self.nearest(bytes)?;
        let block = self.reuse(class, bytes_of(class))?;
        self.released[class] = self.released[class].saturating_add(1);
        let start = block.as_ptr().cast();
        let old = bytes_of(class);
        // SAFETY: the block is a whole mapping of `old` bytes that is not in use. An error leaves
        // it as it was.
        let moved = unsafe { rustix::mm::mremap(start, old, bytes, MremapFlags::MAYMOVE) };
        if moved.is_err() {
            // SAFETY: as above.
            let _ = unsafe { rustix::mm::munmap(start, old) };
        }
        NonNull::new(moved.ok()?.cast())
    }

    /// Gives waiting blocks back to the system until `excess` is zero or none are left: the
    /// smallest that is large enough, or else the largest.
    fn release(&mut self, excess: impl Fn(&Self) -> usize) {
        loop {
            let excess = excess(self);
            if excess == 0 {
                return;
            }
            let Some(class) = self.nearest(excess) else { return };
            let bytes = bytes_of(class);
            if let Some(block) = self.reuse(class, bytes) {
                self.released[class] = self.released[class].saturating_add(1);
                // SAFETY: the block is a whole mapping of `bytes` bytes that is not in use. An
                // error would mean that it is not, and leaves the memory to the end of the process.
                let _ = unsafe { rustix::mm::munmap(block.as_ptr().cast(), bytes) };
            }
        }
    }
}

/// Bytes of the blocks of `class`; the inverse of [`class`].
fn bytes_of(class: usize) -> usize {
    let power = class / STEPS + LARGE_BLOCK.ilog2() as usize - 1;
    (1 << power) + class % STEPS * ((1 << power) / STEPS)
}

/// A block for `size` bytes, and whether it is zeroed; null if the system has no memory.
fn take(size: usize) -> (*mut u8, bool) {
    let (class, bytes) = class(size);
    let mut blocks = blocks();
    blocks.count(bytes);
    if let Some(block) = blocks.reuse(class, bytes) {
        return (block.as_ptr().cast(), false);
    }
    blocks.miss(class, bytes);
    let resized = if blocks.excess() > 0 { blocks.resized(bytes) } else { None };
    blocks.release(Blocks::excess);
    drop(blocks);
    resized.map_or_else(|| (map(bytes), true), |block| (block.as_ptr().cast(), false))
}

/// A new zeroed mapping; null if the system refuses.
fn map(bytes: usize) -> *mut u8 {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a null hint lets the kernel choose a free range.
    let mapped = || unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, prot, flags) };
    let block = mapped().or_else(|_| {
        blocks().release(|_| usize::MAX);
        mapped()
    });
    let Ok(block) = block else {
        blocks().bytes_in_use -= bytes;
        return denied(bytes);
    };
    block.cast()
}

// SAFETY: a block is mapped for itself, at least as long as was asked for, aligned to a page, and
// given to one user at a time; whether it is ours or the system allocator's is decided by its
// layout alone.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return take(layout.size()).0;
        }
        // SAFETY: the caller's promise.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !is_large(&layout) {
            // SAFETY: the caller's promise.
            return given(unsafe { System.alloc_zeroed(layout) }, layout.size());
        }
        let (block, is_zeroed) = take(layout.size());
        if !is_zeroed && !block.is_null() {
            // SAFETY: the block is that long, and ours until we return it.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !is_large(&layout) {
            // SAFETY: the caller's promise.
            return unsafe { System.dealloc(block, layout) };
        }
        let (class, bytes) = class(layout.size());
        if let Some(block) = NonNull::new(block.cast()) {
            blocks().wait(class, bytes, block);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that makes a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(&layout), is_large(&new)) {
            // SAFETY: the caller's promise.
            (false, false) => given(unsafe { System.realloc(block, layout, size) }, size),
            (true, true) if class(layout.size()) == class(size) => block,
            _ => {
                // SAFETY: the caller's promise; both blocks hold the bytes that are copied, and
                // differ.
                unsafe {
                    let moved = self.alloc(new);
                    if !moved.is_null() {
                        moved.copy_from_nonoverlapping(block, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The allocator of all unit tests.
    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    proptest! {
        #[test]
        fn a_class_holds_its_sizes_and_wastes_at_most_an_eighth(size in LARGE_BLOCK..1usize << 40) {
            let (class, bytes) = class(size);
            prop_assert!(class < CLASSES && bytes.is_multiple_of(PAGE));
            prop_assert!(bytes >= size && bytes - size < size / 8 + 1);
            prop_assert_eq!(super::class(bytes), (class, bytes));
            prop_assert_eq!(bytes_of(class), bytes);
        }
    }

    #[test]
    fn blocks_keep_their_values_when_they_grow_and_are_zero_when_asked_for() {
        for n in [1usize << 14, 20_000, 1 << 20] {
            let mut values: Vec<u32> = (0..n as u32).collect();
            values.reserve_exact(3 * n);
            values.extend(0..n as u32);
            values.shrink_to_fit();
            assert!(values.iter().enumerate().all(|(i, &v)| v as usize == i % n), "{n}");
            drop(values);
            let zeroed = vec![0u32; 2 * n];
            assert!(zeroed.iter().all(|&v| v == 0), "{n}");
        }
    }

    #[test]
    fn more_may_wait_once_blocks_that_went_back_are_wanted_again_but_a_sixteenth_at_most() {
        let mut blocks = Blocks { bytes_waiting: 31, bytes_in_use: 100, most: 100, ..Blocks::NONE };
        blocks.miss(3, 10);
        assert_eq!(blocks.excess(), 6, "a block of another size was never there");
        blocks.released[3] = 1;
        blocks.miss(3, 10);
        assert_eq!(blocks.excess(), 0);
        blocks.released[3] = 1;
        blocks.miss(3, 1000);
        blocks.bytes_waiting = 34;
        assert_eq!(blocks.excess(), 3);
    }

    #[test]
    fn a_block_that_was_made_longer_or_shorter_holds_what_is_written() {
        for (old, new) in [(1usize << 20, 3 << 20), (3 << 20, 1 << 20)] {
            let mut blocks = Blocks::NONE;
            blocks.bytes_in_use = bytes_of(class(old).0);
            let block = NonNull::new(map(old).cast()).unwrap();
            blocks.wait(class(old).0, old, block);
            let block = blocks.resized(new).unwrap();
            assert_eq!((blocks.bytes_waiting, blocks.released[class(old).0]), (0, 1));
            assert!(blocks.resized(new).is_none(), "none waits any more");
            // SAFETY: a mapping of `new` bytes of our own.
            unsafe {
                block.as_ptr().cast::<u8>().write_bytes(7, new);
                rustix::mm::munmap(block.as_ptr().cast(), new).unwrap();
            }
        }
    }

    #[test]
    fn blocks_are_counted_while_they_are_in_use() {
        // Far more than what other tests use at the same time.
        const N: usize = 1 << 30;
        let block = Vec::<u8>::with_capacity(N);
        assert!(is_installed() && in_use().0 >= N as u64 && peak() >= in_use());
        drop(block);
        assert!(in_use().0 < N as u64);
    }
}
