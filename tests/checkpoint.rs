//! Checkpoints that are damaged in every way, newer than this ddprun, and written while
//! training goes on.
#![expect(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a test")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use ddprun::engine::{Engine, TrainState};
use ddprun::internals::checkpoint::{self, Destination, Importance, Snapshot, Writer};
use ddprun::model::Models;
use ddprun::nn::Params;
use ddprun::nn::state_dict::save_state_dict;
use ddprun::optim::ParameterState;
use ddprun::plan::{EmaPlan, Plan};
use ddprun::units::Rank;
use serde_json::json;
use support::{engine, fingerprint, group, on_ranks, plan, step};

const FILES: [&str; 4] =
    ["MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json"];

/// A plan whose checkpoints are small enough to be damaged at each of their bytes.
fn small_plan() -> Plan {
    let mut plan = plan("mlp", &[2], 1);
    plan.model.kind.set("hidden", [2]);
    plan.checkpoint.keep_last = 2;
    plan
}

fn trained(plan: &Plan, steps: usize) -> Engine {
    let mut engine = engine(plan, group(plan).remove(0));
    for _ in 0..steps {
        step(&mut engine, plan, Rank(0)).unwrap();
    }
    engine
}

fn snapshot<'a>(plan: &'a Plan, engine: &'a Engine) -> Snapshot<'a> {
    let (params, optimizer_state, state) =
        (engine.params(), engine.optimizer_state(), engine.state());
    Snapshot { plan, params, optimizer_state, state }
}

/// A run with whole checkpoints of step 1 and step 2.
struct Lab {
    plan: Plan,
    params: Params,
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let (plan, folder) = (small_plan(), tempfile::tempdir().unwrap());
        for steps in [1, 2] {
            checkpoint::save(folder.path(), &snapshot(&plan, &trained(&plan, steps))).unwrap();
        }
        let (_, params) = Models::default().instantiate(&plan.model, 999).unwrap();
        Self { plan, params, folder }
    }

    fn newer(&self) -> PathBuf {
        self.folder.path().join("step-00000002")
    }

    /// The damage of the newer checkpoint, which is named on the way to the older one.
    #[track_caller]
    fn damage(&self) -> String {
        let restored =
            checkpoint::restore_newest(self.folder.path(), &self.plan, &self.params).unwrap();
        let restored = restored.unwrap();
        assert_eq!(restored.state.step, 1, "the checkpoint before it is used");
        let error = checkpoint::verify(&self.newer()).unwrap_err().to_string();
        let [newer] = &restored.skipped[..] else { panic!("{:?}", restored.skipped) };
        assert_eq!(newer.damage, error, "restoring and verifying say the same");
        assert_eq!(newer.words(1), format!("{error}; using the one of step 1, 1 step older"));
        let opened = checkpoint::newest(self.folder.path()).unwrap();
        assert_eq!(opened.skipped, restored.skipped);
        assert!(error.contains("step-00000002` is damaged: `"), "{error}");
        error
    }
}

#[test]
fn a_file_that_was_cut_at_any_length_is_named_and_the_checkpoint_before_it_is_used() {
    let lab = Lab::new();
    for name in FILES {
        let path = lab.newer().join(name);
        let whole = fs::read(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        for length in (0..whole.len()).rev() {
            file.set_len(length as u64).unwrap();
            let damage = lab.damage();
            assert!(damage.contains(name), "{name} cut at {length}: {damage}");
        }
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(checkpoint::newest(lab.folder.path()).unwrap().state.step, 2);
}

#[test]
fn a_bit_that_was_turned_in_any_byte_is_found_and_the_tensor_is_named() {
    let lab = Lab::new();
    let mut named = std::collections::BTreeSet::new();
    for name in FILES {
        let path = lab.newer().join(name);
        let file = File::options().write(true).open(&path).unwrap();
        for (position, byte) in fs::read(&path).unwrap().into_iter().enumerate() {
            file.write_all_at(&[byte ^ 1 << (position % 8)], position as u64).unwrap();
            let damage = lab.damage();
            assert!(damage.contains(name), "{name} at {position}: {damage}");
            named.extend(damage.split("first in ").nth(1).map(str::to_owned));
            file.write_all_at(&[byte], position as u64).unwrap();
        }
    }
    let opened = checkpoint::open(&lab.newer()).unwrap();
    for file in ["model.safetensors", "optimizer.safetensors"] {
        for tensor in checkpoint::tensors(&opened, file).unwrap() {
            assert!(named.contains(&format!("`{}`", tensor.name)), "{}: {named:?}", tensor.name);
        }
    }
    assert!(named.contains("`header`"), "{named:?}");
}

#[test]
fn a_file_that_is_missing_or_no_file_is_named_without_waiting_for_a_pipe() {
    let lab = Lab::new();
    for name in FILES {
        let path = lab.newer().join(name);
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let missing = lab.damage();
        assert!(missing.contains(name), "{missing}");
        assert!(missing.contains("is missing") || missing.contains("No such file"), "{missing}");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let pipe = lab.damage();
        assert!(pipe.contains(name) && pipe.contains("not a file"), "{pipe}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let folder = lab.damage();
        assert!(folder.contains(name) && folder.contains("not a file"), "{folder}");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, whole).unwrap();
    }
}

/// A manifest with the seal that it must have.
fn sealed(mut manifest: serde_json::Value) -> Vec<u8> {
    manifest["seal"] = "".into();
    let seal = blake3::hash(&serde_json::to_vec(&manifest).unwrap());
    manifest["seal"] = seal.to_hex().to_string().into();
    serde_json::to_vec_pretty(&manifest).unwrap()
}

#[test]
fn a_checkpoint_of_a_newer_ddprun_is_refused_with_both_numbers_and_not_passed_over() {
    let lab = Lab::new();
    let path = lab.newer().join("MANIFEST.json");
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(sealed(manifest.clone()), fs::read(&path).unwrap(), "the seal is as documented");
    manifest["format"] = 4.into();
    fs::write(&path, sealed(manifest)).unwrap();
    let folder = lab.folder.path();
    let error = checkpoint::restore_newest(folder, &lab.plan, &lab.params).unwrap_err();
    let words = "it has format 4, this ddprun reads up to 3: use a newer ddprun";
    assert!(error.to_string().ends_with(words), "{error}");
}

#[test]
fn a_checkpoints_weights_are_the_state_dict_to_the_byte() {
    let lab = Lab::new();
    let opened = checkpoint::open(&lab.newer()).unwrap();
    checkpoint::restore(&opened, &lab.plan, &lab.params).unwrap();
    let model = checkpoint::model(&opened).unwrap();
    assert!(model == save_state_dict(&lab.params).unwrap());
    assert!(model == fs::read(lab.newer().join("model.safetensors")).unwrap());
}

#[test]
fn averaged_weights_are_exported_under_all_names_and_the_others_as_they_are() {
    let mut plan = plan("gpt", &[12], 1);
    plan.model.target = vec![12];
    support::choose(&mut plan, &json!({ "d_model": 8, "n_heads": 2, "n_layers": 1 }));
    let folder = tempfile::tempdir().unwrap();
    let exported = |plan: &Plan| {
        let engine = trained(plan, 2);
        checkpoint::save(folder.path(), &snapshot(plan, &engine)).unwrap();
        let opened = checkpoint::newest(folder.path()).unwrap();
        (engine, checkpoint::averaged_model(&opened).unwrap())
    };
    let (engine, weights) = exported(&plan);
    assert!(weights == save_state_dict(engine.params()).unwrap());
    plan.ema = Some(EmaPlan { decay: 0.9, power: None, use_buffers: false });
    let (engine, averages) = exported(&plan);
    assert!(averages != save_state_dict(engine.params()).unwrap());
    for (param, state) in engine.params().parameters().iter().zip(engine.optimizer_state()) {
        let average = Tensor::new(state.average.as_slice(), &Device::Cpu).unwrap();
        param.var().unwrap().set(&average.reshape(param.shape()).unwrap()).unwrap();
    }
    let expected = save_state_dict(engine.params()).unwrap();
    let tensors = |bytes: &[u8]| {
        let tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu).unwrap();
        tensors
            .into_iter()
            .map(|(name, t)| (name, t.flatten_all().unwrap().to_vec1::<f32>().unwrap()))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    assert!(tensors(&averages).contains_key("lm_head.weight"));
    assert_eq!(tensors(&averages), tensors(&expected));
}

#[test]
fn a_checkpoint_of_another_experiment_is_refused_by_what_differs() {
    let lab = Lab::new();
    let mut other = lab.plan.clone();
    other.model.kind.set("hidden", [3]);
    let (_, params) = Models::default().instantiate(&other.model, 1).unwrap();
    let error = checkpoint::restore_newest(lab.folder.path(), &other, &params).unwrap_err();
    assert!(error.to_string().contains("does not fit this experiment: `"), "{error}");
    assert!(error.to_string().contains(" instead of ["), "{error}");
    let mut other = lab.plan.clone();
    other.optimizer = ddprun::optim::plan(&ddprun::optim::AdamW::default(), 0.05);
    let error = checkpoint::restore_newest(lab.folder.path(), &other, &lab.params).unwrap_err();
    assert!(error.to_string().contains("it has no `exp_avg"), "{error}");
}

#[test]
fn a_checkpoint_that_is_deleted_after_it_was_opened_can_still_be_read() {
    let lab = Lab::new();
    let opened = checkpoint::open(&lab.newer()).unwrap();
    let whole = checkpoint::model(&opened).unwrap();
    fs::remove_dir_all(lab.newer()).unwrap();
    assert_eq!(checkpoint::model(&opened).unwrap(), whole);
    checkpoint::restore(&opened, &lab.plan, &lab.params).unwrap();
    let gone = checkpoint::open(&lab.newer()).unwrap_err();
    assert!(gone.to_string().ends_with("is gone: its run has deleted it meanwhile"), "{gone}");
}

#[test]
fn readers_of_a_run_that_deletes_its_checkpoints_find_none_damaged() {
    let plan = small_plan();
    let folder = tempfile::tempdir().unwrap();
    let (_, params) = Models::default().instantiate(&plan.model, 999).unwrap();
    let mut engine = trained(&plan, 1);
    checkpoint::save(folder.path(), &snapshot(&plan, &engine)).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while last < 60 {
                let opened = checkpoint::newest(folder.path()).unwrap();
                assert_eq!(opened.skipped, [], "step {}", opened.state.step);
                assert!(opened.state.step >= last);
                checkpoint::restore(&opened, &plan, &params).unwrap();
                last = opened.state.step;
            }
        });
        for _ in 2..=60 {
            step(&mut engine, &plan, Rank(0)).unwrap();
            checkpoint::save(folder.path(), &snapshot(&plan, &engine)).unwrap();
        }
        reader.join().unwrap();
    });
}

#[test]
fn rotation_neither_counts_nor_touches_what_was_passed_over_on_resume() {
    let mut plan = small_plan();
    let folder = tempfile::tempdir().unwrap();
    let save = |plan: &Plan, steps| {
        checkpoint::save(folder.path(), &snapshot(plan, &trained(plan, steps))).unwrap();
    };
    for steps in [1, 5] {
        save(&plan, steps);
    }
    fs::write(folder.path().join("step-00000005/model.safetensors"), b"torn").unwrap();
    plan.checkpoint.keep_last = 1;
    plan.checkpoint.keep_best = 0;
    for steps in [2, 3] {
        save(&plan, steps);
    }
    let steps: Vec<u64> =
        checkpoint::all(folder.path()).unwrap().iter().map(|found| found.step).collect();
    assert_eq!(steps, [3, 5], "the newest good one stays, and the damaged one as it was found");
    assert_eq!(checkpoint::newest(folder.path()).unwrap().state.step, 3);
    assert_eq!(fs::read_link(folder.path().join("latest")).unwrap(), Path::new("step-00000003"));
}

/// A file system may refuse to remove what another program has open, or what lies in a lower layer.
#[test]
fn an_old_checkpoint_that_cannot_be_removed_is_a_warning_and_does_not_end_the_run() {
    let (mut plan, folder) = (small_plan(), tempfile::tempdir().unwrap());
    plan.checkpoint.keep_last = 1;
    plan.checkpoint.keep_best = 0;
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(folder.path(), everyone).unwrap();
    let save = |steps| checkpoint::save(folder.path(), &snapshot(&plan, &trained(&plan, steps)));
    // Root may remove anything.
    let surplus = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(None, Some(nobody), None).unwrap();
            }
            let older = save(1).unwrap().path;
            let read_only = std::os::unix::fs::PermissionsExt::from_mode(0o555);
            fs::set_permissions(&older, read_only).unwrap();
            let surplus = save(2).unwrap().surplus;
            let left = || {
                let entries = fs::read_dir(folder.path()).unwrap();
                let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
                names.filter(|name| name.contains("step-00000001")).collect::<Vec<_>>()
            };
            let writable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(folder.path().join(&left()[0]), writable).unwrap();
            assert_eq!(save(3).unwrap().surplus, None);
            assert_eq!(left(), [""; 0], "it is tried again");
            surplus
        });
        thread.join().unwrap()
    });
    let surplus = surplus.unwrap();
    assert!(surplus.starts_with("cannot remove `"), "{surplus}");
    assert!(surplus.contains("step-00000001`: Permission denied"), "{surplus}");
    assert!(checkpoint::verify(&folder.path().join("step-00000003")).is_ok());
}

#[test]
fn a_checkpoint_holds_the_state_of_its_step_however_far_training_has_gone_on() {
    let plan = plan("resnet8", &[3, 8, 8], 2);
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("events.jsonl");
    fs::write(&record, "").unwrap();
    let undisturbed = on_ranks(&plan, |collective| {
        let rank = collective.rank();
        let mut engine = engine(&plan, collective);
        let destination = Destination {
            folder: folder.path().to_owned(),
            plan: plan.checkpoint.clone(),
            records: vec![record.clone()],
        };
        let writer =
            rank.is_first().then(|| Writer::start(destination, &snapshot(&plan, &engine)).unwrap());
        for _ in 0..4 {
            step(&mut engine, &plan, rank).unwrap();
        }
        let then = rank.is_first().then(|| (fingerprint(&engine), engine.state().clone()));
        for _ in 4..8 {
            if let Some(writer) = writer.as_ref().filter(|_| engine.state().step == 4) {
                writer.save(&snapshot(&plan, &engine), Importance::Regular).unwrap();
            }
            step(&mut engine, &plan, rank).unwrap();
        }
        let saved = writer.map(|writer| writer.finish().unwrap());
        assert_eq!(saved.map(|saved| saved[0].step), rank.is_first().then_some(4));
        then
    });
    let (model, params) = Models::default().instantiate(&plan.model, 999).unwrap();
    let restored = checkpoint::restore_newest(folder.path(), &plan, &params).unwrap().unwrap();
    let state: (TrainState, Vec<ParameterState>) = (restored.state, restored.optimizer_state);
    let mut alone = plan.clone();
    alone.distributed.backend = ddprun::plan::BackendPlan::alone();
    alone.distributed.world_size = ddprun::units::WorldSize::ONE;
    let collective = group(&alone).remove(0);
    let engine = Engine::new(
        Arc::new(alone.clone()),
        support::components(&alone, (model, params)),
        collective,
        Some(state),
    )
    .unwrap();
    let then = undisturbed[0].clone().unwrap();
    assert_eq!((fingerprint(&engine), engine.state().clone()), then);
}
