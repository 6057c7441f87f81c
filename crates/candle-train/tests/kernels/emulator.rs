//! The kernels of the GPU, compiled as C++ and run on the CPU.
#![expect(clippy::disallowed_methods, reason = "a source that is written for the compiler")]
#![expect(unsafe_code, reason = "kernels are called through a library's symbols")]

#[path = "../../src/ops/cuda/kernel_text.rs"]
pub(crate) mod kernel_text;

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use candle_train::rng::{Key, Purpose};

use crate::skipped::skipped;
use kernel_text::{ATTENTION, COMMON, KERNELS};

/// Attention of every width, with dropout and without.
const OF_EVERY_WIDTH: &str = "
    #define WITH_AND_WITHOUT_DROPOUT(T, D) \\
        ATTENTION_KERNELS(T##_##D##_0, T, D, false) ATTENTION_KERNELS(T##_##D##_1, T, D, true)
    #define OF_EVERY_WIDTH(T) \\
        WITH_AND_WITHOUT_DROPOUT(T, 32) \\
        WITH_AND_WITHOUT_DROPOUT(T, 64) \\
        WITH_AND_WITHOUT_DROPOUT(T, 128)
    OF_EVERY_WIDTH(bf16) OF_EVERY_WIDTH(f16)
    ";

/// All kernels in one text.
pub(crate) fn all_kernels() -> String {
    [COMMON, KERNELS, ATTENTION, OF_EVERY_WIDTH].concat()
}

/// An argument of a kernel.
pub(crate) enum Arg<'a> {
    In(&'a [f32]),
    Out(&'a mut [f32]),
    Doubles(&'a mut [f64]),
    Words(&'a mut [u32]),
    Halves(&'a mut [u16]),
    Bytes(*mut c_void),
    Nothing,
    Count(u64),
    Flag(i32),
    Single(f32),
    Double(f64),
    /// A structure, by value.
    Whole(&'a [u32]),
}

/// Blocks and threads, (x, y, z) each.
pub(crate) type Shape = [u32; 6];

/// A small grid that strides over elements: several blocks, so that strides are seen.
pub(crate) const STRIDING: Shape = [3, 1, 1, 32, 1, 1];

/// A block for each of `n` rows.
pub(crate) fn rows(n: usize) -> Shape {
    [n as u32, 1, 1, 256, 1, 1]
}

/// Blocks of kernels that merge the chunks of `c` columns.
pub(crate) fn merging(c: usize) -> Shape {
    [(c as u32).div_ceil(8), 1, 1, 8, 32, 1]
}

/// Blocks of up to 32 of `n` packs of columns for each of `chunks` chunks of rows.
pub(crate) fn packs(n: usize, chunks: usize) -> Shape {
    let width = n.next_power_of_two().min(32);
    [n.div_ceil(width) as u32, chunks as u32, 1, 256, 1, 1]
}

/// The loaded library. One kernel runs at a time: shared memory is static.
pub(crate) struct Emulator {
    library: usize,
    /// Names of all kernels.
    pub(crate) names: Vec<String>,
    one_at_a_time: Mutex<()>,
}

/// The kernels, or `None`, which the test notes, where there is no C++ compiler.
pub(crate) fn emulator() -> Option<&'static Emulator> {
    static EMULATOR: OnceLock<Option<Emulator>> = OnceLock::new();
    let emulator = EMULATOR.get_or_init(build).as_ref();
    if emulator.is_none() {
        skipped("no C++ compiler `c++`, so no kernel of the GPU was tested");
    }
    emulator
}

fn build() -> Option<Emulator> {
    Command::new("c++").arg("--version").output().ok()?;
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("kernels.cpp");
    let kernels_text = all_kernels();
    std::fs::write(&source, &kernels_text).unwrap();
    let expanded =
        Command::new("c++").args(["-std=c++20", "-E", "-P"]).arg(&source).output().unwrap();
    let mut text = include_str!("emulated.h").to_owned() + &kernels_text;
    text += "
        float load(f16 value) { return (float)bits_of<_Float16>(value.bits); }
        void store(f16* place, float value) {
            place->bits = bits_of<unsigned short>((_Float16)value);
        }
    ";
    let names = kernels(&String::from_utf8(expanded.stdout).unwrap());
    for name in &names {
        text += &format!(
            "extern \"C\" void run_{name}(const unsigned* s, void** a) {{ launch({name}, s, a); }}\n"
        );
    }
    std::fs::write(&source, &text).unwrap();
    let library = folder.join("libkernels.so");
    let flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-o"];
    let made = Command::new("c++").args(flags).arg(&library).arg(&source).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: a library that was just made of our own text, without constructors.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{}", last_error());
    Some(Emulator { library: library as usize, names, one_at_a_time: Mutex::new(()) })
}

/// Names of all kernels in preprocessed text.
fn kernels(text: &str) -> Vec<String> {
    let after = text.split("extern \"C\" __global__ void").skip(1);
    after.filter_map(|rest| rest.split('(').next().map(|name| name.trim().to_owned())).collect()
}

fn last_error() -> String {
    // SAFETY: `dlerror` gives null or a text that lives until the next call.
    let words: *mut c_char = unsafe { libc::dlerror() };
    if words.is_null() {
        return String::new();
    }
    // SAFETY: not null, as above.
    unsafe { std::ffi::CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

impl Emulator {
    fn alone(&self) -> MutexGuard<'_, ()> {
        self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a kernel over `shape`.
    pub(crate) fn run(&self, kernel: &str, shape: Shape, arguments: &mut [Arg<'_>]) {
        type Run = unsafe extern "C" fn(*const u32, *mut *mut c_void);
        let name = CString::new(format!("run_{kernel}")).unwrap();
        // SAFETY: the library stays loaded.
        let symbol = unsafe { libc::dlsym(self.library as *mut c_void, name.as_ptr()) };
        assert!(!symbol.is_null(), "no kernel `{kernel}`");
        // SAFETY: every `run_...` has this signature.
        let run: Run = unsafe { std::mem::transmute::<*mut c_void, Run>(symbol) };
        let mut values: Vec<u64> = arguments.iter_mut().map(value).collect();
        let place = |(argument, value): (&Arg<'_>, &mut u64)| match argument {
            Arg::Whole(words) => words.as_ptr().cast_mut().cast(),
            _ => std::ptr::from_mut(value).cast::<c_void>(),
        };
        let mut places: Vec<*mut c_void> = arguments.iter().zip(&mut values).map(place).collect();
        let _alone = self.alone();
        // SAFETY: the arguments are those of the kernel, as each test lists them.
        unsafe { run(shape.as_ptr(), places.as_mut_ptr()) };
    }
}

/// The bits of an argument as the kernel gets it.
fn value(argument: &mut Arg<'_>) -> u64 {
    match argument {
        Arg::In(values) => values.as_ptr() as u64,
        Arg::Out(values) => values.as_mut_ptr() as u64,
        Arg::Doubles(values) => values.as_mut_ptr() as u64,
        Arg::Words(values) => values.as_mut_ptr() as u64,
        Arg::Halves(values) => values.as_mut_ptr() as u64,
        Arg::Bytes(pointer) => *pointer as u64,
        Arg::Nothing | Arg::Whole(_) => 0,
        Arg::Count(count) => *count,
        Arg::Flag(flag) => u64::from(*flag as u32),
        Arg::Single(value) => u64::from(value.to_bits()),
        Arg::Double(value) => value.to_bits(),
    }
}

/// `n` numbers around 0 that differ by `stream`.
pub(crate) fn values(stream: u64, n: usize) -> Vec<f32> {
    let mut draws = Key::new(7, Purpose::Generate, stream, 0).stream();
    (0..n).map(|_| draws.normal() as f32).collect()
}

/// Asserts that all numbers agree to `limit` of the largest.
#[track_caller]
pub(crate) fn agree(name: &str, found: &[f32], expected: &[f32], limit: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(1e-3f32, |largest, v| largest.max(v.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = (found - expected).abs() <= limit * largest;
        assert!(same, "{name}: element {i} is {found}, not {expected} (largest {largest})");
    }
}
