//! Events of an imagined run of 50 steps in epochs of 20.

use crate::event::{FORMAT, Started, StepDone};

pub(crate) fn started(resumed_from: u64) -> Started {
    Started {
        format: FORMAT,
        version: "0.1.0".into(),
        name: "shapes".into(),
        run: "20261120-132556-3fa2".into(),
        arithmetic: vec![],
        devices: vec!["cpu".into(), "cpu".into()],
        steps_per_epoch: 20,
        total_steps: 50,
        resumed_from,
        unfinished: None,
        restarts: vec![],
    }
}

pub(crate) fn step_done(step: u64) -> StepDone {
    StepDone {
        step,
        epoch: (step - 1) / 20 + 1,
        step_in_epoch: (step - 1) % 20 + 1,
        loss: 0.5,
        accuracy: None,
        lr: 0.05,
        grad_norm: 1.25,
        loss_scale: None,
        samples_per_second: 1234.4,
    }
}
