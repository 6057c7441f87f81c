#![expect(
    unsafe_code,
    reason = "libraries are opened, and functions of C defined that jump into them"
)]
//! CUDA's libraries, each opened at the first call of one of its functions: so one program starts
//! with and without them.
//!
//! Candle and cudarc link against these libraries by name. `build.rs` gives the linker empty
//! archives under those names, and the functions themselves are defined here ([`functions`]): each
//! looks whether its place is known, and jumps there; the first time it opens the library, and asks
//! where the function is. A function that cannot be found answers with an error code of its
//! library. [`check`] says before anything starts which library is missing, and where it was looked
//! for.

mod functions;
mod jump;
mod search;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use search::SearchEnvironment;

/// A library of CUDA.
pub struct Library {
    /// Without `lib`, as the linker calls it.
    name: &'static str,
    /// Files that may be opened, newest first: name, and the first version of the driver that can work
    /// with it.
    files: &'static [(&'static str, c_int)],
    /// Installation hint, if it is missing.
    source: &'static str,
    /// The address of a function that answers with an error.
    refusal: fn() -> usize,
    opened: OnceLock<Result<Opened, String>>,
}

/// An open library.
struct Opened {
    handle: usize,
    file: PathBuf,
}

/// A function of a library. `jump.rs` reads its first field.
#[repr(C)]
struct Function {
    /// Address of the function; 0 before its first call.
    at: AtomicUsize,
    library: &'static Library,
    name: &'static CStr,
}

/// Version that the libraries report for CUDA 13, as its driver does.
const CUDA_13: c_int = 13_000;

const fn library(
    name: &'static str,
    files: &'static [(&'static str, c_int)],
    source: &'static str,
    refusal: fn() -> usize,
) -> Library {
    Library { name, files, source, refusal, opened: OnceLock::new() }
}

/// Address of a function that answers `CODE`, whatever it is given.
fn code<const CODE: c_int>() -> usize {
    extern "C" fn answer<const CODE: c_int>() -> c_int {
        CODE
    }
    answer::<CODE> as extern "C" fn() -> c_int as usize
}

/// Address of a function that answers with a text.
fn words() -> usize {
    extern "C" fn answer() -> *const c_char {
        c"library not found".as_ptr()
    }
    answer as extern "C" fn() -> *const c_char as usize
}

/// Address of a function that ends the program: what it should have computed would be missing.
fn no_product() -> usize {
    #[expect(clippy::panic, reason = "its caller expects no error")]
    extern "C" fn end() {
        panic!("no products of quantised matrices on GPUs: they are not part of this program");
    }
    end as extern "C" fn() as usize
}

static CUDA: Library =
    library("cuda", &[("libcuda.so.1", 0)], "it is installed with the NVIDIA driver", code::<100>);
static CUBLAS: Library = library(
    "cublas",
    &[("libcublas.so.13", CUDA_13), ("libcublas.so.12", 0)],
    "`pip install nvidia-cublas` (for a driver of CUDA 12: nvidia-cublas-cu12)",
    code::<1>,
);
static CUBLAS_LT: Library = library(
    "cublasLt",
    &[("libcublasLt.so.13", CUDA_13), ("libcublasLt.so.12", 0)],
    "it comes with cuBLAS",
    code::<1>,
);
static CURAND: Library = library(
    "curand",
    &[("libcurand.so.10", 0)],
    "`pip install nvidia-curand nvidia-cuda-runtime` (for a driver of CUDA 12: nvidia-curand-cu12)",
    code::<203>,
);
/// Nothing here calls it, but cuRAND does.
static CUDART: Library = library(
    "cudart",
    &[("libcudart.so.13", CUDA_13), ("libcudart.so.12", 0)],
    "`pip install nvidia-cuda-runtime`",
    code::<100>,
);
static NVRTC: Library = library(
    "nvrtc",
    &[("libnvrtc.so.13", CUDA_13), ("libnvrtc.so.12", 0)],
    "`pip install nvidia-cuda-nvrtc` (for a driver of CUDA 12: nvidia-cuda-nvrtc-cu12)",
    code::<11>,
);
static CUDNN: Library = library(
    "cudnn",
    &[("libcudnn.so.9", 0)],
    "`pip install nvidia-cudnn-cu13` (for a driver of CUDA 12: nvidia-cudnn-cu12)",
    code::<1001>,
);
static NCCL: Library = library(
    "nccl",
    &[("libnccl.so.2", 0)],
    "`pip install nvidia-nccl-cu13` (for a driver of CUDA 12: nvidia-nccl-cu12)",
    code::<2>,
);
/// Only asked how busy a GPU is ([`nvml`]): nothing needs it.
static NVML: Library = library(
    "nvidia-ml",
    &[("libnvidia-ml.so.1", 0)],
    "it is installed with the NVIDIA driver",
    code::<12>,
);

/// candle-kernels' products of quantised matrices, which want CUDA's runtime library when a program
/// is linked. They are in no file: defined here, they are not taken from its archive.
static MOE: Library = library("moe", &[], "it is not part of this program", no_product);

/// Libraries that every rank on a GPU calls, in the order in which they need one another.
const NEEDED: [&Library; 5] = [&CUBLAS_LT, &CUBLAS, &CURAND, &NVRTC, &CUDNN];

/// Opens the driver's library.
///
/// # Errors
///
/// It is not there, or cannot be opened.
pub fn driver() -> Result<(), String> {
    CUDA.open().map(|_| ()).map_err(Clone::clone)
}

/// Opens all libraries that a rank on a GPU calls.
///
/// # Errors
///
/// One is not there, or cannot be opened; or the driver is older than the compiler of Candle's
/// kernels.
pub fn check() -> Result<(), String> {
    NEEDED.iter().try_for_each(|library| library.open().map(|_| ()).map_err(Clone::clone))?;
    check_driver(driver_version(), option_env!("NVCC_RELEASE"))
}

/// Refuses a driver, 1000 major + 10 minor, that cannot load what `nvcc` of this release compiled:
/// PTX, whose version rises with each toolkit.
fn check_driver(driver: c_int, nvcc: Option<&str>) -> Result<(), String> {
    let number = |release: &str| -> Option<c_int> {
        let (major, minor) = release.split_once('.')?;
        Some(1000 * major.parse::<c_int>().ok()? + 10 * minor.parse::<c_int>().ok()?)
    };
    match nvcc.and_then(|release| Some((release, number(release)?))) {
        Some((release, needed)) if driver < needed => {
            let (major, minor) = (driver / 1000, driver % 1000 / 10);
            Err(format!(
                "the driver supports CUDA {major}.{minor}, but this program's kernels were compiled \
                 with CUDA {release}, which it cannot load: update the driver, or build with a \
                 toolkit of {major}.{minor} or older"
            ))
        }
        _ => Ok(()),
    }
}

/// Opens NCCL.
///
/// # Errors
///
/// It is not there, or cannot be opened.
pub fn check_nccl() -> Result<(), String> {
    NCCL.open().map(|_| ()).map_err(Clone::clone)
}

/// Address of a function of NVML, if that library is there and has it.
pub fn nvml(function: &CStr) -> Option<usize> {
    symbol(NVML.open().ok()?.handle, function)
}

/// Name and file of each library that this process has opened.
pub fn opened() -> Vec<(&'static str, PathBuf)> {
    let all = std::iter::once(&CUDA).chain(NEEDED).chain([&NCCL]);
    let file = |library: &Library| Some(library.opened.get()?.as_ref().ok()?.file.clone());
    all.filter_map(|library| Some((library.name, file(library)?))).collect()
}

impl Library {
    /// The library, opened once in a process.
    fn open(&self) -> Result<&Opened, &String> {
        let opened = self.opened.get_or_init(|| {
            let places = SearchEnvironment::of_process().folders();
            let version = if self.name == CUDA.name { c_int::MAX } else { driver_version() };
            let files = self.files.iter().filter(|(_, needs)| *needs <= version);
            self.open_one_of(&files.map(|(file, _)| *file).collect::<Vec<_>>(), &places)
        });
        opened.as_ref()
    }

    fn open_one_of(&self, files: &[&str], folders: &[PathBuf]) -> Result<Opened, String> {
        if self.name == CURAND.name {
            // Where the loader would not find it, it is found here; without it cuRAND says what it
            // lacks.
            let _ = CUDART.open();
        }
        let mut damaged = Vec::new();
        for path in files.iter().flat_map(|file| search::candidates(file, folders)) {
            match open(&path) {
                Ok(handle) => {
                    let file = self.file_of(handle).unwrap_or(path);
                    self.open_companions(&file);
                    return Ok(Opened { handle, file });
                }
                Err(why) if path.is_absolute() => damaged.push(why),
                Err(_) => {}
            }
        }
        Err(search::missing(files, folders, &damaged, self.source))
    }

    /// nvrtc looks for its built-in functions where the loader looks, which may not be next to it.
    fn open_companions(&self, file: &Path) {
        if self.name != NVRTC.name {
            return;
        }
        let Some(folder) = file.parent() else { return };
        for companion in search::beginning_with(folder, "libnvrtc-builtins.so.") {
            // If it cannot be opened, nvrtc says so.
            drop(open(&companion));
        }
    }

    /// The file that was loaded.
    fn file_of(&self, handle: usize) -> Option<PathBuf> {
        let known = match self.name {
            "cuda" => c"cuInit",
            "cublas" => c"cublasCreate_v2",
            "cublasLt" => c"cublasLtCreate",
            "curand" => c"curandGetVersion",
            "nvrtc" => c"nvrtcVersion",
            "cudnn" => c"cudnnGetVersion",
            "cudart" => c"cudaRuntimeGetVersion",
            "nvidia-ml" => c"nvmlInit_v2",
            _ => c"ncclGetVersion",
        };
        let address = symbol(handle, known)?;
        // SAFETY: all fields are pointers, for which zero is a value.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is a place for one answer.
        let known = unsafe { libc::dladdr(address as *const c_void, &raw mut info) } != 0;
        if !known || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: a text that lives as long as the library, which is never closed.
        let file = unsafe { CStr::from_ptr(info.dli_fname) };
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(file.to_bytes())))
    }
}

/// Latest version that the driver can work with, as 1000 major + 10 minor; without a driver any version,
/// as nothing will be computed.
fn driver_version() -> c_int {
    type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
    let Some(address) =
        CUDA.open().ok().and_then(|cuda| symbol(cuda.handle, c"cuDriverGetVersion"))
    else {
        return c_int::MAX;
    };
    let mut version = 0;
    // SAFETY: the function of this name has this signature.
    let ask: Ask = unsafe { std::mem::transmute::<usize, Ask>(address) };
    // SAFETY: `version` is a place for one number.
    if unsafe { ask(&raw mut version) } == 0 { version } else { c_int::MAX }
}

fn open(path: &Path) -> Result<usize, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: NVIDIA's libraries, whose constructors are made for this.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(handle as usize);
    }
    // SAFETY: null, or a text that lives until this thread's next call.
    let words: *mut c_char = unsafe { libc::dlerror() };
    if words.is_null() {
        return Err(format!("{} cannot be opened", path.display()));
    }
    // SAFETY: not null, as above.
    Err(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

fn symbol(handle: usize, name: &CStr) -> Option<usize> {
    // SAFETY: the handle is that of a library, and no library is ever closed.
    let address = unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) };
    (!address.is_null()).then_some(address as usize)
}

/// Address of `function`, or of one that answers with an error; for `jump.rs`.
extern "C" fn resolve(function: &Function) -> usize {
    let opened = function.library.open().ok();
    let address = opened.and_then(|opened| symbol(opened.handle, function.name));
    let gives_words = |name: &[u8]| name == b"ncclGetErrorString" || name == b"cudnnGetErrorString";
    let at = address.unwrap_or_else(|| match function.name.to_bytes() {
        name if gives_words(name) => words(),
        _ => (function.library.refusal)(),
    });
    function.at.store(at, Ordering::Release);
    at
}

#[cfg(test)]
mod tests;
