//! Two checkpoints -> where they differ, by their manifests alone. Pure.

use std::fmt;

use crate::checkpoint::{FILES, Manifest, STATE};

/// Stands for the file of the base, whose name may differ.
const BASE: &str = "base";

/// The first thing that two checkpoints do not have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub file: String,
    /// The tensor, `header` (names, types and shapes) or `contents`.
    pub part: String,
}

impl Manifest {
    /// Returns the first difference: parameters before optimizer state before progress, each in its
    /// file's order. `None` if every byte of their files is the same.
    pub fn first_difference(&self, other: &Self) -> Option<Difference> {
        let hash = |manifest: &Self| manifest.base.as_ref().map(|base| base.blake3.clone());
        if hash(self) != hash(other) {
            let [file, part] = [BASE, "weights"].map(str::to_owned);
            return Some(Difference { file, part });
        }
        FILES.into_iter().find_map(|file| {
            let parts = |manifest: &Self| {
                manifest.files.get(file).map_or(vec![], |entry| entry.parts.clone())
            };
            let ours = parts(self);
            let theirs = parts(other);
            let at =
                (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at))?;
            let part = ours.get(at).or(theirs.get(at))?.name.clone();
            Some(Difference { file: file.to_owned(), part })
        })
    }

    /// One hash over the hashes of all parts, in hexadecimal: equal if and only if every byte is.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (name, entry) in &self.files {
            for part in &entry.parts {
                hasher.update(name.as_bytes());
                hasher.update(part.name.as_bytes());
                hasher.update(part.blake3.as_bytes());
            }
        }
        if let Some(base) = &self.base {
            hasher.update(base.blake3.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.file == BASE {
            return f.write_str("the weights below the adapters");
        }
        if self.file == STATE {
            return f.write_str("the progress of the run: loss, metrics or scaler");
        }
        write!(f, "`{}` of {}", self.part, self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::manifest::{FileEntry, Part};
    use crate::checkpoint::{MODEL, OPTIMIZER};

    /// A manifest whose tensors `a` and `b` have these values in both safetensors files.
    fn manifest(model: [&[u8]; 2], optimizer: [&[u8]; 2], state: &[u8]) -> Manifest {
        let tensors = |[a, b]: [&[u8]; 2]| vec![Part::of("a", a), Part::of("b", b)];
        let entry = |parts| FileEntry { bytes: 2, parts };
        let files = [
            (MODEL, entry(tensors(model))),
            (OPTIMIZER, entry(tensors(optimizer))),
            (STATE, entry(vec![Part::of("contents", state)])),
        ];
        let files = files.map(|(name, entry)| (name.to_owned(), entry)).into();
        Manifest {
            format: 2,
            version: "1".into(),
            step: 5,
            metric: None,
            monitor: None,
            loss: None,
            base: None,
            files,
        }
    }

    #[test]
    fn the_first_tensor_that_differs_is_named_and_equal_ones_are_not() {
        let ours = manifest([b"1", b"2"], [b"3", b"4"], b"5");
        assert_eq!(ours.first_difference(&ours.clone()), None);
        assert_eq!(ours.fingerprint(), ours.clone().fingerprint());
        for (other, words) in [
            (manifest([b"1", b"0"], [b"0", b"4"], b"0"), "`b` of model.safetensors"),
            (manifest([b"1", b"2"], [b"0", b"4"], b"0"), "`a` of optimizer.safetensors"),
            (
                manifest([b"1", b"2"], [b"3", b"4"], b"0"),
                "the progress of the run: loss, metrics or scaler",
            ),
        ] {
            let difference = ours.first_difference(&other).unwrap();
            assert_eq!(difference.to_string(), words);
            assert_ne!(ours.fingerprint(), other.fingerprint());
        }
    }

    #[test]
    fn a_tensor_that_only_one_has_is_a_difference() {
        let ours = manifest([b"1", b"2"], [b"3", b"4"], b"5");
        let mut fewer = ours.clone();
        fewer.files.get_mut(MODEL).unwrap().parts.pop();
        for (a, b) in [(&ours, &fewer), (&fewer, &ours)] {
            assert_eq!(a.first_difference(b).unwrap().part, "b");
        }
    }
}
