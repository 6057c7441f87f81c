//! `ddprun init` without a path: the experiment of the quickstart, which needs no data.

const QUICKSTART: &str = include_str!("../../experiments/quickstart.toml");

/// The experiment, with the commands in its comments as they are written where it now stands.
pub(super) fn quickstart() -> String {
    QUICKSTART
        .replace("cargo run --release -- ", "ddprun ")
        .replace("experiments/quickstart.toml", "quickstart.toml")
}
