//! First weights that follow from training images.

use std::sync::Arc;

use crate::data::Dataset;
use crate::data::loader::{Loader, Request, Settings};
use crate::engine;
use crate::kinds::Kinds;
use crate::model::{self, Whitening};
use crate::nn::Params;
use crate::plan::Plan;
use crate::worker::Error;

/// Most images whose patches are whitened.
const MAX_SAMPLED_IMAGES: usize = 5000;
/// Images that are loaded at once.
const BATCH: usize = 250;

/// Gives the convolution that whitens patches its first values, if the model has one: those of
/// images from all over the training data, without anything random, so that they are the same at
/// any world size. Rank 0's are broadcast later.
pub(super) fn whiten(
    plan: &Plan,
    kinds: &Kinds,
    params: &Params,
    images: &Arc<dyn Dataset>,
) -> Result<(), Error> {
    let architecture = kinds.models.architecture(&plan.model);
    let architecture = architecture.map_err(|error| kinds_error(error.into()))?;
    let Some(name) = architecture.whitens() else { return Ok(()) };
    let failed = |source| engine::Error::Tensor { phase: "whitening", step: 0, source };
    let mut whitening = Whitening::of(params, name).map_err(failed)?;
    let all = images.len();
    let n = images.len().min(MAX_SAMPLED_IMAGES);
    let samples: Vec<u32> = (0..n).map(|i| (i * all / n.max(1)) as u32).collect();
    let request = |batch: &[u32]| Request { samples: batch.to_vec(), ..Request::default() };
    let requests: Vec<Request> = samples.chunks(BATCH).map(request).collect();
    let settings = Settings { mixup: None, ..Settings::new(&plan.data, plan.seed) };
    for loaded in Loader::start(images.clone(), requests.into_iter(), settings)? {
        let batch = loaded?.batch;
        if !batch.samples.is_empty() {
            whitening.add(&batch.inputs).map_err(failed)?;
        }
    }
    Ok(whitening.apply(params, name).map_err(failed)?)
}

fn kinds_error(error: model::Error) -> Error {
    Error::Model(error.into())
}
