//! Numbers with names. A `BatchSize` cannot be passed where a `WorldSize` is meant, and zero is
//! unrepresentable where zero makes no sense.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// Position of a process in the world, `0..world size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into per-rank arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// True for rank 0, which prints to the terminal and writes the files of the run.
    pub fn is_first(self) -> bool {
        self.0 == 0
    }
}

/// Defines a counted quantity that is never zero.
macro_rules! counted {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(NonZeroU32);

        impl $name {
            /// The smallest value, one.
            pub const ONE: Self = Self(NonZeroU32::MIN);

            /// `None` for zero.
            pub fn new(value: u32) -> Option<Self> {
                NonZeroU32::new(value).map(Self)
            }

            /// The plain number.
            pub fn get(self) -> u32 {
                self.0.get()
            }

            /// The number as a length or index bound.
            pub fn count(self) -> usize {
                self.0.get() as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counted! {
    /// Number of ranks that train together.
    WorldSize
}
counted! {
    /// Samples per pass per rank.
    BatchSize
}
counted! {
    /// Samples per step over all ranks and passes.
    GlobalBatchSize
}
counted! {
    /// Passes (forward + backward) per step on each rank.
    AccumulationSteps
}
counted! {
    /// Equal parts into which each global batch is cut; the unit that makes bits independent of the
    /// world size.
    Shards
}

/// A number of bytes.
///
/// ```
/// use train_numbers::units::Bytes;
///
/// assert_eq!(Bytes::of_f32(11_689_512).to_string(), "44.59 MiB"); // ResNet-18
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Bytes of `n` f32 values.
    pub fn of_f32(n: usize) -> Self {
        Self(4 * n as u64)
    }
}

impl fmt::Display for Bytes {
    /// Two significant decimals with a binary unit: `44.59 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 { write!(f, "{} B", self.0) } else { write!(f, "{value:.2} {}", UNITS[unit]) }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_with_a_binary_unit() {
        let shown: Vec<String> =
            [0, 1023, 1024, 46_758_048].map(|n| Bytes(n).to_string()).into_iter().collect();
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "44.59 MiB"]);
    }

    #[test]
    fn a_world_of_zero_is_unrepresentable() {
        assert!(WorldSize::new(0).is_none());
        let error = serde_json::from_str::<WorldSize>("0").unwrap_err().to_string();
        assert!(error.contains("expected a nonzero u32"), "{error}");
    }
}
