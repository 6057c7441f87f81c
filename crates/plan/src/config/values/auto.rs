//! `"auto"`, or a value.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A value, or "auto": to be decided by the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    /// Decided by the plan.
    Auto,
    /// A value that was given.
    Given(T),
}

impl<T: Copy> Auto<T> {
    /// The value, if one was given.
    pub fn given(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Given(value) => Some(value),
        }
    }
}

/// A type whose values may be given instead of "auto".
pub trait Given: Sized {
    /// The end of "must be ...".
    const EXPECTED: &'static str;

    /// The value that a number stands for.
    fn of_number(_number: u64) -> Option<Self> {
        None
    }

    /// The value that an answer stands for.
    fn of_answer(_answer: bool) -> Option<Self> {
        None
    }
}

impl Given for u32 {
    const EXPECTED: &'static str = "`\"auto\"` or a whole number";

    fn of_number(number: u64) -> Option<Self> {
        number.try_into().ok()
    }
}

impl Given for bool {
    const EXPECTED: &'static str = "`\"auto\"`, `true` or `false`";

    fn of_answer(answer: bool) -> Option<Self> {
        Some(answer)
    }
}

struct AutoVisitor<T>(PhantomData<T>);

impl<T: Given> Visitor<'_> for AutoVisitor<T> {
    type Value = Auto<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match text {
            "auto" => Ok(Auto::Auto),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_bool<E: Error>(self, answer: bool) -> Result<Self::Value, E> {
        let refused = || E::invalid_value(Unexpected::Bool(answer), &self);
        T::of_answer(answer).map(Auto::Given).ok_or_else(refused)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let refused = || E::invalid_value(Unexpected::Signed(number), &self);
        let value = u64::try_from(number).ok().and_then(T::of_number);
        value.map(Auto::Given).ok_or_else(refused)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let refused = || E::invalid_value(Unexpected::Unsigned(number), &self);
        T::of_number(number).map(Auto::Given).ok_or_else(refused)
    }
}

impl<'de, T: Given> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AutoVisitor(PhantomData))
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Given(value) => value.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::values::tests::check;

    #[test]
    fn auto_is_the_word_or_a_number_in_range() {
        check::<Auto<u32>>(&[
            (json!("auto"), Some(Auto::Auto)),
            (json!(0), Some(Auto::Given(0))),
            (json!(4_294_967_295u32), Some(Auto::Given(u32::MAX))),
            (json!(4_294_967_296u64), None),
            (json!(-1), None),
            (json!(1.5), None),
            (json!("Auto"), None),
            (json!("32"), None),
        ]);
    }

    #[test]
    fn auto_may_stand_for_an_answer() {
        check::<Auto<bool>>(&[
            (json!("auto"), Some(Auto::Auto)),
            (json!(true), Some(Auto::Given(true))),
            (json!(false), Some(Auto::Given(false))),
            (json!(1), None),
            (json!("true"), None),
        ]);
        check::<Auto<u32>>(&[(json!(true), None)]);
    }
}
