#![expect(unsafe_code, reason = "NVRTC is called for machine code, which cudarc does not ask for")]
//! The translation of our kernels on the machine where they run.

use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::{Error, Result};
use cudarc::driver::{CudaContext, CudaModule};
use cudarc::nvrtc::result::{self as nvrtc, NvrtcError};
use cudarc::nvrtc::{Ptx, sys};

use super::kernel_cache::Source;
use super::kernel_text::{ATTENTION, COMMON, KERNELS, OPTION};

/// A set of kernels that are translated together. Those of attention take a second for each variant,
/// and a program uses one or two of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kernels {
    /// All but those of attention.
    Common,
    Attention(AttentionKernels),
}

/// Attention over heads of width `d`, with or without dropout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AttentionKernels {
    pub(super) dtype: &'static str,
    pub(super) d: usize,
    pub(super) drops: bool,
}

impl AttentionKernels {
    /// End of the names of its kernels.
    pub(super) fn name(&self) -> String {
        let Self { dtype, d, drops } = self;
        format!("{dtype}_{d}_{}", u8::from(*drops))
    }
}

impl Kernels {
    fn text(&self) -> String {
        match self {
            Self::Common => format!("{COMMON}{KERNELS}"),
            Self::Attention(which) => {
                let AttentionKernels { dtype, d, drops } = which;
                let instance = format!("({}, {dtype}, {d}, {drops})", which.name());
                format!("{COMMON}{ATTENTION}ATTENTION_KERNELS{instance}\n")
            }
        }
    }
}

/// The kernels for the GPU of a context, translated once in a process, and once by all where they
/// are kept ([`super::keep_kernels_in`]): for its own architecture, which any driver of the same
/// major version takes, and where NVRTC does not know that one yet, as PTX for the oldest supported
/// one, which the driver translates and keeps.
pub(super) fn module(context: &Arc<CudaContext>, kernels: Kernels) -> Result<Arc<CudaModule>> {
    type Known = (usize, Kernels, Arc<CudaModule>);
    static MODULES: Mutex<Vec<Known>> = Mutex::new(Vec::new());
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let gpu = context.ordinal();
    if let Some((.., module)) = modules.iter().find(|known| (known.0, known.1) == (gpu, kernels)) {
        return Ok(module.clone());
    }
    let module = load(context, &kernels.text())?;
    modules.push((gpu, kernels, module.clone()));
    Ok(module)
}

fn load(context: &Arc<CudaContext>, text: &str) -> Result<Arc<CudaModule>> {
    let (major, minor) = context.compute_capability().w()?;
    let architecture = format!("sm_{major}{minor}");
    let version = version()?;
    let source = Source { text, architecture: &architecture, version };
    let cached = source.load().map(|code| context.load_module(Ptx::from_binary(code)));
    // A damaged file is no module.
    if let Some(Ok(module)) = cached {
        return Ok(module);
    }
    let text = CString::new(text).map_err(Error::wrap)?;
    let Ok(code) = compile(&text, &architecture, nvrtc_cubin) else {
        let image = Ptx::from_src(compile(&text, "compute_80", nvrtc_ptx)?);
        return context.load_module(image).w();
    };
    source.keep(&code);
    context.load_module(Ptx::from_binary(code)).w()
}

/// Version of NVRTC.
fn version() -> Result<(i32, i32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: places for two numbers.
    let answer = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    answer.result().map_err(|error| Error::Msg(format!("NVRTC says {error:?}")))?;
    Ok((major, minor))
}

/// Kernels for an architecture, as `image` takes them out of the translated program.
fn compile<T>(
    text: &CStr,
    architecture: &str,
    image: impl FnOnce(sys::nvrtcProgram) -> std::result::Result<T, NvrtcError>,
) -> Result<T> {
    let failed = |why: &str| format!("the kernels cannot be compiled for {architecture}: {why}");
    let program = nvrtc::create_program(text, Some(c"candle_train.cu"))
        .map_err(|error| Error::Msg(failed(&format!("{error:?}"))))?;
    let options = [format!("--gpu-architecture={architecture}"), OPTION.to_owned()];
    // SAFETY: a program that was made above, and is destroyed below only.
    let compiled =
        unsafe { nvrtc::compile_program(program, &options) }.and_then(|()| image(program));
    let compiled = compiled.map_err(|error| {
        // SAFETY: as above; its log is there as soon as it was compiled.
        let log = unsafe { nvrtc::get_program_log(program) };
        let log = log.map(|log| String::from_utf8_lossy(bytemuck::cast_slice(&log)).into_owned());
        let log = log.map(|log| log.trim_end_matches('\0').to_owned());
        Error::Msg(failed(&log.unwrap_or_else(|_| format!("{error:?}"))))
    });
    // SAFETY: as above; nothing uses it any more. An error would be told of memory that stays.
    let _ = unsafe { nvrtc::destroy_program(program) };
    compiled
}

/// Machine code.
fn nvrtc_cubin(program: sys::nvrtcProgram) -> std::result::Result<Vec<u8>, NvrtcError> {
    let mut bytes = 0;
    // SAFETY: a translated program, and a place for the size.
    unsafe { sys::nvrtcGetCUBINSize(program, &raw mut bytes) }.result()?;
    let mut cubin = vec![0_u8; bytes];
    // SAFETY: as above, with room for as many bytes.
    unsafe { sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()) }.result()?;
    Ok(cubin)
}

/// Text for the driver's own translator.
fn nvrtc_ptx(program: sys::nvrtcProgram) -> std::result::Result<String, NvrtcError> {
    // SAFETY: a translated program.
    let ptx = unsafe { nvrtc::get_ptx(program) }?;
    let text = String::from_utf8_lossy(bytemuck::cast_slice(&ptx)).into_owned();
    Ok(text.trim_end_matches('\0').to_owned())
}
