//! Phases of a rank, as failures name them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Current activity of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// From the start of the process until it asks for its plan.
    #[default]
    Starting,
    /// Until all ranks have agreed on parameters and shapes.
    Joining,
    /// Waiting for samples.
    LoadingData,
    /// Forward pass.
    Forward,
    /// Backward pass.
    Backward,
    /// Waiting for the gradients of other ranks.
    Reducing,
    /// Update of the parameters.
    Optimizer,
    /// Evaluation.
    Evaluating,
    /// Saving a checkpoint.
    Saving,
    /// After the last step.
    Finishing,
}

impl Phase {
    const ALL: [(Self, &str); 10] = [
        (Self::Starting, "starting"),
        (Self::Joining, "joining"),
        (Self::LoadingData, "loading data"),
        (Self::Forward, "forward"),
        (Self::Backward, "backward"),
        (Self::Reducing, "reducing"),
        (Self::Optimizer, "optimizer"),
        (Self::Evaluating, "evaluating"),
        (Self::Saving, "saving"),
        (Self::Finishing, "finishing"),
    ];

    /// The fail point at its beginning.
    pub fn point(self) -> &'static str {
        match self {
            Self::LoadingData => "loading_data",
            phase => Self::ALL[phase as usize].1,
        }
    }

    /// The phase with this number; the first for an unknown number.
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).map_or(Self::Starting, |(phase, _)| *phase)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_at_its_own_number() {
        for (number, (phase, name)) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(Phase::from_number(number as u8), phase);
            assert_eq!(phase.to_string(), name);
        }
    }
}
