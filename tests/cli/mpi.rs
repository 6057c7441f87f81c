//! Ranks that `mpirun` starts, by each MPI that this machine has: Open MPI and MPICH. Machines of a
//! cluster are imitated by variables that tell a rank which number it has there, of how many.

use std::fs;
use std::process::Command;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use test_support::skipped::skipped;

use crate::harness::bits::{bits, undisturbed};
use crate::harness::experiments::{BASE, SLOW};
use crate::harness::lab::{BINARY, Lab};
use crate::harness::running::{pid_of, spawn, until};

/// As many shards as the most ranks, and a last batch of an epoch that is short.
const SHARDS: [&str; 5] = [
    "distributed.shards=4",
    "train.batch_size=2",
    "data.train_per_class=17",
    "data.drop_last=false",
    "train.epochs=2",
];

/// What ranks are told of their machines.
#[derive(Clone, Copy)]
struct Place {
    /// The number of a rank there, as the shell computes it from `rank`.
    number: &'static str,
    /// Ranks of each machine.
    of: u32,
}

impl Place {
    const ALONE: Self = Self { number: "0", of: 1 };
    /// Two on each machine, which have their numbers one after the other.
    const IN_PAIRS: Self = Self { number: "rank % 2", of: 2 };
    /// Two on each of two machines, which have them by turns, as with `--map-by node`.
    const BY_TURNS: Self = Self { number: "rank / 2", of: 2 };
}

/// An `mpirun`.
struct Mpirun {
    program: &'static str,
    is_open_mpi: bool,
}

impl Mpirun {
    /// Those of this machine, under the names by which Debian tells them apart, or by the only one.
    fn all() -> Vec<Self> {
        let find = |program| {
            let asked = Command::new(program).arg("--version").output().ok()?;
            let text = String::from_utf8_lossy(&asked.stdout).into_owned();
            let is_open_mpi =
                ["Open MPI", "OpenRTE", "PRRTE"].iter().any(|name| text.contains(name));
            Some(Self { program, is_open_mpi })
        };
        let mut found: Vec<Self> =
            ["mpirun.openmpi", "mpirun.mpich"].into_iter().filter_map(find).collect();
        if found.is_empty() {
            found.extend(find("mpirun"));
        }
        if found.is_empty() {
            skipped("no `mpirun` (openmpi-bin, mpich)");
        }
        found
    }

    /// So many ranks of `program` in a lab.
    fn start(&self, lab: &Lab, ranks: u32, program: &[&str]) -> Command {
        let ranks = ranks.to_string();
        let more = ["--oversubscribe", "--bind-to", "none"];
        let more = if self.is_open_mpi { &more[..] } else { &[] };
        let args = [&["-n", &ranks], more, program].concat();
        let mut command = lab.command(self.program, &args);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        for name in ["PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"] {
            command.env_remove(name);
        }
        command
    }

    /// So many ranks of ddprun.
    fn ddprun(&self, lab: &Lab, ranks: u32, args: &[&str]) -> Command {
        self.start(lab, ranks, &[&[BINARY], args].concat())
    }

    /// The same, each of which is told that it is the only one of its machine.
    fn ddprun_on_machines(&self, lab: &Lab, ranks: u32, args: &[&str]) -> Command {
        self.on_machines(lab, ranks, Place::ALONE, "", args)
    }

    /// As many ranks as two machines of `place` have, the second of which has this fault.
    fn ddprun_with(&self, lab: &Lab, place: Place, fault: &str, args: &[&str]) -> Command {
        let fault = format!("[ ${} = 1 ] && export DDPRUN_FP='{fault}';", self.rank_variable());
        self.on_machines(lab, 2 * place.of, place, &fault, args)
    }

    fn on_machines(
        &self,
        lab: &Lab,
        ranks: u32,
        place: Place,
        before: &str,
        args: &[&str],
    ) -> Command {
        let [local_rank, local_world] = if self.is_open_mpi {
            ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]
        } else {
            ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"]
        };
        let Place { number, of } = place;
        let number = number.replace("rank", self.rank_variable());
        let script = format!(
            "{before} {local_rank}=$(({number})) {local_world}={of} exec {BINARY} {}",
            args.join(" ")
        );
        self.start(lab, ranks, &["sh", "-c", &script])
    }

    fn rank_variable(&self) -> &'static str {
        if self.is_open_mpi { "OMPI_COMM_WORLD_RANK" } else { "PMI_RANK" }
    }

    /// The process of a rank.
    fn rank(&self, lab: &Lab, rank: u32) -> u32 {
        let entry = format!("{}={rank}", self.rank_variable());
        let is_it = |pid: &u32| {
            let environ = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split('\0').any(|other| other == entry)
        };
        lab.processes().into_keys().find(is_it).unwrap()
    }
}

/// What the run said about MPI when it started.
fn said_of_mpi(lab: &Lab) -> Option<String> {
    let events = lab.events();
    let started = events.iter().find(|event| event["event"] == "started").unwrap();
    let lines = started["arithmetic"].as_array().unwrap().iter();
    let lines = lines.map(|line| line.as_str().unwrap().to_owned());
    lines.into_iter().find(|line| line.contains("through MPI: "))
}

#[test]
fn one_two_and_four_ranks_of_each_mpirun_give_the_bits_of_shared_memory() {
    let found = Mpirun::all();
    let plain = Lab::with(BASE);
    if !found.is_empty() {
        plain.run_to(0, &[&["small.toml"], &SHARDS[..]].concat());
    }
    for mpirun in found {
        for ranks in [1, 2, 4] {
            let lab = Lab::with(BASE);
            let args = [&["small.toml", "distributed.backend=mpi"], &SHARDS[..]].concat();
            let args = [&args[..], &["distributed.devices=auto"]].concat();
            spawn(mpirun.ddprun(&lab, ranks, &args)).wait().has_code(0);
            let said = said_of_mpi(&lab);
            let name = if mpirun.is_open_mpi { "Open MPI" } else { "MPICH" };
            // A rank alone has nothing to send.
            assert_eq!(said.is_some(), ranks > 1, "{said:?}");
            assert!(said.is_none_or(|line| line.contains(name)), "{}", mpirun.program);
            bits(&lab).must_be(&bits(&plain));
            until("the end of the launcher's processes", || lab.processes().is_empty());
            lab.is_clean();
        }
    }
}

#[test]
fn ranks_of_several_machines_use_mpi_by_themselves_and_meet_without_a_token() {
    for mpirun in Mpirun::all() {
        let (lab, plain) = (Lab::with(BASE), Lab::with(BASE));
        let args = ["small.toml", "distributed.devices=auto"];
        let ended = spawn(mpirun.ddprun_on_machines(&lab, 2, &args)).wait();
        ended.has_code(0);
        assert!(said_of_mpi(&lab).is_some(), "{}", ended.stderr);
        plain.run_to(0, &["small.toml"]);
        bits(&lab).must_be(&bits(&plain));
        // On one machine shared memory is faster.
        let one = Lab::with(BASE);
        spawn(mpirun.ddprun(&one, 2, &args)).wait().has_code(0);
        assert_eq!(said_of_mpi(&one), None);
        bits(&one).must_be(&bits(&plain));
        // Rank 0 says what no rank can do.
        let refused = [&args[..], &["fault.max_restarts=3"]].concat();
        let ended = spawn(mpirun.ddprun_on_machines(&Lab::with(BASE), 2, &refused)).wait();
        assert_ne!(ended.code, 0);
        ended.says(&["is not available over several machines"]);
    }
}

/// The plan of the run.
fn plan(lab: &Lab) -> Value {
    let text = fs::read_to_string(lab.run_folder().join("run.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["plan"]["distributed"].clone()
}

#[test]
fn ranks_of_a_machine_share_memory_and_its_first_talks_to_the_others() {
    let found = Mpirun::all();
    let plain = Lab::with(BASE);
    if !found.is_empty() {
        plain.run_to(0, &[&["small.toml"], &SHARDS[..]].concat());
    }
    for mpirun in found {
        for (place, nodes) in [(Place::IN_PAIRS, 2), (Place::BY_TURNS, 4)] {
            let lab = Lab::with(BASE);
            let args = [&["small.toml", "distributed.devices=auto"], &SHARDS[..]].concat();
            let ended = spawn(mpirun.on_machines(&lab, 4, place, "", &args)).wait();
            ended.has_code(0);
            let plan = plan(&lab);
            assert_eq!((&plan["backend"], &plan["nodes"]), (&"mpi".into(), &nodes.into()));
            assert_eq!(plan["machine_mapping"].is_u64(), nodes == 2, "{plan}");
            assert!(said_of_mpi(&lab).is_some(), "{}", ended.stderr);
            bits(&lab).must_be(&bits(&plain));
            until("the end of the launcher's processes", || lab.processes().is_empty());
            lab.is_clean();
        }
    }
}

#[test]
fn more_than_eight_ranks_vote_through_a_tree() {
    let found = Mpirun::all();
    let args = ["small.toml", "train.batch_size=1", "train.global_batch_size=10", "train.epochs=1"];
    let plain = Lab::with(BASE);
    if !found.is_empty() {
        plain.run_to(0, &[&args[..], &["distributed.devices=10"]].concat());
    }
    for mpirun in found {
        let lab = Lab::with(BASE);
        let more = ["distributed.devices=auto", "distributed.backend=mpi"];
        spawn(mpirun.ddprun(&lab, 10, &[&args[..], &more].concat())).wait().has_code(0);
        bits(&lab).must_be(&bits(&plain));
        // In pairs there are five machines.
        let pairs = Lab::with(BASE);
        let args = [&args[..], &more[..1]].concat();
        spawn(mpirun.on_machines(&pairs, 10, Place::IN_PAIRS, "", &args)).wait().has_code(0);
        bits(&pairs).must_be(&bits(&plain));
    }
}

#[test]
fn gradients_that_the_library_adds_up_are_close_to_those_of_the_tree() {
    for mpirun in Mpirun::all() {
        let losses = |how: &str| -> Vec<f64> {
            let lab = Lab::with(BASE);
            let how = format!("distributed.all_reduce={how}");
            let args = ["small.toml", "distributed.devices=auto", "train.epochs=1", &how];
            let more = ["train.batch_size=2", "optimizer.name=sgd", "optimizer.lr=0.01"];
            let args = [&args[..], &more].concat();
            spawn(mpirun.on_machines(&lab, 4, Place::IN_PAIRS, "", &args)).wait().has_code(0);
            let events = lab.events();
            let started = events.iter().find(|event| event["event"] == "started").unwrap();
            let is_said = started["arithmetic"].to_string().contains("summed by the MPI library");
            assert_eq!(is_said, how.ends_with("library"), "{started}");
            events.iter().filter_map(|event| event["loss"].as_f64()).collect()
        };
        let (tree, library) = (losses("tree"), losses("library"));
        assert!(tree.len() >= 6 && tree.len() == library.len(), "{tree:?}");
        for (tree, library) in tree.iter().zip(&library) {
            assert!((tree - library).abs() <= 1e-6 * tree.abs(), "{tree} and {library}");
        }
    }
}

#[test]
fn a_signal_to_one_rank_of_mpirun_stops_all_and_they_resume_to_the_same_bits() {
    for mpirun in Mpirun::all() {
        let lab = Lab::with(SLOW);
        let args = ["small.toml", "distributed.backend=mpi"];
        let mut running = spawn(mpirun.ddprun(&lab, 2, &args));
        lab.wait_for_step_and_save(&mut running, 17);
        kill_process(pid_of(mpirun.rank(&lab, 1)), Signal::TERM).unwrap();
        let ended = running.wait();
        // A busy machine may have finished before.
        if lab.last_step() < 60 {
            ended.has_code(75);
        }
        spawn(mpirun.ddprun(&lab, 2, &["resume"])).wait().has_code(0);
        bits(&lab).must_be(&undisturbed(&Lab::with(SLOW), &[]));
        // Elsewhere it goes on without MPI, and says how.
        let refused = lab.run_to(2, &["resume"]);
        refused.says(&["no MPI launcher has started this process"]);
        lab.is_clean();
    }
}

#[test]
fn a_rank_of_mpirun_that_is_killed_ends_all() {
    for mpirun in Mpirun::all() {
        for place in [None, Some(Place::ALONE), Some(Place::IN_PAIRS)] {
            let lab = Lab::with(SLOW);
            let args = ["small.toml", "train.epochs=100000", "distributed.devices=auto"];
            let args = [&args[..], &["train.batch_size=2"]].concat();
            let command = match place {
                None => mpirun.ddprun(&lab, 2, &[&args[..], &["distributed.backend=mpi"]].concat()),
                Some(place) => mpirun.on_machines(&lab, 2 * place.of, place, "", &args),
            };
            let mut running = spawn(command);
            lab.wait_for_step(&mut running, 3);
            kill_process(pid_of(mpirun.rank(&lab, 1)), Signal::KILL).unwrap();
            let ended = running.wait();
            assert_ne!(ended.code, 0);
            if mpirun.is_open_mpi {
                // MPICH kills the others before they can say anything.
                ended.says(&["rank 1"]);
            }
            until("the end of all ranks", || lab.processes().is_empty());
        }
    }
}

#[test]
fn a_rank_that_fails_tells_the_others_why_through_mpi() {
    for mpirun in Mpirun::all() {
        for place in [Place::ALONE, Place::IN_PAIRS] {
            let lab = Lab::with(BASE);
            let args = ["small.toml", "distributed.timeout=30s", "distributed.devices=auto"];
            let args = [&args[..], &["train.batch_size=2"]].concat();
            let fault = "backward=panic@*,3";
            let ended = spawn(mpirun.ddprun_with(&lab, place, fault, &args)).wait();
            assert_ne!(ended.code, 0);
            // The first rank of its machine may hear of it before the call does.
            let by_itself = "rank 1 ended the group: ";
            let by_first = "rank 1 failed: ";
            let is_by_first = ended.stderr.contains(by_first);
            ended.says(&[if is_by_first { by_first } else { by_itself }]);
            assert!(!is_by_first || place.of > 1, "no rank shares its machine");
            until("the end of all ranks", || lab.processes().is_empty());
        }
    }
}

#[test]
fn a_rank_that_hangs_is_named_at_the_deadline() {
    for mpirun in Mpirun::all() {
        for place in [Place::ALONE, Place::IN_PAIRS] {
            let lab = Lab::with(BASE);
            let args = ["small.toml", "distributed.timeout=2s", "distributed.devices=auto"];
            let args = [&args[..], &["train.batch_size=2"]].concat();
            let fault = "backward=hang@*,3";
            let ended = spawn(mpirun.ddprun_with(&lab, place, fault, &args)).wait();
            ended.has_code(5);
            ended.says(&["timed out waiting for rank 1 (in call "]);
            until("the end of all ranks", || lab.processes().is_empty());
        }
    }
}

#[test]
fn what_mpi_cannot_do_is_refused_in_words() {
    let lab = Lab::with(BASE);
    let alone = lab.run_to(2, &["small.toml", "distributed.backend=mpi"]);
    alone.says(&["is \"mpi\", but no MPI launcher has started this process", "mpirun -n 4"]);
    let library = lab.run_to(2, &["small.toml", "distributed.all_reduce=library"]);
    library.says(&["is \"library\", which is a sum by MPI", "mpirun -n 4"]);
    let found = Mpirun::all();
    for mpirun in &found {
        let one = spawn(mpirun.ddprun(&lab, 1, &["small.toml", "distributed.backend=mpi"])).wait();
        assert_ne!(one.code, 0);
        one.says(&["launcher started 1 rank, but `distributed.devices` gives 2"]);
        lab.write("sweep.toml", "base = \"small.toml\"\n[sweep]\nmethod = \"grid\"\n");
        let sweep = spawn(mpirun.ddprun(&lab, 2, &["sweep", "sweep.toml"])).wait();
        assert_ne!(sweep.code, 0);
        sweep.says(&["a sweep starts its ranks itself"]);
    }
    // Ranks of one MPI with the variables of the other.
    if let [open_mpi, _] = &found[..] {
        let variables =
            "r=$OMPI_COMM_WORLD_RANK; unset OMPI_COMM_WORLD_RANK; PMI_RANK=$r PMI_SIZE=2";
        let local = "MPI_LOCALRANKID=$r MPI_LOCALNRANKS=2";
        let script =
            format!("{variables} {local} exec {BINARY} small.toml distributed.backend=mpi");
        let mixed = spawn(open_mpi.start(&lab, 2, &["sh", "-c", &script])).wait();
        assert_ne!(mixed.code, 0);
        mixed.says(&["the launcher started 2 ranks, but MPICH", "sees 1: it does not belong"]);
    }
    until("the end of all ranks", || lab.processes().is_empty());
    lab.is_clean();
}
