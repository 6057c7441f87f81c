//! ddprun: one TOML file in, one distributed data-parallel training run out.
//!
//! Data flows forward through the packages below and the modules of each, and a module uses only
//! modules declared above it (`tests/layering.rs` holds us to it).
//!
//! ```text
//! resnet.toml ─config─▶ Experiment ─plan─▶ Plan ─launch─▶ one process per rank ─worker─▶ Engine::step ...
//! ```
//!
//! A program of your own registers kinds ([`kinds`], [`model`], [`optim`], [`loss`], [`metric`],
//! [`data`], [`record`], [`collective`]) and calls [`cli::run`]. What this project's tests and
//! benchmarks need beside that is in `internals`.
//!
//! A program may drive an engine by itself, here with batches of its own:
//! ```
//! use std::sync::Arc;
//! use candle_core::{Device, Tensor};
//! use ddprun::config::{kind::Choice, load_text};
//! use ddprun::data::{Batch, sampler::EpochOrder};
//! use ddprun::engine::Engine;
//! use ddprun::kinds::Kinds;
//! use ddprun::plan::{DataFacts, Facts, Modality, Plan, SourcePlan};
//! use ddprun::units::{Bytes, Rank, WorldSize};
//!
//! let text = "
//!     [model]
//!     name = 'mlp'
//!     hidden = [16]
//!     [data]
//!     name = 'mnist'
//!     dir = 'not/read'
//!     [train]
//!     epochs = 1
//!     batch_size = 8
//!     [optimizer]
//!     name = 'adam'
//!     lr = 1e-2
//!     [distributed]
//!     devices = 1
//! ";
//! let kinds = Kinds::default();
//! let loaded = load_text("x.toml".as_ref(), text, &[], &kinds.vocabulary()).unwrap();
//! let kind = Choice::named("mnist");
//! let data = DataFacts {
//!     source: SourcePlan {
//!         kind,
//!         modality: Modality::Images,
//!         line: "2 classes".to_owned(),
//!         memory: Bytes(0),
//!         survey: Default::default(),
//!     },
//!     n_train: 80,
//!     n_val: 8,
//!     classes: vec!["dark".to_owned(), "bright".to_owned()],
//!     sample: Some(vec![1, 4, 4]),
//!     ..DataFacts::default()
//! };
//! let plan = Arc::new(Plan::new(&loaded, &Facts::of(data), &kinds).unwrap());
//!
//! let components = kinds.components(&plan, &Device::Cpu).unwrap();
//! let mut engine = Engine::solo(plan.clone(), components).unwrap();
//! let order = EpochOrder::new(&plan.data, &plan.batch, WorldSize::ONE, plan.seed, 0);
//! let mut losses = Vec::new();
//! for step in 0..order.steps() {
//!     let passes = order.passes(step, Rank(0));
//!     let labels: Vec<u32> = (0..8).map(|sample| sample % 2).collect();
//!     let pixels: Vec<f32> = labels.iter().flat_map(|&label| [label as f32; 16]).collect();
//!     let mut next = || {
//!         Ok(Batch {
//!             inputs: Tensor::from_slice(&pixels, (8, 1, 4, 4), &Device::Cpu).unwrap(),
//!             targets: Tensor::from_slice(&labels, 8, &Device::Cpu).unwrap(),
//!             samples: passes[0].samples.clone(),
//!             segments: None,
//!             unreadable: 0,
//!         })
//!     };
//!     losses.push(engine.step(&passes, &mut next, &|| None).unwrap().loss);
//! }
//! assert!(losses[9] < 0.5 * losses[0], "{losses:?}");
//! ```
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

pub use candle_train::{nn, onnx, ops};
#[cfg(feature = "clusters")]
pub use ddprun_cluster as cluster;
#[cfg(feature = "dashboard")]
use ddprun_dashboard as dashboard;
pub use ddprun_data as data;
use ddprun_host::{failpoint, files, http, transport};
pub use ddprun_host::{memory, registry, user_error};
use ddprun_plan::terminal;
pub use ddprun_plan::{config, plan};
#[cfg(feature = "clusters")]
use ddprun_run::jobs;
use ddprun_run::{doctor, export, launch, report, session, worker};
pub use ddprun_run::{kinds, record, runs, sweep};
#[cfg(feature = "speech")]
pub use ddprun_speech as speech;
use ddprun_train::checkpoint;
pub use ddprun_train::{collective, engine, event, loss, metric, model, optim};
#[cfg(feature = "trajectories")]
pub use ddprun_trajectories as trajectories;
#[cfg(test)]
use test_support::mutated;
pub use train_numbers::{rng, units};
pub mod predict;
mod init;
pub mod cli;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
#[doc(hidden)]
pub mod internals;
