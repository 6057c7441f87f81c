//! The identity of the weights below adapters.

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use crate::nn::{Base, BaseTensor};

/// BLAKE3 over name, type, shape and numbers of each tensor, in the order of their names,
/// hexadecimal. However the file is cut into others, the hash is the same. It is made once, on all
/// cores of this rank.
pub fn base_hash(base: &Base) -> String {
    base.hash.get_or_init(|| hash(&base.tensors)).clone()
}

fn hash(tensors: &[BaseTensor]) -> String {
    let mut lines: Vec<String> = tensors.par_iter().map(line).collect();
    // Each begins with the name of its tensor.
    lines.sort_unstable();
    blake3::hash(lines.concat().as_bytes()).to_hex().to_string()
}

fn line(tensor: &BaseTensor) -> String {
    let values = &tensor.values;
    let hash = blake3::hash(values.bytes()).to_hex();
    format!("{} {:?} {:?} {hash}\n", tensor.name, values.dtype(), values.shape())
}
