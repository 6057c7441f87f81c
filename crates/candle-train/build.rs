//! With the feature `cuda`: empty archives in the place of CUDA's libraries, so that none is needed
//! to link.
//!
//! candle-core, candle-kernels and cudarc ask the linker for them by name. What they call is
//! defined in `src/cuda_libraries`, where each function opens its library at its first call.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script writes for the linker, not for a run"
)]

use std::path::Path;
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
    Ok(())
}
