//! An experiment as it is submitted -> the same for the ranks of a cluster, and the facts that
//! decide about it there.

use crate::Shape;
use crate::config::Experiment;
use crate::config::schema::Sampler;
use crate::config::values::{Auto, Devices};
use crate::plan::{Facts, GpuFacts, MpiFacts};
use crate::units::{Bytes, WorldSize};

/// Memory of a GPU that is not known yet.
const UNKNOWN_GPU: Bytes = Bytes(80 << 30);

/// The experiment on a cluster of this shape, and the ranks of each machine. Its name is fixed,
/// which may be that of the file, and so are its shards: fewer machines give the same bits.
pub fn placed(mut experiment: Experiment, name: &str, shape: Shape) -> (Experiment, u32) {
    experiment.experiment.name = Some(name.to_owned());
    let distributed = &mut experiment.distributed;
    let of_gpus = (shape.gpus_per_node > 0).then_some(shape.gpus_per_node);
    let ranks = shape.ranks_per_node.or(of_gpus).or(distributed.devices.count());
    // Without a number they are what the machine has, which is not known here.
    let Some(ranks) = ranks.or((shape.nodes > 1).then_some(1)) else { return (experiment, 1) };
    let is_listed = matches!(distributed.devices, Devices::List(_));
    if !is_listed || distributed.devices.count() != Some(ranks) {
        distributed.devices = Devices::Count(ranks);
    }
    if shape.nodes > 1
        && distributed.shards == Auto::Auto
        && experiment.data.sampler != Sampler::Torch
    {
        experiment.distributed.shards = Auto::Given(ranks * shape.nodes);
    }
    (experiment, ranks)
}

/// Facts that this machine found about an experiment, changed to those of a cluster of this shape.
pub fn facts_of(here: Facts, shape: Shape, ranks: u32) -> Facts {
    let gpu = |_| GpuFacts { name: "a GPU of the cluster".to_owned(), memory: UNKNOWN_GPU };
    let gpus = here.gpus.as_ref().map(|_| (0..shape.gpus_per_node).map(gpu).collect());
    let launched = Facts {
        launched_world: Some(WorldSize::ONE),
        nodes: shape.nodes * ranks,
        mpi: (!shape.needs_token).then_some(MpiFacts::Found),
        ..here.clone()
    };
    let facts = if shape.is_launched {
        launched
    } else {
        Facts { launched_world: None, nodes: shape.nodes, mpi: None, ..here }
    };
    // Its processor and its memory are others.
    Facts { gpus, memory: None, ..facts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Vocabulary, load_text};

    fn experiment(devices: &str) -> Experiment {
        let text = format!(
            "[model]\nname = 'mlp'\n[data]\nname = 'shapes'\n[train]\nepochs = 1\nbatch_size = 4\n\
             [distributed]\ndevices = {devices}\n"
        );
        load_text("x.toml".as_ref(), &text, &[], &Vocabulary::open()).unwrap().experiment
    }

    #[track_caller]
    fn check(devices: &str, shape: Shape, expected: &(Devices, Auto<u32>, u32)) {
        let (placed, ranks) = placed(experiment(devices), "x", shape);
        let found = (placed.distributed.devices, placed.distributed.shards, ranks);
        assert_eq!(found, *expected, "{devices} {shape:?}");
    }

    #[test]
    fn ranks_are_the_clusters_then_one_for_each_gpu_then_the_experiments() {
        let one = Shape::one_machine(None);
        check("'auto'", one, &(Devices::Auto, Auto::Auto, 1));
        check("3", one, &(Devices::Count(3), Auto::Auto, 3));
        check("3", Shape { gpus_per_node: 2, ..one }, &(Devices::Count(2), Auto::Auto, 2));
        check(
            "[0, 0]",
            Shape { gpus_per_node: 2, ..one },
            &(Devices::List(vec![0, 0]), Auto::Auto, 2),
        );
        let asked = Shape { gpus_per_node: 2, ranks_per_node: Some(8), ..one };
        check("3", asked, &(Devices::Count(8), Auto::Auto, 8));
    }

    #[test]
    fn shards_of_several_machines_are_fixed() {
        let two = Shape { nodes: 2, ..Shape::one_machine(None) };
        check("'auto'", two, &(Devices::Count(1), Auto::Given(2), 1));
        check("4", two, &(Devices::Count(4), Auto::Given(8), 4));
    }
}
