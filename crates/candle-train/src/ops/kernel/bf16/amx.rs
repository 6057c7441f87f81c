//! The tiles of AMX, by inline assembly: the compiler's own functions for them are not stable.
#![expect(unsafe_code, reason = "instructions that the compiler has no stable functions for")]

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;

use super::Tile;

/// True if this processor multiplies tiles of bf16 numbers, and the system lets this process.
pub(super) fn is_permitted() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    let bits = __cpuid_count(7, 0).edx;
    bits & BF16 != 0 && bits & TILES != 0 && request_tiles()
}

/// Asks Linux for the tiles' registers, which its threads do not save by themselves.
#[cfg(target_os = "linux")]
fn request_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let answer: i64;
    // SAFETY: the call reads and writes no memory of ours; the kernel changes rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn request_tiles() -> bool {
    false
}

/// The shapes of the eight tiles: 16 rows of 64 bytes each.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    first_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPES: Shapes = Shapes {
    palette: 1,
    first_row: 0,
    reserved: [0; 14],
    bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The tiles of this thread, as long as it lives.
pub(super) struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// Shapes the tiles.
    ///
    /// # Safety
    ///
    /// [`is_permitted`] has said yes, and the thread has no other `Tiles`.
    pub(super) unsafe fn configure() -> Self {
        // SAFETY: reads 64 bytes of a static.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly)) };
        Self(PhantomData)
    }

    /// C, 32 rows of 32 values that begin `stride` bytes after each other, becomes or grows by A B,
    /// of which `a` and `b` hold pairs of tiles, 32 numbers deep each.
    ///
    /// # Safety
    ///
    /// `c` may be written to there.
    #[expect(clippy::unused_self, reason = "the tiles that are configured")]
    pub(super) unsafe fn multiply(
        &self,
        a: &[[Tile; 2]],
        b: &[[Tile; 2]],
        (c, stride): (*mut f32, usize),
        add: bool,
    ) {
        let depth = a.len().min(b.len());
        // SAFETY: A and B are read for `depth` pairs of tiles, C is the caller's; the tiles were
        // configured, since `self` is there. The compiler uses no tile itself.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jnz 2f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 3f",
                "2:",
                "tileloadd tmm0, [{c} + {stride}*1]",
                "tileloadd tmm1, [{c} + {stride}*1 + 64]",
                "tileloadd tmm2, [{lower} + {stride}*1]",
                "tileloadd tmm3, [{lower} + {stride}*1 + 64]",
                "3:",
                "test {depth}, {depth}",
                "jz 5f",
                "4:",
                "tileloadd tmm4, [{a} + {line}*1]",
                "tileloadd tmm6, [{b} + {line}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {line}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {line}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {depth}",
                "jnz 4b",
                "5:",
                "tilestored [{c} + {stride}*1], tmm0",
                "tilestored [{c} + {stride}*1 + 64], tmm1",
                "tilestored [{lower} + {stride}*1], tmm2",
                "tilestored [{lower} + {stride}*1 + 64], tmm3",
                add = in(reg) u32::from(add),
                a = inout(reg) a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                c = in(reg) c,
                lower = in(reg) c.wrapping_byte_add(16 * stride),
                stride = in(reg) stride,
                line = in(reg) 64usize,
                depth = inout(reg) depth => _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the tiles were configured by this thread; their values are needed no more.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
