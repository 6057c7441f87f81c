//! One hash of weights, moments, losses and gradient norms over everything that must not change it: world size,
//! compute threads, loader threads, size of buckets, overlap.

use std::sync::Arc;

use ddprun::collective::Collective;
use ddprun::data::loader::{Loader, Request, Settings};
use ddprun::data::sampler::EpochOrder;
use ddprun::data::{Dataset, SampleError, Target};
use ddprun::engine::Wish;
use ddprun::plan::{Plan, Precision};
use ddprun::rng::Key;
use ddprun::units::Bytes;

use crate::support::{N_TRAIN, batch, engine, fingerprint, on_ranks, plan};

const STEPS: usize = 3;

/// The samples of [`batch`], with noise as their augmentation.
struct Samples(Plan);

impl Dataset for Samples {
    fn len(&self) -> usize {
        N_TRAIN
    }

    fn shape(&self) -> &[usize] {
        &self.0.model.input
    }

    fn classifies(&self) -> bool {
        true
    }

    fn name(&self, index: usize) -> String {
        index.to_string()
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let sample: Vec<f32> =
            batch(&self.0, &[index as u32]).inputs.flatten_all().unwrap().to_vec1().unwrap();
        let mut noise = key.unwrap().stream();
        values.extend(sample.into_iter().map(|value| value + 0.1 * noise.normal() as f32));
        Ok(Target::Class(index as u32 % self.0.model.outputs as u32))
    }
}

/// What one rank has after some steps whose samples came through a loader.
fn steps(plan: &Plan, collective: Arc<dyn Collective>) -> String {
    let rank = collective.rank();
    let world = plan.distributed.world_size;
    let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, 0);
    let passes = (0..STEPS).flat_map(|step| order.passes(step, rank));
    let request = |samples| Request { samples, epoch: Some(0) };
    let requests: Vec<Request> = passes.map(|pass| request(pass.samples)).collect();
    let settings = Settings::new(&plan.data, plan.seed);
    let samples = Arc::new(Samples(plan.clone()));
    let mut loader = Loader::start(samples, requests.into_iter(), settings).unwrap();
    let mut engine = engine(plan, collective);
    let mut told = Vec::new();
    for step in 0..STEPS {
        let passes = order.passes(step, rank);
        let mut next = || loader.next().unwrap().map(|loaded| loaded.batch);
        let report = engine.step(&passes, &mut next, Wish::Continue).unwrap();
        told.push((report.loss.to_bits(), report.grad_norm.to_bits()));
    }
    engine.broadcast_buffers().unwrap();
    format!("{} {told:x?}", fingerprint(&engine))
}

/// As [`steps`], on every rank with so many compute threads; all ranks agree.
fn trained(plan: &Plan, threads: usize) -> String {
    let outcomes = on_ranks(plan, |collective| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(16 << 20);
        pool.build().unwrap().install(|| steps(plan, collective))
    });
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "ranks differ: {outcomes:#?}");
    outcomes[0].clone()
}

/// All 72 ways to run the same steps.
#[track_caller]
fn one_hash(model: &str, input: &[usize], precision: Precision) {
    let mut first = None;
    for world in [1, 2, 4] {
        for (threads, workers, cap, overlap) in ways() {
            let mut plan = plan(model, input, world);
            plan.precision = precision;
            plan.data.num_workers = workers;
            plan.distributed.bucket_cap = cap;
            plan.distributed.overlap = overlap;
            let found = trained(&plan, threads);
            let expected = first.get_or_insert_with(|| found.clone());
            let way =
                format!("{world} ranks, {threads} threads, {workers} workers, {cap}, {overlap}");
            assert_eq!(found, *expected, "{way}");
        }
    }
}

/// Compute threads, loader threads, size of buckets and overlap.
fn ways() -> Vec<(usize, usize, Bytes, bool)> {
    let mut ways = Vec::new();
    for threads in [1, 2] {
        for workers in [0, 1, 4] {
            for cap in [Bytes(2048), Bytes(25 << 20)] {
                ways.extend([true, false].map(|overlap| (threads, workers, cap, overlap)));
            }
        }
    }
    ways
}

#[test]
fn an_mlp_with_dropout_has_one_hash() {
    one_hash("mlp", &[10], Precision::Fp32);
}

#[test]
fn an_mlp_with_dropout_has_one_hash_in_half_precision() {
    one_hash("mlp", &[10], Precision::Bf16);
}

#[test]
fn a_resnet_with_batch_norm_has_one_hash() {
    one_hash("resnet8", &[3, 8, 8], Precision::Fp32);
}

#[test]
fn a_resnet_with_batch_norm_has_one_hash_in_half_precision() {
    one_hash("resnet8", &[3, 8, 8], Precision::Bf16);
}
