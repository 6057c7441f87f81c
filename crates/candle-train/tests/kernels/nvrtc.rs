//! The kernels as NVRTC sees them, which refuses what other compilers take. It needs no GPU.
#![expect(unsafe_code, reason = "functions of a library are called by their addresses")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::emulator::{OPTION, all_kernels};
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
