//! The text of our kernels, and its translation on the machine where it runs.

use std::sync::OnceLock;

use candle_core::{Result, bail};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

/// All kernels; later files use what earlier ones define.
pub(super) const KERNELS: &str = concat!(
    include_str!("kernels/common.cu"),
    include_str!("kernels/elementwise.cu"),
    include_str!("kernels/columns.cu"),
    include_str!("kernels/rows.cu"),
    include_str!("kernels/images.cu"),
    include_str!("kernels/losses.cu"),
    include_str!("kernels/series.cu"),
    include_str!("kernels/optimizer.cu"),
);

/// The kernels as PTX for the oldest supported architecture, which the driver translates for the
/// GPU at hand and keeps. Made once in a process.
pub(super) fn ptx() -> Result<&'static str> {
    static PTX: OnceLock<std::result::Result<String, String>> = OnceLock::new();
    match PTX.get_or_init(compile) {
        Ok(ptx) => Ok(ptx),
        Err(why) => bail!("the kernels cannot be compiled: {why}"),
    }
}

fn compile() -> std::result::Result<String, String> {
    let options = CompileOptions {
        options: vec!["--gpu-architecture=compute_80".to_owned()],
        name: Some("candle_train.cu".to_owned()),
        ..CompileOptions::default()
    };
    let compiled = compile_ptx_with_opts(KERNELS, options);
    compiled.map(|ptx| ptx.to_src()).map_err(|error| match error {
        CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
        other => other.to_string(),
    })
}
