//! The text of our kernels; `tests/kernels` reads it from here too.

/// What all kernels share.
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
/// Those of attention, which `ATTENTION_KERNELS` makes for a type and a width.
pub(crate) const ATTENTION: &str =
    concat!(include_str!("kernels/tensor_cores.cu"), include_str!("kernels/attention.cu"));
