//! One hash of weights, optimizer state, losses and gradient norms over everything that must not
//! change it: world size, compute threads, loader threads, size of buckets, overlap.

use std::collections::BTreeSet;
use std::sync::Arc;

use ddprun::data::loader::{Loader, Request, Settings};
use ddprun::data::sampler::{EpochOrder, MicroBatch};
use ddprun::data::{Dataset, SampleError, Target};
use ddprun::internals::collective::Collective;
use ddprun::plan::{MixupMode, MixupPlan, Plan, Precision};
use ddprun::rng::Key;
use ddprun::units::Bytes;

use crate::support::{CLASSES, N_TRAIN, batch, engine, fingerprint, on_ranks, plan};

const PRECISIONS: [Precision; 2] = [Precision::Fp32, Precision::Bf16];
const WORLDS: [u32; 3] = [1, 2, 4];
const WORKERS: [usize; 3] = [0, 1, 4];
const THREADS: [usize; 2] = [1, 2];
const CAPS: [Bytes; 2] = [Bytes(2048), Bytes(25 << 20)];
const OVERLAPS: [bool; 2] = [true, false];

/// One way to run the same steps: an index into each of the arrays above.
type Choice = [usize; 6];
const N_CHOICES: Choice =
    [PRECISIONS.len(), WORLDS.len(), WORKERS.len(), THREADS.len(), CAPS.len(), OVERLAPS.len()];

/// Nine ways in which any two values of any two of the six meet.
const PAIRWISE: [Choice; 9] = [
    [0, 0, 0, 1, 0, 0],
    [1, 0, 1, 0, 1, 0],
    [1, 0, 2, 0, 0, 1],
    [1, 1, 0, 1, 1, 0],
    [0, 1, 1, 0, 1, 1],
    [1, 1, 2, 1, 0, 0],
    [1, 2, 0, 0, 0, 1],
    [0, 2, 1, 1, 0, 1],
    [0, 2, 2, 1, 1, 0],
];

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
fn steps(plan: &Plan, n_steps: usize, collective: Arc<dyn Collective>) -> String {
    let rank = collective.rank();
    let world = plan.distributed.world_size;
    let order = EpochOrder::new(&plan.data, &plan.batch, world, plan.seed, 0);
    let passes =
        (0..n_steps).flat_map(|step| order.passes(step, rank).into_iter().map(move |p| (step, p)));
    let request = |(step, pass): (usize, MicroBatch)| Request {
        samples: pass.samples,
        partners: pass.partners,
        copies: pass.copies,
        step: step as u64,
        epoch: Some(0),
    };
    let requests: Vec<Request> = passes.map(request).collect();
    let settings = Settings::new(&plan.data, plan.seed);
    let samples = Arc::new(Samples(plan.clone()));
    let mut loader = Loader::start(samples, requests.into_iter(), settings).unwrap();
    let mut engine = engine(plan, collective);
    let mut told = Vec::new();
    for step in 0..n_steps {
        let passes = order.passes(step, rank);
        let mut next = || loader.next().unwrap().map(|loaded| loaded.batch);
        let report = engine.step(&passes, &mut next, &|| None).unwrap();
        told.push((report.loss.to_bits(), report.grad_norm.to_bits()));
    }
    engine.broadcast_buffers().unwrap();
    format!("{} {told:x?}", fingerprint(&engine))
}

/// As [`steps`], on every rank with so many compute threads; all ranks agree.
fn trained(plan: &Plan, n_steps: usize, threads: usize) -> String {
    let outcomes = on_ranks(plan, |collective| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(16 << 20);
        pool.build().unwrap().install(|| steps(plan, n_steps, collective))
    });
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "ranks differ: {outcomes:#?}");
    outcomes[0].clone()
}

/// What a model becomes in one way, and the way in words.
fn one_way(model: &str, n_steps: usize, input: &[usize], way: Choice) -> (String, String) {
    let [precision, world, workers, threads, cap, overlap] = way;
    let (world, workers, threads) = (WORLDS[world], WORKERS[workers], THREADS[threads]);
    let (cap, overlap) = (CAPS[cap], OVERLAPS[overlap]);
    let mut plan = plan(model, input, world);
    plan.precision = PRECISIONS[precision];
    plan.data.num_workers = workers;
    plan.distributed.bucket_cap = cap;
    plan.distributed.overlap = overlap;
    let words = format!("{world} ranks, {threads} threads, {workers} workers, {cap}, {overlap}");
    (trained(&plan, n_steps, threads), words)
}

/// The ways of one precision have one hash.
#[track_caller]
fn one_hash(model: &str, n_steps: usize, input: &[usize], ways: impl Iterator<Item = Choice>) {
    let mut first = [const { None }; PRECISIONS.len()];
    for way in ways {
        let (found, words) = one_way(model, n_steps, input, way);
        let expected = first[way[0]].get_or_insert_with(|| found.clone());
        assert_eq!(found, *expected, "{words}");
    }
    assert!(first.iter().flatten().count() > 0);
}

/// All 72 ways of one precision.
fn all_of(precision: usize) -> impl Iterator<Item = Choice> {
    let n: usize = N_CHOICES[1..].iter().product();
    (0..n).map(move |mut number| {
        let mut way = [precision; 6];
        for (index, choices) in way.iter_mut().zip(N_CHOICES).skip(1) {
            *index = number % choices;
            number /= choices;
        }
        way
    })
}

#[test]
fn in_nine_ways_any_two_values_meet() {
    for a in 0..6 {
        for b in 0..a {
            let met: BTreeSet<_> = PAIRWISE.iter().map(|way| (way[a], way[b])).collect();
            assert_eq!(met.len(), N_CHOICES[a] * N_CHOICES[b], "{a} and {b}");
        }
    }
    assert_eq!(all_of(0).collect::<BTreeSet<_>>().len(), 72);
}

#[test]
fn a_resnet18_has_one_hash_in_nine_ways() {
    one_hash("resnet18", 2, &[3, 8, 8], PAIRWISE.into_iter());
}

#[test]
fn an_mlp_with_dropout_has_one_hash() {
    one_hash("mlp", 3, &[10], all_of(0));
}

#[test]
fn an_mlp_with_dropout_has_one_hash_in_half_precision() {
    one_hash("mlp", 3, &[10], all_of(1));
}

#[test]
fn a_resnet_with_batch_norm_has_one_hash() {
    one_hash("resnet8", 3, &[3, 8, 8], all_of(0));
}

#[test]
fn a_resnet_with_batch_norm_has_one_hash_in_half_precision() {
    one_hash("resnet8", 3, &[3, 8, 8], all_of(1));
}

#[test]
fn mixed_images_have_one_hash() {
    let hash = |world, workers, mixup| {
        let mut plan = plan("resnet8", &[3, 8, 8], world);
        (plan.data.num_workers, plan.data.mixup) = (workers, mixup);
        trained(&plan, 3, 1)
    };
    let mixup = MixupPlan {
        mixup_alpha: 0.8,
        cutmix_alpha: 1.0,
        prob: 1.0,
        switch_prob: 0.5,
        mode: MixupMode::Pair,
        off_epoch: None,
        classes: CLASSES,
    };
    let alone = hash(1, 0, Some(mixup));
    assert_ne!(alone, hash(1, 0, None));
    assert_ne!(alone, hash(1, 0, Some(MixupPlan { mode: MixupMode::Batch, ..mixup })));
    for (world, workers) in [(2, 1), (4, 0)] {
        assert_eq!(hash(world, workers, Some(mixup)), alone, "{world} ranks");
    }
}
