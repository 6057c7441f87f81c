//! Defaults that kinds of clusters share, for their `#[serde(default = "...")]`.

/// Machines.
pub(super) fn one() -> u32 {
    1
}

/// The program, as the `PATH` of a machine has it.
pub(super) fn ddprun() -> String {
    "ddprun".to_owned()
}
