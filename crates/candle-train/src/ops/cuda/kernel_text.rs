//! The text of our kernels and the option they are translated with; `tests/kernels` reads both from
//! here, too.

/// Code that all kernels share.
pub(crate) const COMMON: &str = include_str!("kernels/common.cu");
/// All kernels but those of attention; later files use what earlier ones define.
pub(crate) const KERNELS: &str = concat!(
    include_str!("kernels/elementwise.cu"),
    include_str!("kernels/columns.cu"),
    include_str!("kernels/rows.cu"),
    include_str!("kernels/images.cu"),
    include_str!("kernels/grouped.cu"),
    include_str!("kernels/losses.cu"),
    include_str!("kernels/series.cu"),
    include_str!("kernels/optimizer.cu"),
);
/// Kernels of attention, which `ATTENTION_KERNELS` makes for a type and a width.
pub(crate) const ATTENTION: &str =
    concat!(include_str!("kernels/tensor_cores.cu"), include_str!("kernels/attention.cu"));
/// Option of NVRTC besides the architecture. Up to 13.0 it takes a lambda for code of the CPU
/// otherwise, which nvcc does not.
pub(crate) const OPTION: &str = include_str!("kernels/nvrtc_option").trim_ascii();
