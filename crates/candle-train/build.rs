//! With the feature `cuda`: empty archives in the place of CUDA's libraries, so that none is needed
//! to link, and the version of the compiler that translates Candle's kernels.
//!
//! candle-core, candle-kernels and cudarc ask the linker for them by name. What they call is
//! defined in `src/cuda_libraries`, where each function opens its library at its first call.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script writes for the linker, not for a run"
)]

use std::path::Path;
use std::process::Command;
use std::{env, fs, io};

/// Libraries that the linker is asked for. `moe` is candle-kernels' own, and there if `nvcc` is real.
const LIBRARIES: [&str; 9] =
    ["cuda", "cudart", "cublas", "cublasLt", "curand", "nvrtc", "cudnn", "nccl", "moe"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let (Some(folder), Some(_)) = (env::var_os("OUT_DIR"), env::var_os("CARGO_FEATURE_CUDA"))
    else {
        return Ok(());
    };
    let folder = Path::new(&folder);
    for library in LIBRARIES {
        fs::write(folder.join(format!("lib{library}.a")), b"!<arch>\n")?;
    }
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rerun-if-env-changed=PATH");
    if let Some(release) = nvcc_release() {
        println!("cargo::rustc-env=NVCC_RELEASE={release}");
    }
    Ok(())
}

/// "13.0"; `None` if no `nvcc` says so.
fn nvcc_release() -> Option<String> {
    let printed = Command::new("nvcc").arg("--version").output().ok()?.stdout;
    let printed = String::from_utf8(printed).ok()?;
    let (_, release) = printed.split_once("release ")?;
    Some(release.split([',', ' ', '\n']).next()?.to_owned())
}
