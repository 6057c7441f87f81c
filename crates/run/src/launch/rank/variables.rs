//! Variables that hold numbers.

/// The environment contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// Not a number, or out of range.
    #[error("`{name}={value}` in the environment is not {expected}")]
    Bad {
        /// Variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: String,
    },
    /// One variable of a pair.
    #[error("the environment has `{present}`, but not `{absent}`")]
    Incomplete {
        /// Set.
        present: &'static str,
        /// Not set.
        absent: &'static str,
    },
}

/// A variable that holds a number, if it is set.
pub(super) fn number(
    get: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<u32>, EnvError> {
    let Some(value) = get(name) else { return Ok(None) };
    let expected = || "a non-negative integer".to_owned();
    match value.trim().parse::<u32>() {
        Ok(number) if i32::try_from(number).is_ok() => Ok(Some(number)),
        _ => Err(EnvError::Bad { name, value, expected: expected() }),
    }
}
