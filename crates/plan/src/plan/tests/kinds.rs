//! Components of these tests, as this package registers none.

use crate::config::kind::{Choice, Entry};
use crate::plan::{
    BackendCapabilities, BackendFacts, ComponentFacts, Flow, Images, LayerMisfit, LayerPlan,
    LossFacts, Matrices, MetricContext, MetricFacts, Mode, ModelFacts, ModelPlan, OptimizerFacts,
    PixelStats, SchedulerFacts, SharedMemory, Span, StateTensor, Targets, TransformFacts, Unfit,
};

/// A function that describes the model; transforms by the size that they lead to, and losses, SGD,
/// Adam, schedulers and backends by their names.
impl<F: Fn(&ModelPlan) -> Result<ModelFacts, String>> ComponentFacts for F {
    fn model(&self, plan: &ModelPlan) -> Result<ModelFacts, String> {
        self(plan)
    }

    fn transforms(
        &self,
        asked: &[Choice],
        images: &Images,
        _: Option<&PixelStats>,
    ) -> Result<TransformFacts, (usize, Unfit)> {
        let side = |value: &serde_json::Value| value.as_u64().map(|side| side as u32);
        let size = asked.iter().fold(images.size, |size, choice| {
            let given = choice.options.get("size");
            match given.map(|given| (side(given), side(&given[0]), side(&given[1]))) {
                Some((Some(_), ..)) if choice.name == "resize" => size,
                Some((Some(side), ..)) => Some((side, side)),
                Some((None, height, width)) => height.zip(width),
                None => size,
            }
        });
        let (list, random) = (asked.to_vec(), Vec::new());
        Ok(TransformFacts { list, channels: images.channels, size, values: None, random })
    }

    fn layers(&self, _: &[Entry], _: Flow, _: usize) -> Result<Vec<LayerPlan>, LayerMisfit> {
        Ok(Vec::new())
    }

    fn loss(&self, loss: &Choice) -> Result<LossFacts, String> {
        let targets = match loss.name.as_str() {
            "cross_entropy" => Targets::Classes,
            "time_frequency" => Targets::Series,
            _ => Targets::Numbers,
        };
        let takes_probabilities = loss.name == "cross_entropy";
        let runs_on_gpus = loss.name != "on_cpus";
        Ok(LossFacts {
            targets,
            weighs_labels: false,
            runs_on_gpus,
            takes_probabilities,
            is_never_negative: true,
            needs_reference: false,
        })
    }

    fn metrics(&self, context: &MetricContext) -> Vec<MetricFacts> {
        let unless = |is_wrong: bool, why: &str| is_wrong.then(|| why.to_owned());
        let numbers = unless(
            context.has_classes(),
            "is a regression metric, but the loss is a classification loss",
        );
        let classes = unless(
            !context.has_classes(),
            "is a classification metric, but the loss is a regression loss",
        );
        [
            ("accuracy", Mode::Max, classes),
            ("mse", Mode::Min, numbers.clone()),
            ("mae", Mode::Min, numbers),
        ]
        .map(|(name, mode, why_not)| MetricFacts { name: name.to_owned(), mode, why_not })
        .into()
    }

    fn optimizer(&self, rule: &Choice) -> Result<OptimizerFacts, String> {
        let option = |key: &str| rule.options.get(key).and_then(serde_json::Value::as_f64);
        let (state, momentum): (&[&str], _) = match rule.name.as_str() {
            "sgd" if option("momentum").is_none() => (&[], None),
            "sgd" => (&["momentum_buffer"], Some("momentum")),
            _ => (&["exp_avg", "exp_avg_sq"], Some("beta1")),
        };
        Ok(OptimizerFacts {
            state: state.iter().map(|&name| name.to_owned()).collect(),
            matrices: (rule.name == "muon").then(|| Matrices {
                only_hidden: true,
                state: vec![StateTensor::whole("momentum_buffer")],
                others_lr_factor: 0.1,
            }),
            weight_decay: option("weight_decay").unwrap_or(0.0),
            momentum: momentum.map(str::to_owned),
            has_gpu_kernel: rule.name != "muon",
        })
    }

    fn scheduler(&self, rule: &Choice) -> Result<SchedulerFacts, String> {
        let moves_by_steps = rule.name == "one_cycle";
        let momentum = moves_by_steps.then_some([0.85, 0.95]);
        Ok(SchedulerFacts { moves_by_steps, momentum, ..SchedulerFacts::default() })
    }

    fn schedule(&self, rule: &Choice, span: &Span) -> Result<String, Unfit> {
        if rule.options.contains_key("eta_min") {
            return Err(Unfit { key: "eta_min", what: "is refused".to_owned(), help: None });
        }
        let over = span.intervals.map_or(String::new(), |n| format!(" over {n} {}", span.unit()));
        Ok(rule.name.clone() + &over)
    }

    fn backends(&self) -> Vec<BackendFacts> {
        let backend = |name: &str, label: Option<&str>| {
            let label = label.map(str::to_owned);
            let capabilities = BackendCapabilities { label, ..BackendCapabilities::default() };
            BackendFacts { is_automatic: true, capabilities, ..BackendFacts::named(name) }
        };
        let mut shm = backend("shm", None);
        shm.one_machine = Some(SharedMemory::Gradients);
        let mut nccl = backend("nccl", Some("NCCL"));
        (nccl.one_machine, nccl.several_machines) =
            (Some(SharedMemory::Staging), Some(SharedMemory::Staging));
        nccl.capabilities.sums_on_gpus = true;
        let mut tcp = backend("tcp", Some("TCP"));
        (tcp.one_machine, tcp.several_machines) = (None, Some(SharedMemory::Gradients));
        tcp.capabilities.bucket_copies = 1;
        let mut mpi = backend("mpi", Some("MPI"));
        mpi.several_machines = Some(SharedMemory::Gradients);
        mpi.sums_by_library = true;
        mpi.capabilities.meets_by_mpi = true;
        mpi.capabilities.bucket_copies = 3;
        vec![shm, nccl, tcp, mpi]
    }
}
