//! The text of the kernels: NVRTC, which refuses some code that other compilers take, compiles it (it
//! needs no GPU), and each kernel that is launched is in it.
#![expect(unsafe_code, reason = "functions of a library are called by their addresses")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use crate::emulator::kernel_text::OPTION;
use crate::emulator::{all_kernels, emulator};
use crate::skipped::skipped;

type Create = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type LogSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Log = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;

/// NVRTC, from `$NVRTC_LIBRARY` or where the system's loader finds it.
fn library() -> Option<*mut c_void> {
    let named = std::env::var_os("NVRTC_LIBRARY").map(|name| name.into_string().unwrap());
    let names = named.into_iter().chain(["libnvrtc.so.13".into(), "libnvrtc.so.12".into()]);
    names
        .map(|name| CString::new(name).unwrap())
        // SAFETY: a text with an end, of a library whose constructors may run at any time.
        .map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) })
        .find(|library| !library.is_null())
}

/// The function of this name, which has the signature `F`.
fn function<F: Copy>(library: *mut c_void, name: &CStr) -> F {
    // SAFETY: the library stays open, and the name is a text with an end.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "NVRTC without {name:?}");
    // SAFETY: an address of a function is as wide as a pointer to one.
    unsafe { std::mem::transmute_copy(&address) }
}

/// NVRTC's complaints about `text` for an architecture; empty if it takes it.
fn complaints(library: *mut c_void, text: &CStr, architecture: &str) -> String {
    let create: Create = function(library, c"nvrtcCreateProgram");
    let compile: Compile = function(library, c"nvrtcCompileProgram");
    let (size, log): (LogSize, Log) =
        (function(library, c"nvrtcGetProgramLogSize"), function(library, c"nvrtcGetProgramLog"));
    let options = [format!("--gpu-architecture={architecture}"), OPTION.to_owned()]
        .map(|option| CString::new(option).unwrap());
    let options = options.each_ref().map(|option| option.as_ptr());
    let (mut program, mut bytes, none) = (std::ptr::null_mut(), 0, std::ptr::null());
    // SAFETY: texts with ends, places for a program and a number, and no headers; the log has as
    // much room as it was said to need.
    unsafe {
        let name = c"kernels.cu".as_ptr();
        assert_eq!(create(&raw mut program, text.as_ptr(), name, 0, none, none), 0);
        if compile(program, options.len() as c_int, options.as_ptr()) == 0 {
            return String::new();
        }
        assert_eq!(size(program, &raw mut bytes), 0);
        let mut said = vec![0_u8; bytes];
        assert_eq!(log(program, said.as_mut_ptr().cast()), 0);
        String::from_utf8_lossy(&said).into_owned()
    }
}

#[test]
fn nvrtc_takes_all_kernels() {
    let Some(library) = library() else {
        return skipped("no NVRTC, so no kernel was compiled for a GPU (set NVRTC_LIBRARY)");
    };
    let text = CString::new(all_kernels()).unwrap();
    for architecture in ["sm_80", "sm_90"] {
        let said = complaints(library, &text, architecture);
        assert!(said.is_empty(), "{architecture}: {said}");
    }
}

/// True if there is a kernel of the name `wanted`, which may have places for parameters: at its end,
/// for each of the number types.
fn is_there(names: &[String], wanted: &str) -> bool {
    let begins = |stem: &str| names.iter().any(|name| name.starts_with(stem));
    let is_typed = |stem: &str| {
        let of_type = |number| names.contains(&format!("{stem}{number}"));
        ["f32", "bf16", "f16"].into_iter().all(of_type)
    };
    match wanted.split_once('{') {
        // The name stands elsewhere, and is looked for there.
        Some(("", _)) => true,
        Some((stem, "}" | "name}")) => is_typed(stem),
        Some((stem, _)) => begins(stem),
        None => {
            names.iter().any(|name| name == wanted)
                || is_typed(&format!("{wanted}_"))
                || begins(&format!("attention_{wanted}_"))
        }
    }
}

/// Words in quotes of lines that launch something or name a kernel, and of the line after each.
fn wanted_in(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().starts_with("//")).collect();
    let says = |line: &str| ["launch", "kernel", "reorder("].iter().any(|word| line.contains(word));
    let near = lines.windows(2).filter(|lines| says(lines[0])).flatten();
    let words = near.flat_map(|line| line.split('"').skip(1).step_by(2));
    let is_name = |word: &&str| {
        let is_of_name =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_{}".contains(c);
        !word.is_empty() && word.chars().all(is_of_name)
    };
    words.filter(is_name).collect()
}

#[test]
fn every_kernel_that_is_launched_is_there() {
    let Some(gpu) = emulator() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops/cuda");
    let mut found = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Files of this prefix translate kernels, and launch none.
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        if !is_rust || name.starts_with("kernel_") {
            continue;
        }
        for wanted in wanted_in(&std::fs::read_to_string(&path).unwrap()) {
            assert!(is_there(&gpu.names, wanted), "{name}: no kernel `{wanted}`");
            found += 1;
        }
    }
    assert!(found > 80, "{found} names");
}
