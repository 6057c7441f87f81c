//! Events of an imagined run of 50 steps in epochs of 20, for the tests of this room and of
//! `report`.

use crate::event::{
    Best, EpochDone, Evaluated, FORMAT, Finished, Reason, Started, StepDone, TimeShares,
};

pub(crate) fn started(resumed_from: u64) -> Started {
    Started {
        format: FORMAT,
        version: "0.1.0".into(),
        name: "shapes".into(),
        run: "20261120-132556-3fa2".into(),
        arithmetic: vec![
            "128 = 32 x 2 ranks x 2 passes".into(),
            "lr 0.05 = 0.1 x 128/256 (linear)".into(),
        ],
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
        accuracy: Some(0.75),
        lr: 0.05,
        grad_norm: 1.25,
        loss_scale: None,
        samples_per_second: 1234.4,
    }
}

pub(crate) fn evaluated(step: u64) -> Evaluated {
    let metrics = [("val/accuracy".to_owned(), 0.725), ("val/loss".to_owned(), 0.55)];
    Evaluated { step, epoch: (step - 1) / 20 + 1, metrics: metrics.into(), samples: 1000 }
}

pub(crate) fn epoch_done(epoch: u64) -> EpochDone {
    EpochDone {
        epoch,
        step: (20 * epoch).min(50),
        train_loss: 1.0 - 0.2 * epoch as f64,
        train_accuracy: Some(0.5 + 0.1 * epoch as f64),
        val_loss: Some(0.55),
        val_accuracy: Some(0.725),
        metrics: [].into(),
        lr: 0.05,
        seconds: 12.34,
    }
}

pub(crate) fn finished() -> Finished {
    Finished {
        reason: Reason::Completed,
        step: 50,
        best: Some(Best { metric: "val/accuracy".into(), value: 0.725, loss: None, step: 40 }),
        seconds: 151.0,
        samples_per_second: 1234.4,
        time: TimeShares {
            data: 2.0,
            forward: 50.0,
            backward: 79.0,
            communication: 5.0,
            optimizer: 4.0,
            evaluation: 8.0,
            checkpoint: 1.0,
        },
        peak_memory: None,
        no_checkpoint: false,
    }
}
