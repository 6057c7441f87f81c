//! Images per second of the loader. `just bench` times it on images that it generates itself; on
//! real ones, and in the form of a peer's figure (one JSON line; `cpu_img_s` is images per second
//! and core):
//!
//! ```text
//! MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_TOP_PAD_=67108864 \
//!     cargo bench -p ddprun-benches --bench loader -- --json crop jpegs/train 0 5
//! ```
//!
//! `crop`: decode, `RandomResizedCrop(224)`, flip, normalise; `rand_augment`: the same with
//! `RandAugment` before the last; `decode`: decode alone; `small`: 32x32 with padding 4, crop and
//! flip; `mnist`. Then the folder, the loader threads and the number
//! of epochs. The three variables are those under which ranks run.
#![expect(clippy::expect_used, reason = "a benchmark may stop")]
#![expect(clippy::print_stdout, reason = "the figures are its output")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use ddprun::config::kind::Choice;
use ddprun::config::values::Shape2;
use ddprun::data::loader::{Loader, Request, Settings};
use ddprun::data::transform::{
    CenterCrop, Normalize, PaddingMode, RandAugment, RandomCrop, RandomHorizontalFlip,
    RandomResizedCrop, Transforms,
};
use ddprun::data::{DataSource, Dataset, ImageFolder, Mnist, SurveyRequest, open};
use ddprun::plan::{DataPlan, Modality, OnBadSample, Sampler, SourcePlan, SplitPlan, Targets};
use libjpeg_turbo_rs::{PixelFormat, Subsampling, compress};
use rustix::time::{ClockId, clock_gettime};

/// As the command `ddprun`.
#[global_allocator]
static ALLOCATOR: ddprun::memory::Allocator = ddprun::memory::Allocator;

const BATCH: usize = 32;

fn transforms(work: &str) -> Vec<Choice> {
    let normalize = |mean: &[f64], std: &[f64]| Choice::of(&Normalize::new(mean, std));
    let flip = Choice::of(&RandomHorizontalFlip { p: 0.5 });
    let color = normalize(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]);
    match work {
        "crop" | "rand_augment" => {
            let (scale, ratio) = ([0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0]);
            let size = Shape2::Side(224);
            let crop =
                Choice::of(&RandomResizedCrop { scale, ratio, ..RandomResizedCrop::to(size) });
            let augment = (work != "crop").then(|| Choice::of(&RandAugment::default()));
            [crop, flip].into_iter().chain(augment).chain([color]).collect()
        }
        "small" => {
            let padding_mode = PaddingMode::Constant;
            let crop = RandomCrop { size: Shape2::Side(32), padding: 4, padding_mode };
            vec![Choice::of(&crop), flip, color]
        }
        "mnist" => vec![normalize(&[0.1307], &[0.3081])],
        // One pixel is left, so that nothing but the decoder takes time.
        _ => vec![Choice::of(&CenterCrop { size: Shape2::Side(1) })],
    }
}

/// The training samples of a folder, in their transforms.
fn dataset(work: &str, dir: &Path) -> Arc<dyn Dataset> {
    let (train_dir, val_dir) = (dir.to_owned(), dir.to_owned());
    let source: Box<dyn DataSource> = match work {
        "mnist" => Box::new(Mnist { dir: dir.to_owned() }),
        _ => Box::new(ImageFolder::new(train_dir, val_dir)),
    };
    let mut plan = DataPlan {
        source: SourcePlan::new(work, Modality::Images),
        n_train: 0,
        n_val: 0,
        n_test: 0,
        notes: Vec::new(),
        classes: Vec::new(),
        target_columns: Vec::new(),
        token_bytes: Vec::new(),
        split: SplitPlan::NONE,
        aug_repeats: 1,
        class_weights: Vec::new(),
        subset_of: None,
        sampler: Sampler::Shards,
        shuffle: true,
        drop_last: true,
        num_workers: 0,
        prefetch_factor: 2,
        on_bad_sample: OnBadSample::Error,
        max_bad_fraction: 0.1,
        train_transforms: transforms(work),
        val_transforms: transforms(work),
        mixup: None,
        pad_to_longest: false,
    };
    (plan.n_train, plan.n_val, plan.classes) = counted(work, dir);
    let asked = SurveyRequest::new(work, 0, Targets::Classes);
    open(source.as_ref(), &plan, &asked, &Transforms::default()).expect("usable data").train
}

/// (training samples, validation samples, classes)
fn counted(work: &str, train: &Path) -> (usize, usize, Vec<String>) {
    if work == "mnist" {
        return (60_000, 10_000, (0..10).map(|label| label.to_string()).collect());
    }
    let entries = |dir: &Path| -> Vec<_> {
        let mut paths: Vec<_> = dir
            .read_dir()
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        paths.sort();
        paths
    };
    let folders: Vec<_> = entries(train).into_iter().filter(|path| path.is_dir()).collect();
    let n = folders.iter().map(|folder| entries(folder).len()).sum();
    let name = |folder: &std::path::PathBuf| {
        folder.file_name().expect("a name").to_string_lossy().into_owned()
    };
    (n, n, folders.iter().map(name).collect())
}

/// Loads `n` samples in batches.
fn load(dataset: &Arc<dyn Dataset>, threads: usize, n: usize, epoch: u64) {
    let batches = n / BATCH;
    let request = move |batch: usize| Request {
        samples: (batch * BATCH..(batch + 1) * BATCH).map(|sample| sample as u32).collect(),
        epoch: Some(epoch),
        ..Request::default()
    };
    let settings = Settings {
        seed: 0,
        threads,
        prefetch_factor: 2,
        on_bad_sample: OnBadSample::Error,
        mixup: None,
        pad_to_longest: false,
    };
    let loader = Loader::start(dataset.clone(), (0..batches).map(request), settings);
    for loaded in loader.expect("threads") {
        let batch = loaded.expect("a batch").batch;
        assert_eq!(batch.samples.len(), BATCH);
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Epochs over a folder, one JSON line.
fn json(work: &str, dir: &Path, threads: usize, epochs: u64) {
    let dataset = dataset(work, dir);
    let n = dataset.len() / BATCH * BATCH;
    load(&dataset, threads, n.min(10 * BATCH), 0);
    let mut rates: Vec<(f64, f64)> = (1..=epochs)
        .map(|epoch| {
            let (start, cpu) = (Instant::now(), cpu_time());
            load(&dataset, threads, n, epoch);
            let cpu = cpu_time().saturating_sub(cpu);
            (n as f64 / start.elapsed().as_secs_f64(), n as f64 / cpu.as_secs_f64())
        })
        .collect();
    let reps: Vec<String> = rates.iter().map(|(rate, _)| format!("{rate:.1}")).collect();
    let middle = rates.len() / 2;
    rates.sort_by(|a, b| a.1.total_cmp(&b.1));
    let cpu_img_s = rates[middle].1;
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let img_s = rates[middle].0;
    println!(
        r#"{{"bench":"loader","kind":"ddprun","work":"{work}","workers":{threads},"img_s":{img_s:.1},"cpu_img_s":{cpu_img_s:.1},"reps":[{}]}}"#,
        reps.join(",")
    );
}

/// `n` JPEG files of one size, with edges, gradients and noise, in one class folder.
fn generate(dir: &Path, n: usize, width: usize, height: usize) {
    let folder = dir.join("class");
    std::fs::create_dir_all(&folder).expect("a folder");
    for image in 0..n {
        let mut noise = image as u32;
        let mut pixels = Vec::with_capacity(3 * width * height);
        for place in 0..width * height {
            let (x, y) = (place % width, place / width);
            let tile = (x / 16 * 5 + y / 16 * 3 + image) % 7 * 24;
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            pixels.extend(
                (0..3).map(|c| (x / 6 + y / (4 + c) + tile + (noise >> 28) as usize) as u8),
            );
        }
        let bytes = compress(&pixels, width, height, PixelFormat::Rgb, 90, Subsampling::S420);
        let path = folder.join(format!("{image:04}.jpg"));
        ddprun::internals::files::write_atomic(&path, &bytes.expect("an encoder")).expect("a disk");
    }
}

fn generated(c: &mut Criterion) {
    let mut group = c.benchmark_group("loader, 1 thread");
    for (work, n, (width, height)) in
        [("crop", 64, (500, 375)), ("decode", 64, (500, 375)), ("small", 512, (32, 32))]
    {
        let dir = tempfile::tempdir().expect("a disk");
        generate(dir.path(), n, width, height);
        let dataset = dataset(work, dir.path());
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(format!("{work}, {width}x{height} JPEG"), |bencher| {
            bencher.iter(|| load(&dataset, 0, n, 1));
        });
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let Some(at) = args.iter().position(|arg| arg == "--json") else {
        let mut criterion =
            Criterion::default().sample_size(10).without_plots().configure_from_args();
        generated(&mut criterion);
        criterion.final_summary();
        return;
    };
    let number = |place: usize| args[at + place].parse().expect("a number");
    json(&args[at + 1], Path::new(&args[at + 2]), number(3) as usize, number(4));
}
