//! `"auto"`, `2` or `[0, 3]`.

use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// Ranks of this machine and where they compute: "auto", a count, or a list of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Every GPU that is visible; without any, one rank on the CPU.
    Auto,
    /// A number of ranks, on the first GPUs, or on the CPU.
    Count(u32),
    /// A rank on each of these GPUs, numbered as CUDA shows them; a GPU named twice has two ranks.
    List(Vec<u32>),
}

impl Devices {
    /// The number of ranks, if it was given.
    pub fn count(&self) -> Option<u32> {
        match self {
            Self::Auto => None,
            Self::Count(count) => Some(*count),
            Self::List(list) => Some(list.len() as u32),
        }
    }
}

struct DevicesVisitor;

impl<'de> Visitor<'de> for DevicesVisitor {
    type Value = Devices;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`\"auto\"`, a number of ranks, or a list of GPUs such as `[0, 3]`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Devices, E> {
        match text {
            "auto" => Ok(Devices::Auto),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Devices, E> {
        u32::try_from(number)
            .map(Devices::Count)
            .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Devices, E> {
        u32::try_from(number)
            .map(Devices::Count)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Devices, A::Error> {
        let mut gpus = Vec::new();
        while let Some(gpu) = list.next_element()? {
            gpus.push(gpu);
        }
        Ok(Devices::List(gpus))
    }
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DevicesVisitor)
    }
}

impl Serialize for Devices {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => count.serialize(serializer),
            Self::List(list) => list.serialize(serializer),
        }
    }
}
