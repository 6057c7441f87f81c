//! GPUs that are made up: devices, backends, and what is refused.

use super::*;
use crate::plan::cuda_graph::obstacle;
use crate::plan::{GpuFacts, MpiFacts};
use train_numbers::units::Rank;

fn with_gpus(count: usize) -> Facts {
    let gpu = GpuFacts { name: "NVIDIA H100 80GB HBM3".to_owned(), memory: Bytes(80 << 30) };
    Facts { gpus: Some(vec![gpu; count]), ..animals() }
}

/// `ANIMALS` without a number of ranks.
fn auto() -> String {
    ANIMALS.replace("devices = 4", "")
}

#[test]
fn every_visible_gpu_gets_a_rank_and_nccl_sums() {
    let plan = good(&auto(), &[], &with_gpus(3));
    assert_eq!(plan.distributed.devices, ["cuda:0", "cuda:1", "cuda:2"]);
    let header_and_staging = Bytes((64 << 10) + 3 * (1 << 20));
    assert_eq!(plan.distributed.backend, BackendPlan::sharing("nccl", Some(header_and_staging)));
    assert_eq!([0, 2].map(|rank| plan.distributed.gpu(Rank(rank))), [Some(0), Some(2)]);
    let one = good(&auto(), &[], &with_gpus(1));
    assert_eq!(one.distributed.devices, ["cuda:0"]);
    assert_eq!(one.distributed.backend, BackendPlan::alone());
    let none = good(&auto(), &[], &with_gpus(0));
    assert_eq!(
        (&none.distributed.devices[..], none.distributed.gpu(Rank(0))),
        (&["cpu".to_owned()][..], None)
    );
}

#[test]
fn what_was_trained_on_gpus_is_evaluated_on_whatever_is_there() {
    let trained = good(&auto(), &["distributed.devices=[3, 0]"], &with_gpus(4));
    for (visible, device) in [(4, "cuda:3"), (1, "cuda:0"), (0, "cpu")] {
        let mut alone = trained.distributed.clone();
        alone.become_alone(visible);
        assert_eq!((&alone.devices[..], alone.world_size.get()), (&[device.to_owned()][..], 1));
        assert_eq!(alone.backend, BackendPlan::alone());
    }
    let mut on_cpu = good(&auto(), &[], &with_gpus(0)).distributed;
    on_cpu.become_alone(2);
    assert_eq!(on_cpu.devices, ["cpu"], "a run of the CPU stays there");
}

#[test]
fn a_list_names_gpus_and_two_ranks_may_share_one() {
    let listed = good(&auto(), &["distributed.devices=[3, 0]"], &with_gpus(4));
    assert_eq!(listed.distributed.devices, ["cuda:3", "cuda:0"]);
    assert_eq!(listed.distributed.backend.name, "nccl");
    let shared = good(&auto(), &["distributed.devices=[1, 1]"], &with_gpus(2));
    assert_eq!(shared.distributed.devices, ["cuda:1", "cuda:1"]);
    assert_eq!(shared.distributed.backend.name, "shm");
    let staged = good(ANIMALS, &["distributed.backend=shm"], &with_gpus(4));
    assert_eq!(staged.distributed.backend.name, "shm");
    let by_launcher = Facts { launched_world: WorldSize::new(4), ..with_gpus(2) };
    let launched = good(&auto(), &[], &by_launcher);
    assert_eq!(launched.distributed.devices, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]);
    assert_eq!(
        told(&auto(), &["distributed.devices=[1, 0]"], &by_launcher),
        ["`distributed.devices`: lists 2 GPUs, but the launcher started 4 ranks (list as many \
          GPUs as the launcher starts ranks, or omit it)",]
    );
}

#[test]
fn a_loss_without_kernels_is_refused_on_gpus() {
    let facts = Facts { gpus: with_gpus(1).gpus, ..prices() };
    let changes = ["loss.name=on_cpus", "distributed.devices=1"];
    assert_eq!(
        told(PRICES, &changes, &facts),
        ["`loss.name`: `on_cpus` has no kernel for GPUs (train on the CPU \
          (`CUDA_VISIBLE_DEVICES=`), or choose another loss)"]
    );
}

#[test]
fn an_optimizer_without_a_kernel_stays_on_the_cpu_and_the_page_says_so() {
    let facts = with_gpus(1);
    let with_head = |model: &ModelPlan| {
        describe(model).map(|facts| ModelFacts { head: vec!["fc2.".to_owned()], ..facts })
    };
    for (name, on_cpu) in [("muon", true), ("adamw", false)] {
        let loaded = read(&auto(), &[&format!("optimizer.name={name}"), "~optimizer.momentum"]);
        let plan = Plan::new(&loaded, &facts, &with_head).unwrap();
        assert_eq!(plan.optimizer.on_cpu, on_cpu);
        let page = page(&plan, &loaded, &facts, &costs(&plan, None));
        assert_eq!(page.contains(", on the CPU"), on_cpu, "{page}");
    }
}

#[test]
fn a_smaller_group_leaves_out_the_devices_that_failed_while_there_are_others() {
    let changes = ["distributed.min_world_size=1", "distributed.devices=4", "distributed.shards=4"];
    let loaded = read(&auto(), &changes);
    let facts = with_gpus(4);
    let plan = Plan::new(&loaded, &facts, &describe).unwrap();
    let smaller = plan.smaller(&loaded, &facts, &describe).unwrap();
    let [two, one] = &smaller[..] else { panic!("{} smaller groups", smaller.len()) };
    let devices = &plan.distributed.devices;
    let on = |plan: &Plan, failed: &[&str]| {
        let failed: Vec<String> = failed.iter().map(|name| (*name).to_owned()).collect();
        plan.sparing(devices, &failed).distributed.devices.join(" ")
    };
    assert_eq!(on(two, &[]), "cuda:0 cuda:1");
    assert_eq!(on(two, &["cuda:0"]), "cuda:1 cuda:2");
    assert_eq!(on(two, &["cuda:1", "cuda:2"]), "cuda:0 cuda:3");
    assert_eq!(on(one, &["cuda:0", "cuda:1"]), "cuda:2");
    assert_eq!(on(two, &["cuda:0", "cuda:1", "cuda:2"]), "cuda:3 cuda:0", "there are no others");
    // Of a list, in its order; two that share none now must not share one.
    let listed = |list: &[&str], failed: &str| {
        let list: Vec<String> = list.iter().map(|name| (*name).to_owned()).collect();
        two.sparing(&list, &[failed.to_owned()]).distributed.devices.join(" ")
    };
    assert_eq!(listed(&["cuda:3", "cuda:0", "cuda:1"], "cuda:0"), "cuda:3 cuda:1");
    assert_eq!(listed(&["cuda:0", "cuda:1", "cuda:1"], "cuda:0"), "cuda:0 cuda:1");
}

#[test]
fn ranks_of_a_launcher_that_see_as_many_gpus_as_one_rank_find_out_whether_they_differ() {
    let launched = |gpus| Facts { launched_world: WorldSize::new(4), ..with_gpus(gpus) };
    for (changes, gpus, finds_out) in [
        (&[][..], 1, true),
        (&[], 2, true),
        (&[], 4, false),
        (&["distributed.backend=shm"], 1, false),
    ] {
        let plan = good(&auto(), changes, &launched(gpus));
        assert_eq!(plan.distributed.nccl_if_apart, finds_out, "{changes:?}, {gpus} GPUs");
    }
    let shared = good(&auto(), &["distributed.devices=[0, 0]"], &with_gpus(1));
    assert!(!shared.distributed.nccl_if_apart, "we gave them the same");
    let refused = told(&auto(), &["distributed.backend=nccl"], &launched(1));
    assert!(refused[0].contains("omit it"), "{refused:?}");
}

#[test]
fn several_machines_use_their_own_gpus_and_nccl_sums_between_all() {
    let machines = |gpus| Facts { nodes: 2, ..with_gpus(gpus) };
    let decided = |changes: &[&str], gpus| good(&auto(), changes, &machines(gpus)).distributed;
    let nccl = BackendPlan::sharing("nccl", None);
    for changes in [&[][..], &["distributed.backend=nccl"]] {
        let plan = decided(changes, 2);
        assert_eq!(plan.devices, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]);
        assert_eq!((plan.world_size.get(), plan.local_world().get()), (4, 2));
        assert_eq!(plan.gpu(Rank(3)), Some(1), "each machine counts from 0");
        assert_eq!((&plan.backend, plan.nccl_shares_a_gpu()), (&nccl, false));
    }
    assert_eq!(decided(&[], 1).backend, nccl, "one GPU on each is two ranks");
    let listed = decided(&["distributed.devices=[3, 1]"], 4);
    assert_eq!(listed.devices, ["cuda:3", "cuda:1", "cuda:3", "cuda:1"]);
    // Where ranks share a GPU, and where it is asked for, gradients go through the CPUs' memory.
    let shared = ["distributed.devices=[0, 0]"];
    assert_eq!(decided(&shared, 1).backend.name, "tcp");
    assert_eq!(decided(&["distributed.backend=tcp"], 2).backend.name, "tcp");
    let both = decided(&[shared[0], "distributed.backend=nccl"], 1);
    assert_eq!((&both.backend, both.nccl_shares_a_gpu()), (&nccl, true));
    // Machines without GPUs stay as they were.
    let cpus = decided(&["distributed.devices=2"], 0);
    assert_eq!((cpus.backend.name.as_str(), cpus.is_on_gpus()), ("tcp", false));
    let refused = told(&auto(), &["distributed.backend=nccl"], &machines(0));
    assert!(refused[0].contains("needs GPUs, but CUDA shows none"), "{refused:?}");
    let refused = told(&auto(), &["distributed.backend=shm"], &machines(2));
    assert!(refused[0].contains("connects ranks of one machine"), "{refused:?}");
}

#[test]
fn ranks_of_a_launcher_on_several_machines_take_the_gpu_of_their_place_and_find_out() {
    let alone = WorldSize::ONE;
    let launched = |local_rank, gpus| Facts {
        nodes: 4,
        launched_world: Some(alone),
        local_rank,
        ..with_gpus(gpus)
    };
    for (local_rank, gpus, device) in
        [(0, 2, "cuda:0"), (1, 2, "cuda:1"), (1, 1, "cuda:0"), (3, 2, "cuda:1")]
    {
        let plan = good(&auto(), &[], &launched(local_rank, gpus)).distributed;
        assert_eq!(plan.devices, [device; 4]);
        assert_eq!((plan.backend.name.as_str(), plan.nccl_if_apart), ("tcp", true));
        let nccl = good(&auto(), &["distributed.backend=nccl"], &launched(local_rank, gpus));
        let nccl = nccl.distributed;
        assert_eq!(nccl.backend, BackendPlan::sharing("nccl", None));
        assert!(!nccl.nccl_if_apart && !nccl.nccl_shares_a_gpu());
    }
    let cpus = good(&auto(), &[], &launched(1, 0)).distributed;
    assert_eq!((cpus.backend.name.as_str(), cpus.nccl_if_apart), ("tcp", false));
}

#[test]
fn ranks_of_an_mpi_launcher_use_mpi_where_asked_and_on_cpus_of_several_machines() {
    let launched = |mpi| Facts { launched_world: WorldSize::new(4), mpi, ..with_gpus(0) };
    let apart = |mpi| Facts { launched_world: Some(WorldSize::ONE), nodes: 4, ..launched(mpi) };
    let (found, asked) = (Some(MpiFacts::Found), ["distributed.backend=mpi"]);
    let backend =
        |words: &[&str], facts: &Facts| good(&auto(), words, facts).distributed.backend.name;
    assert_eq!(backend(&[], &launched(found.clone())), "shm");
    assert_eq!(backend(&asked, &launched(found.clone())), "mpi");
    assert_eq!(backend(&[], &apart(found.clone())), "mpi");
    let on_gpus = Facts { nodes: 4, mpi: found.clone(), ..with_gpus(2) };
    let on_gpus = Facts { launched_world: Some(WorldSize::ONE), ..on_gpus };
    assert_eq!(backend(&[], &on_gpus), "tcp");
    assert_eq!(backend(&asked, &on_gpus), "mpi");
    let unusable = MpiFacts::Unusable { why: "there is none".into(), help: "install it".into() };
    assert_eq!(backend(&[], &apart(Some(unusable.clone()))), "tcp");
    let refused = told(&auto(), &asked, &apart(Some(unusable)));
    assert!(refused[0].contains("is \"mpi\", but there is none"), "{refused:?}");
    let refused = told(&auto(), &asked, &launched(None));
    assert!(refused[0].contains("no MPI launcher has started this process"), "{refused:?}");
    let one = Facts { launched_world: None, mpi: found, ..with_gpus(0) };
    let refused = told(&auto(), &["distributed.backend=mpi", "distributed.devices=2"], &one);
    assert!(refused[0].contains("started 1 rank, but"), "{refused:?}");
}

#[test]
fn ranks_of_a_machine_share_their_gradients_under_mpi_unless_its_library_adds_them_up() {
    let machines = Facts {
        launched_world: WorldSize::new(2),
        nodes: 2,
        mpi: Some(MpiFacts::Found),
        ..with_gpus(0)
    };
    let tree = good(&auto(), &[], &machines);
    assert_eq!((&*tree.distributed.backend.name, tree.distributed.nodes), ("mpi", 2));
    assert!(tree.distributed.machine_mapping.is_some());
    let library = ["distributed.all_reduce=library"];
    let plan = good(&auto(), &library, &machines);
    assert_eq!(plan.distributed.machine_mapping, None);
    let told_of_library = |plan: &Plan| {
        plan.arithmetic().iter().filter(|line| line.contains("summed by the MPI library")).count()
    };
    assert_eq!((told_of_library(&plan), told_of_library(&tree)), (1, 0));
    // On one machine it must be asked for.
    let one = Facts { launched_world: WorldSize::new(4), nodes: 1, ..machines.clone() };
    assert_eq!(told_of_library(&good(&auto(), &["distributed.backend=mpi", library[0]], &one)), 1);
    for facts in [one, Facts { mpi: None, ..machines }] {
        let refused = told(&auto(), &library, &facts);
        let words = "`distributed.all_reduce`: is \"library\", which is a sum by MPI";
        assert!(refused[0].contains(words), "{refused:?}");
    }
}

#[test]
fn a_plan_of_an_earlier_version_still_says_how_large_its_mapping_is() {
    let earlier: BackendPlan = serde_json::from_str(r#"{"nccl":{"mapping":1024}}"#).unwrap();
    assert_eq!(earlier, BackendPlan::sharing("nccl", Some(Bytes(1024))));
}

#[test]
fn a_resolved_experiment_keeps_its_list_of_gpus() {
    let loaded = read(&auto(), &["distributed.devices=[1, 1]"]);
    let plan = Plan::new(&loaded, &with_gpus(2), &describe).unwrap();
    let pinned = resolved(&plan.pin(loaded.experiment)).unwrap();
    assert!(pinned.contains("devices = [1, 1]"), "{pinned}");
}

#[test]
fn gpus_that_are_not_there_are_refused_with_a_remedy() {
    let hidden =
        "name a GPU twice, `[0, 0]`, to put two ranks on it; CUDA_VISIBLE_DEVICES= hides all GPUs";
    assert_eq!(
        told(ANIMALS, &[], &with_gpus(2)),
        [format!("`distributed.devices`: is 4, but CUDA shows 2 GPUs, numbers 0 to 1 ({hidden})")]
    );
    assert_eq!(
        told(ANIMALS, &["distributed.devices=[0, 7]"], &with_gpus(1)),
        ["`distributed.devices`: names GPU 7, but CUDA shows 1 GPU, number 0"]
    );
    let nccl = ["distributed.backend=nccl"];
    assert_eq!(
        told(ANIMALS, &nccl, &with_gpus(0)),
        ["`distributed.backend`: is \"nccl\", which needs GPUs, but CUDA shows none (use backend \
          = \"shm\")"]
    );
    let shared = good(ANIMALS, &["distributed.devices=[0, 0]", nccl[0]], &with_gpus(1)).distributed;
    assert!(shared.backend.name == "nccl" && shared.nccl_shares_a_gpu());
    let apart = good(ANIMALS, &["distributed.devices=[0, 1]"], &with_gpus(2)).distributed;
    assert!(apart.backend.name == "nccl" && !apart.nccl_shares_a_gpu());
}

#[test]
fn averages_are_kept_with_and_without_gpus() {
    for gpus in [0, 1] {
        assert!(good(&auto(), &["ema.decay=0.99"], &with_gpus(gpus)).ema.is_some());
    }
}

#[test]
fn a_program_without_cuda_says_how_to_build_one() {
    let rebuild = "rebuild it with `cargo build --release --features cuda`";
    assert_eq!(
        told(ANIMALS, &["distributed.devices=[0]"], &animals()),
        [format!(
            "`distributed.devices`: lists GPUs, but this ddprun was built without `cuda` \
             ({rebuild})"
        )]
    );
    assert_eq!(
        told(ANIMALS, &["distributed.backend=nccl"], &animals()),
        [format!(
            "`distributed.backend`: this ddprun was built without `nccl` ({rebuild}, or use \
             backend = \"shm\")"
        )]
    );
}

#[test]
fn passes_are_recorded_where_nothing_of_them_is_decided_on_the_cpu() {
    let on_gpu = ["train.cuda_graph=true", "distributed.devices=1"];
    let refused = |changes: &[&str], facts: &Facts| {
        let changes: Vec<&str> = on_gpu.iter().chain(changes).copied().collect();
        told(&auto(), &changes, facts)
    };
    let one = with_gpus(2);
    assert_eq!(good(&auto(), &on_gpu, &one).cuda_graph, Some(true));
    assert_eq!(obstacle(&good(&auto(), &["distributed.devices=1"], &one)), None);
    let why =
        |what: &str| [format!("`train.cuda_graph`: cannot be: {what} (use cuda_graph = \"auto\")")];
    assert_eq!(refused(&[], &with_gpus(0)), why("ranks compute on the CPU"));
    let several = "over several ranks, all-reduce would no longer overlap backward";
    assert_eq!(obstacle(&good(&auto(), &["distributed.devices=2"], &one)), Some(several));
    let wanted = good(&auto(), &[on_gpu[0], "distributed.devices=2"], &one);
    assert_eq!(obstacle(&wanted), None, "who asks for it gives up the overlap");
    let accumulated = ["train.gradient_accumulation_steps=2", on_gpu[1]];
    assert_eq!(obstacle(&good(&auto(), &accumulated, &one)), None);
    assert_eq!(
        refused(&["distributed.shards=2"], &one),
        why("a rank with several shards accumulates gradients into different buffers in each step")
    );
    assert_eq!(
        refused(&["train.precision=fp16"], &one),
        why("the fp16 loss scale changes from step to step")
    );
    assert_eq!(
        refused(&["distributed.find_unused_parameters=true"], &one),
        why("which parameters are used may differ")
    );
    let recorded = good(&auto(), &on_gpu, &one);
    assert_eq!(obstacle(&recorded.in_smaller_passes().unwrap()), None);
    let mut dropping = recorded;
    dropping.model.drops = true;
    assert_eq!(obstacle(&dropping), Some("dropout masks are keyed by the step on the CPU"));
    let mut drawing = good(&auto(), &on_gpu, &one);
    drawing.model.draws_on_cpu = true;
    assert_eq!(
        obstacle(&drawing),
        Some("the model draws random numbers, branches or computes on the CPU")
    );
}

#[test]
fn optimizer_state_is_in_parts_on_gpus_as_on_cpus_but_a_bucket_that_is_freed_is_not_recorded() {
    let graph = ["distributed.devices=2", "train.cuda_graph=true"];
    for (stage, why) in
        [(1, None), (2, Some("`distributed.zero_stage = 2` frees what a graph works with"))]
    {
        let asked = format!("distributed.zero_stage={stage}");
        let plans = [2, 0].map(|gpus| good(ANIMALS, &[&asked, graph[0]], &with_gpus(gpus)));
        let [on_gpus, on_cpus] = &plans;
        assert!(on_gpus.distributed.is_sharded() && on_gpus.distributed.is_on_gpus());
        let [here, there] = [on_gpus, on_cpus].map(|plan| Memory::of(plan, None));
        assert_eq!((here.optimizer, here.checkpoint), (there.optimizer, there.checkpoint));
        // Other ranks' buckets are in their GPUs.
        assert!(here.gradients < there.gradients);
        let alone = Memory::of(&good(ANIMALS, &["distributed.devices=1"], &with_gpus(2)), None);
        assert!(here.optimizer < alone.optimizer);
        let recorded = [asked.as_str(), graph[0], graph[1]];
        match why {
            None => assert_eq!(obstacle(&good(ANIMALS, &recorded, &with_gpus(2))), None),
            Some(why) => assert!(told(ANIMALS, &recorded, &with_gpus(2))[0].contains(why)),
        }
    }
}
