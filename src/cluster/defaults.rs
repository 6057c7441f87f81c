//! Defaults that kinds of clusters share, for their `#[serde(default = "...")]`.

/// Machines.
pub(super) fn one() -> u32 {
    1
}

/// How often what failed is started again.
pub(super) fn three() -> u32 {
    3
}

/// The program, as the `PATH` of a machine has it.
pub(super) fn ddprun() -> String {
    "ddprun".to_owned()
}
