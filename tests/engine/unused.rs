//! Parameters that the loss does not reach, or reaches late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::Tensor;

use ddprun::config::kind::{Choice, Kind};
use ddprun::engine::{Engine, Error};
use ddprun::internals::checkpoint::{self, Snapshot};
use ddprun::model::{Architecture, Model, Models};
use ddprun::nn::{Builder, ForwardContext, Init, Linear, Param};
use ddprun::optim::{self, Adam, Constant};
use ddprun::plan::{ModelPlan, Plan};
use ddprun::units::Rank;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::support::{self, CLASSES, fingerprint, on_ranks, plan, step};

/// A linear layer, and a parameter that the loss never reaches.
struct HalfUsed(Linear, #[expect(dead_code, reason = "that is the point")] Param);

impl Model for HalfUsed {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> candle_core::Result<Tensor> {
        self.0.forward(input, pass)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct HalfUsedConfig {}

impl Kind for HalfUsedConfig {
    const NAME: &'static str = "half_used";
}

impl Architecture for HalfUsedConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> candle_core::Result<Box<dyn Model>> {
        let linear = Linear::new(&builder.pp("linear"), plan.input[0], plan.outputs)?;
        let idle = builder.pp("idle").param("weight", &[3], Init::Constant(2.0))?;
        Ok(Box::new(HalfUsed(linear, idle)))
    }
}

/// An engine over `half_used`.
fn half_used_engine(
    plan: &Plan,
    collective: Arc<dyn ddprun::internals::collective::Collective>,
) -> Engine {
    let mut registry = Models::default();
    registry.add::<HalfUsedConfig>();
    let (model, params) = registry.instantiate(&plan.model, plan.seed).unwrap();
    Engine::new(
        Arc::new(plan.clone()),
        support::components(plan, (model, params)),
        collective,
        None,
    )
    .unwrap()
}

#[test]
fn a_parameter_that_the_loss_does_not_reach_is_named_or_left_as_it_is() {
    for tolerated in [false, true] {
        let mut plan = plan("half_used", &[10], 2);
        plan.distributed.find_unused_parameters = tolerated;
        on_ranks(&plan, |collective| {
            let rank = collective.rank();
            let mut engine = half_used_engine(&plan, collective);
            let outcome = step(&mut engine, &plan, rank);
            let idle = engine.params().parameters()[2].clone();
            // Weight decay would move it; DDP's optimizer does not see it.
            assert_eq!(idle.var().unwrap().to_vec1::<f32>().unwrap(), [2.0; 3]);
            match outcome {
                Ok(report) => assert!(tolerated && report.updated),
                Err(Error::Unused { step: 1, rank: Rank(0), names }) => {
                    assert!(!tolerated);
                    assert_eq!(names, ["idle.weight"]);
                }
                Err(other) => panic!("{other}"),
            }
        });
    }
}

/// A linear layer whose outputs are scaled by `gain` once so many passes are over as the options
/// say.
struct LateUsed {
    linear: Linear,
    gain: Param,
    after: u64,
    passes: AtomicU64,
}

impl Model for LateUsed {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> candle_core::Result<Tensor> {
        let y = self.linear.forward(input, pass)?;
        if self.passes.fetch_add(1, Ordering::Relaxed) < self.after {
            return Ok(y);
        }
        y.broadcast_mul(&self.gain.tensor()?)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct LateUsedConfig {
    /// Passes before the gain is used.
    after: u64,
}

impl Kind for LateUsedConfig {
    const NAME: &'static str = "late_used";
}

impl Architecture for LateUsedConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> candle_core::Result<Box<dyn Model>> {
        let linear = Linear::new(&builder.pp("linear"), plan.input[0], plan.outputs)?;
        let gain = builder.param("gain", &[plan.outputs], Init::Constant(1.0))?;
        Ok(Box::new(LateUsed { linear, gain, after: self.after, passes: AtomicU64::new(0) }))
    }
}

/// A plan for `late_used` whose gain is first used in step `first`, from 1.
fn late_plan(world: u32, first: u64) -> Plan {
    let mut plan = plan("late_used", &[10], world);
    let passes = u64::from(plan.batch.accumulation.get());
    plan.model.kind.set("after", (first - 1) * passes);
    plan.distributed.find_unused_parameters = true;
    plan.optimizer = optim::plan(&Adam::default(), plan.optimizer.lr);
    (plan.schedule.warmup_steps, plan.schedule.rule) = (0, Choice::of(&Constant {}));
    plan
}

/// A model of `late_used` with its parameters.
fn late_model(plan: &Plan) -> (Box<dyn Model>, ddprun::nn::Params) {
    let mut registry = Models::default();
    registry.add::<LateUsedConfig>();
    registry.instantiate(&plan.model, plan.seed).unwrap()
}

#[test]
fn a_parameter_that_is_used_late_begins_at_its_own_first_update() {
    let runs = [1, 2, 4].map(|world| {
        let plan = late_plan(world, 4);
        let all = on_ranks(&plan, |collective| {
            let rank = collective.rank();
            let (model, params) = late_model(&plan);
            let mut engine = Engine::new(
                Arc::new(plan.clone()),
                support::components(&plan, (model, params)),
                collective,
                None,
            )
            .unwrap();
            let gain = |engine: &Engine| -> Vec<f32> {
                engine.params().parameters()[2].var().unwrap().to_vec1().unwrap()
            };
            (0..3).for_each(|_| {
                step(&mut engine, &plan, rank).unwrap();
            });
            assert_eq!(gain(&engine), [1.0; CLASSES]);
            step(&mut engine, &plan, rank).unwrap();
            // Adam's first update goes as far as the learning rate, whatever the gradient.
            let moved: Vec<f32> = gain(&engine).iter().map(|gain| (gain - 1.0).abs()).collect();
            assert!(moved.iter().all(|moved| (moved - 0.05).abs() < 1e-5), "{moved:?}");
            step(&mut engine, &plan, rank).unwrap();
            let missed = engine.state().missed.clone();
            assert_eq!(missed, [("gain".to_owned(), 3)].into());
            fingerprint(&engine)
        });
        assert!(all.iter().all(|print| *print == all[0]));
        all[0].clone()
    });
    assert!(runs.iter().all(|print| *print == runs[0]), "the world size changed bits");

    // A resume goes on with the same counts.
    let (plan, folder) = (late_plan(1, 4), tempfile::tempdir().unwrap());
    let (model, params) = late_model(&plan);
    let collective = || support::group(&plan).remove(0);
    let mut engine = Engine::new(
        Arc::new(plan.clone()),
        support::components(&plan, (model, params)),
        collective(),
        None,
    )
    .unwrap();
    (0..4).for_each(|_| {
        step(&mut engine, &plan, Rank(0)).unwrap();
    });
    let (params, optimizer_state, state) =
        (engine.params(), engine.optimizer_state(), engine.state());
    let snapshot = Snapshot { plan: &plan, params, optimizer_state, state };
    checkpoint::save(folder.path(), &snapshot).unwrap();
    let plan = late_plan(1, 1);
    let (model, params) = late_model(&plan);
    let restored = checkpoint::restore_newest(folder.path(), &plan, &params).unwrap().unwrap();
    let restored = Some((restored.state, restored.optimizer_state));
    let mut engine = Engine::new(
        Arc::new(plan.clone()),
        support::components(&plan, (model, params)),
        collective(),
        restored,
    )
    .unwrap();
    step(&mut engine, &plan, Rank(0)).unwrap();
    assert_eq!(fingerprint(&engine), runs[0]);
}
