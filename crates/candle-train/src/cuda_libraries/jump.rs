//! Functions of C that jump to where a library has them. What they are given is not looked at:
//! every register that may hold an argument is kept over the search.

use super::resolve;

/// Defines functions of a library under their own names.
macro_rules! functions {
    ($library:ident: $($name:ident)*) => { $(
        const _: () = {
            static FUNCTION: Function = Function {
                at: AtomicUsize::new(0),
                library: &$library,
                name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                },
            };

            // SAFETY: the name is the library's, and nothing else defines it; the function leaves
            // stack and registers as it found them, so that it is whatever it jumps to.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                naked_asm!(
                    "mov r11, qword ptr [rip + {function}]",
                    "test r11, r11",
                    "je 2f",
                    "jmp r11",
                    "2:",
                    "lea r11, [rip + {function}]",
                    "jmp {find}",
                    function = sym FUNCTION,
                    find = sym find,
                );
                #[cfg(target_arch = "aarch64")]
                naked_asm!(
                    "adrp x16, {function}",
                    "add x16, x16, :lo12:{function}",
                    "ldr x17, [x16]",
                    "cbz x17, 2f",
                    "br x17",
                    "2:",
                    "b {find}",
                    function = sym FUNCTION,
                    find = sym find,
                );
            }
        };
    )* };
}
pub(super) use functions;

/// Asks [`resolve`] for the function whose record is in r11, and jumps there with the arguments
/// untouched.
// SAFETY: reached by a jump, with the stack as at a call: 8 bytes off a multiple of 16, so 7
// registers of 8 bytes and 8 of 16 leave it at one, as a call wants it. All that may hold arguments
// (System V ABI, 3.2.3) is kept.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) extern "C" fn find() {
    std::arch::naked_asm!(
        "push rax",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov rdi, r11",
        "call {resolve}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "jmp r11",
        resolve = sym resolve,
    );
}

/// Asks [`resolve`] for the function whose record is in x16, and jumps there with the arguments
/// untouched.
// SAFETY: reached by a jump, with the stack as at a call. All that may hold arguments or the way
// back (AAPCS64, 6.8) is kept, on a stack that stays at multiples of 16.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) extern "C" fn find() {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "stp x0, x1, [sp, #-16]!",
        "stp x2, x3, [sp, #-16]!",
        "stp x4, x5, [sp, #-16]!",
        "stp x6, x7, [sp, #-16]!",
        "stp x8, x9, [sp, #-16]!",
        "stp q0, q1, [sp, #-32]!",
        "stp q2, q3, [sp, #-32]!",
        "stp q4, q5, [sp, #-32]!",
        "stp q6, q7, [sp, #-32]!",
        "mov x0, x16",
        "bl {resolve}",
        "mov x16, x0",
        "ldp q6, q7, [sp], #32",
        "ldp q4, q5, [sp], #32",
        "ldp q2, q3, [sp], #32",
        "ldp q0, q1, [sp], #32",
        "ldp x8, x9, [sp], #16",
        "ldp x6, x7, [sp], #16",
        "ldp x4, x5, [sp], #16",
        "ldp x2, x3, [sp], #16",
        "ldp x0, x1, [sp], #16",
        "ldp x29, x30, [sp], #16",
        "br x16",
        resolve = sym resolve,
    );
}
