//! Runs over several machines: programs that share nothing but an address, each in a folder of its
//! own.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::harness::experiments::BASE;
use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Ended, Running, pid_of, spawn, until};

/// A run that ends only when it is stopped.
const ENDLESS: [&str; 5] = [
    "train.epochs=1000000",
    "validation.every=never",
    "checkpoint.every=20 steps",
    "logging.every=10 steps",
    "logging.sinks=[jsonl]",
];

/// Folders that stand for machines, with one token.
pub(crate) struct Machines {
    pub(crate) labs: Vec<Lab>,
    port: String,
}

impl Machines {
    pub(crate) fn new(count: usize) -> Self {
        let labs: Vec<Lab> = (0..count).map(|_| Lab::with(BASE)).collect();
        labs[0].run_to(0, &["token", "run.token"]);
        for lab in &labs[1..] {
            // With its mode.
            fs::copy(labs[0].path("run.token"), lab.path("run.token")).unwrap();
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { labs, port: free.to_string() }
    }

    fn start_with(&self, node: usize, verb: &[&str], changes: &[&str]) -> Running {
        spawn(self.command(&self.labs[node], node, verb, changes))
    }

    /// The program in `lab` as the machine `node`.
    pub(crate) fn command(
        &self,
        lab: &Lab,
        node: usize,
        verb: &[&str],
        changes: &[&str],
    ) -> Command {
        let (count, number) = (self.labs.len().to_string(), node.to_string());
        let flags = ["--nnodes", &count, "--node-rank", &number, "--master-addr", "127.0.0.1"];
        let more = ["--master-port", &self.port, "--token-file", "run.token"];
        lab.ddprun(&[verb, &flags, &more, changes].concat())
    }

    pub(crate) fn start(&self, node: usize, changes: &[&str]) -> Running {
        self.start_with(node, &["small.toml", "--nproc-per-node", "1"], changes)
    }

    /// Node 0, which waits for the others.
    fn waiting(&self, changes: &[&str]) -> Running {
        let mut first = self.start(0, changes);
        until("node 0", || first.stderr().contains("waiting for node 1") || first.is_over());
        assert!(!first.is_over(), "{}", first.stderr());
        first
    }

    /// All nodes in an endless run, with a checkpoint.
    pub(crate) fn endless(&self, changes: &[&str]) -> Vec<Running> {
        self.endless_of("1", changes)
    }

    /// The same with so many ranks on each.
    fn endless_of(&self, ranks: &str, changes: &[&str]) -> Vec<Running> {
        let changes = [&ENDLESS[..], changes].concat();
        let verb = ["small.toml", "--nproc-per-node", ranks];
        let start = |node| self.start_with(node, &verb, &changes);
        let mut all: Vec<Running> = (0..self.labs.len()).map(start).collect();
        self.labs[0].wait_for_step_and_save(&mut all[0], 40);
        assert!(!all[0].is_over(), "{}", all[0].stderr());
        all
    }

    pub(crate) fn are_clean(&self) {
        self.labs.iter().for_each(Lab::is_clean);
    }
}

pub(crate) fn end(all: Vec<Running>) -> Vec<Ended> {
    all.into_iter().map(Running::wait).collect()
}

/// The end state of a run.
pub(crate) fn state(lab: &Lab) -> [Vec<u8>; 3] {
    let file = |name: &str| fs::read(lab.checkpoints().join("latest").join(name)).unwrap();
    ["model.safetensors", "optimizer.safetensors", "state.json"].map(file)
}

#[test]
fn two_machines_give_the_bits_of_one_with_as_many_ranks() {
    // Machines, ranks of each, samples of each; 6 in a step leave the last batch uneven.
    let shapes = [(2, 1, 4), (2, 2, 2), (2, 3, 1), (3, 1, 2)];
    for ((count, ranks, batch), stage) in shapes.iter().zip([0, 2].iter().cycle()) {
        let changes = [
            format!("train.batch_size={batch}"),
            format!("train.global_batch_size={}", count * ranks * batch),
            format!("distributed.zero_stage={stage}"),
        ];
        let changes = changes.each_ref().map(String::as_str);
        let (ranks, world) = (ranks.to_string(), (count * ranks).to_string());
        let one = Lab::with(BASE);
        one.run_to(0, &[&["small.toml", "--nproc-per-node", &world], &changes[..]].concat());
        let machines = Machines::new(*count);
        let verb = ["small.toml", "--nproc-per-node", &ranks];
        let all = (0..*count).map(|node| machines.start_with(node, &verb, &changes)).collect();
        for ended in end(all) {
            ended.has_code(0);
        }
        let shape = format!("{count} machines with {ranks} ranks each");
        assert!(state(&machines.labs[0]) == state(&one), "{shape}");
        // The other machine has the logs of its ranks, and what the run is.
        assert!(!machines.labs[1].path("checkpoints").exists());
        let described = ["experiment.toml", "resolved.toml", "run.json", "data.json"];
        let names: Vec<String> = children(&machines.labs[1].run_folder())
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        let is_known =
            |name: &String| name.starts_with("rank-") || described.contains(&name.as_str());
        assert!(names.iter().all(is_known), "{names:?}");
        machines.are_clean();
    }
}

/// As Kubeflow's pods have them.
#[test]
fn machines_take_their_place_from_the_variables_of_torchruns_flags() {
    let machines = Machines::new(2);
    let start = |node: usize| {
        let mut command = machines.labs[node].ddprun(&["small.toml", "train.batch_size=4"]);
        command.envs([("PET_NNODES", "2"), ("PET_NODE_RANK", &node.to_string())]);
        command.envs([("PET_MASTER_ADDR", "127.0.0.1"), ("PET_MASTER_PORT", &machines.port)]);
        command.envs([("PET_NPROC_PER_NODE", "1"), ("DDPRUN_TOKEN_FILE", "run.token")]);
        spawn(command)
    };
    let ended = end((0..2).map(start).collect());
    for ended in &ended {
        ended.has_code(0);
    }
    ended[1].says(&["node 1 of 2: rank 1; "]);
    let planned = |args: &[&str], variables: &[(&str, &str)]| {
        let args = [&["plan", "small.toml", "train.batch_size=4"], args].concat();
        let mut command = machines.labs[0].ddprun(&args);
        command.envs(variables.iter().copied());
        let ended = spawn(command).wait();
        ended.has_code(0);
        let ranks = ended.stdout.lines().find(|line| line.starts_with("  ranks "));
        ranks.unwrap_or_else(|| panic!("{}", ended.stdout)).to_owned()
    };
    let by_flags = planned(&["--nnodes", "2", "--nproc-per-node", "1"], &[]);
    assert_eq!(planned(&[], &[("PET_NNODES", "2"), ("PET_NPROC_PER_NODE", "1")]), by_flags);
    assert_ne!(planned(&[], &[]), by_flags);
    let mut elastic = machines.labs[0].ddprun(&["small.toml"]);
    elastic.env("PET_NNODES", "1:2");
    let ended = spawn(elastic).wait();
    ended.has_code(2);
    ended.says(&["`PET_NNODES=1:2` in the environment is not a fixed number of nodes"]);
    machines.are_clean();
}

#[test]
fn strangers_and_other_tokens_are_refused_and_the_run_is_unaffected() {
    let machines = Machines::new(2);
    let mut first = machines.waiting(&[]);
    let connect = || TcpStream::connect(format!("127.0.0.1:{}", machines.port)).unwrap();
    let mut silent: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    for stream in &mut silent {
        stream.write_all(b"d").unwrap();
    }
    // A node 0 that has heard enough closes the connection: writing then fails.
    let _ = connect().write_all(&vec![0xa5; 1 << 16]);
    let other =
        Machines { labs: vec![Lab::with(BASE), Lab::with(BASE)], port: machines.port.clone() };
    other.labs[1].run_to(0, &["token", "run.token"]);
    let ended = other.start(1, &[]).wait();
    ended.has_code(5);
    ended.says(&["does not prove that it has the token of this run", "do: copy node 0's token"]);
    assert!(!first.is_over(), "{}", first.stderr());
    let second = machines.start(1, &[]);
    for ended in end(vec![second, first]) {
        ended.has_code(0);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
    other.are_clean();
    machines.are_clean();
}

#[test]
fn the_token_is_in_nothing_that_a_run_leaves_or_shows() {
    let machines = Machines::new(2);
    let token = fs::read_to_string(machines.labs[0].path("run.token")).unwrap();
    let token = token.trim();
    assert_eq!(token.len(), 64, "as many characters are looked for below");
    let holds = |bytes: &[u8]| bytes.windows(64).any(|found| found == token.as_bytes());
    // What every user of a machine can read of a process, while it runs: of the parents and of the
    // ranks.
    let all = machines.endless(&[]);
    let processes = machines.labs.iter().flat_map(|lab| lab.processes().into_keys());
    let processes: Vec<u32> = processes.collect();
    assert!(processes.len() >= 4, "{processes:?}");
    let mut seen = 0;
    for (pid, file) in processes.iter().flat_map(|pid| [(pid, "cmdline"), (pid, "environ")]) {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap();
        seen += usize::from(!bytes.is_empty());
        assert!(!holds(&bytes), "{file} of {pid}");
    }
    assert_eq!(seen, 2 * processes.len());
    all[0].signal(Signal::TERM);
    for ended in end(all) {
        ended.has_code(75);
        assert!(!holds(ended.stderr.as_bytes()) && !holds(ended.stdout.as_bytes()));
    }
    let mut files = 0;
    for lab in &machines.labs {
        let mut open = vec![lab.path("logs"), lab.path("checkpoints")];
        while let Some(path) = open.pop() {
            let bytes = fs::read(&path).unwrap_or_default();
            files += usize::from(!bytes.is_empty());
            assert!(!holds(&bytes), "{}", path.display());
            open.extend(children(&path).into_iter().filter(|path| !path.is_symlink()));
        }
    }
    assert!(files > 10, "{files}");
    machines.are_clean();
}

#[test]
fn a_rank_killed_on_another_machine_ends_all_with_its_name() {
    let machines = Machines::new(2);
    let all = machines.endless(&[]);
    let rank = all[1].ranks()[0];
    kill_process(pid_of(rank), Signal::KILL).unwrap();
    for ended in end(all) {
        ended.has_code(5);
        ended.says(&["error: rank 1 was killed by SIGKILL\n", "where: rank 1 on node 1, "]);
        ended.says(&[&format!(", pid {rank}, ")]);
    }
    assert!(machines.labs[0].run_folder().join("failure.json").exists());
    assert!(machines.labs[1].run_folder().join("failure.node-1.json").exists());
    machines.are_clean();
}

#[test]
fn a_killed_node_0_ends_the_others_with_its_name() {
    let machines = Machines::new(2);
    let mut all = machines.endless(&[]);
    all[0].signal(Signal::KILL);
    let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
    let ended = second.wait();
    ended.has_code(5);
    ended.says(&["error: node 0 (", ") is gone\n", "do: "]);
    assert_eq!(first.wait().code, -9);
    // A killed parent leaves what it was writing.
    until("the ranks' end", || machines.labs.iter().all(|lab| lab.processes().is_empty()));
}

#[test]
fn a_killed_machine_ends_node_0_with_its_name() {
    let machines = Machines::new(2);
    let all = machines.endless(&[]);
    all[1].signal(Signal::KILL);
    let ended = end(all);
    ended[0].has_code(5);
    ended[0].says(&["error: node 1 (", ") is gone\n", "saved: step "]);
    machines.are_clean();
}

#[test]
fn a_machine_that_falls_silent_is_named_though_its_connections_hold() {
    let machines = Machines::new(2);
    let mut all = machines.endless(&["distributed.timeout=10s"]);
    let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
    // Its ranks go on: only its beats stay away, as when a network loses everything.
    second.signal(Signal::STOP);
    let ended = first.wait();
    ended.has_code(5);
    ended.says(&["error: node 1 (", ") is gone\nwhere: rank 1 on node 1, "]);
    ended.says(&["why:   nothing was heard from it for 1"]);
    second.signal(Signal::CONT);
    let ended = second.wait();
    ended.has_code(5);
    machines.are_clean();
}

#[test]
fn a_rank_that_stands_still_is_named_on_all_machines() {
    let machines = Machines::new(2);
    let all = machines.endless(&["fault.stall_timeout=3s"]);
    let rank = all[1].ranks()[0];
    kill_process(pid_of(rank), Signal::STOP).unwrap();
    for ended in end(all) {
        ended.has_code(5);
        ended.says(&[&format!("error: rank 1 (pid {rank}) "), "where: rank 1 on node 1, "]);
    }
    machines.are_clean();
}

#[test]
fn of_two_ranks_on_each_machine_one_that_is_killed_or_stands_still_is_named_on_both() {
    for (signal, rank) in [(Signal::KILL, 3), (Signal::STOP, 3), (Signal::KILL, 2)] {
        let machines = Machines::new(2);
        let all = machines.endless_of("2", &["train.batch_size=2", "fault.stall_timeout=3s"]);
        let pid = all[1].ranks()[rank - 2];
        kill_process(pid_of(pid), signal).unwrap();
        for ended in end(all) {
            ended.has_code(5);
            ended.says(&[
                &format!("error: rank {rank} "),
                &format!("where: rank {rank} on node 1,"),
            ]);
            ended.says(&[&format!("pid {pid}")]);
        }
        machines.are_clean();
    }
}

#[test]
fn a_signal_to_one_machine_stops_all_and_they_resume_to_the_bits_of_one() {
    let machines = Machines::new(2);
    let all = machines.endless(&[]);
    all[1].signal(Signal::TERM);
    for ended in end(all) {
        ended.has_code(75);
    }
    // The other machine has no checkpoint: rank 0 hands it what it reads.
    assert!(!machines.labs[1].path("checkpoints").exists());
    let epochs = format!("train.epochs={}", machines.labs[0].last_step() / 6 + 10);
    let resume = |node| machines.start_with(node, &["resume"], &[&epochs]);
    for ended in end((0..2).map(resume).collect()) {
        ended.has_code(0);
    }
    let one = Lab::with(BASE);
    one.run_to(0, &[&["small.toml"][..], &ENDLESS, &[&epochs]].concat());
    assert!(state(&machines.labs[0]) == state(&one));
    machines.are_clean();
}

#[test]
fn another_experiment_on_another_machine_is_refused_on_both_by_its_key() {
    let machines = Machines::new(2);
    let first = machines.start(0, &[]);
    let second = machines.start(1, &["optimizer.lr=0.25"]);
    for ended in end(vec![first, second]) {
        ended.has_code(2);
        ended.says(&["node 1 (", "`optimizer.lr` is 0.25, but in that of node 0 it is 0.001"]);
    }
    assert!(!machines.labs[0].path("logs").exists());
    machines.are_clean();
}

#[test]
fn another_build_on_another_machine_is_refused_on_both() {
    let machines = Machines::new(2);
    let first = machines.start(0, &[]);
    // The same program, but for a byte behind its end.
    let mut program = fs::read(BINARY).unwrap();
    program.push(0);
    let path = machines.labs[1].write("ddprun", program);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let flags = ["small.toml", "--nproc-per-node", "1", "--nnodes", "2", "--node-rank", "1"];
    let more = ["--master-addr", "127.0.0.1", "--master-port", &machines.port];
    let args = [&flags[..], &more, &["--token-file", "run.token"]].concat();
    let second = spawn(machines.labs[1].command(path.to_str().unwrap(), &args));
    for ended in end(vec![first, second]) {
        ended.has_code(2);
        ended.says(&["it is ddprun 0.1.0 (build ", "), but node 0 is 0.1.0 (build "]);
    }
    machines.are_clean();
}

/// Ranks as torchrun starts them on two machines of two: with its variables, while its store
/// listens at `MASTER_PORT`.
struct Launched {
    machines: Machines,
    _store: TcpListener,
}

impl Launched {
    fn new() -> Self {
        let mut machines = Machines::new(2);
        let (store, port) = loop {
            let store = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = store.local_addr().unwrap().port();
            let beside = port.checked_add(1).map(|port| TcpListener::bind(("127.0.0.1", port)));
            if beside.is_some_and(|beside| beside.is_ok()) {
                break (store, port);
            }
        };
        machines.port = port.to_string();
        Self { machines, _store: store }
    }

    fn start(&self, args: &[&str], token: Option<&str>) -> Vec<Running> {
        let start = |rank: usize| {
            let mut command = self.machines.labs[rank / 2].ddprun(args);
            let [rank, local] = [rank, rank % 2].map(|number| number.to_string());
            command.envs([("RANK", rank.as_str()), ("WORLD_SIZE", "4")]);
            command.envs([("LOCAL_RANK", local.as_str()), ("LOCAL_WORLD_SIZE", "2")]);
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &self.machines.port)]);
            command.envs(token.map(|file| ("DDPRUN_TOKEN_FILE", file)));
            spawn(command)
        };
        (0..4).map(start).collect()
    }
}

/// The experiment for four ranks.
const FOUR: [&str; 3] = ["small.toml", "~distributed.devices", "train.batch_size=2"];

#[test]
fn ranks_that_torchrun_starts_on_two_machines_give_the_bits_of_one_also_after_a_stop() {
    let one = Lab::with(BASE);
    one.run_to(0, &["small.toml", "--nproc-per-node", "4", "train.batch_size=2"]);
    let launched = Launched::new();
    let lab = &launched.machines.labs[0];
    let all = end(launched.start(&FOUR, Some("run.token")));
    for ended in &all {
        ended.has_code(0);
    }
    // The first rank of each machine meets the others; those beside it share its memory.
    all[0].says(&["waiting for node 1 at "]);
    all[2].says(&["node 1 connects to node 0 at "]);
    assert_eq!([&all[1].stderr, &all[3].stderr], ["", ""]);
    assert!(state(lab) == state(&one));
    assert!(!launched.machines.labs[1].path("checkpoints").exists());
    one.run_to(0, &["resume", "train.epochs=3"]);
    for ended in end(launched.start(&["resume", "train.epochs=3"], Some("run.token"))) {
        ended.has_code(0);
    }
    assert!(state(lab) == state(&one));
    launched.machines.are_clean();
}

#[test]
fn of_ranks_that_torchrun_starts_on_two_machines_a_killed_one_ends_all() {
    let launched = Launched::new();
    let mut all = launched.start(&[&FOUR[..], &ENDLESS].concat(), Some("run.token"));
    launched.machines.labs[0].wait_for_step_and_save(&mut all[0], 40);
    all[3].signal(Signal::KILL);
    let ended = end(all);
    let codes: Vec<i32> = ended.iter().map(|ended| ended.code).collect();
    assert_eq!(codes, [5, 5, 5, -9]);
    // At once, by the connection within the machine, and passed on to the other.
    for at in [0, 2] {
        ended[at].says(&["rank 3 (pid ", ") died"]);
    }
    launched.machines.are_clean();
}

#[test]
fn ranks_of_a_machine_that_torchrun_starts_are_told_why_there_is_no_run() {
    let launched = Launched::new();
    let ended = end(launched.start(&[&FOUR[..], &["data.nmae=x"]].concat(), Some("run.token")));
    for ended in &ended {
        ended.has_code(2);
    }
    ended[2].says(&["`data.nmae`"]);
    // Nobody would give them smaller passes.
    let shrink = [&FOUR[..], &["fault.on_oom=shrink_batch"]].concat();
    let ended = end(launched.start(&shrink, Some("run.token")));
    for ended in &ended {
        ended.has_code(2);
    }
    ended[0].says(&["`fault.on_oom`", "several machines under another launcher"]);
    launched.machines.are_clean();
}

#[test]
fn ranks_that_torchrun_starts_on_two_machines_need_a_token() {
    let launched = Launched::new();
    for (rank, ended) in end(launched.start(&FOUR, None)).into_iter().enumerate() {
        ended.has_code(2);
        if rank % 2 == 0 {
            let words = "the launcher started 4 ranks, 2 of them on this machine";
            ended.says(&[words, "`DDPRUN_TOKEN_FILE`"]);
        } else {
            assert_eq!(ended.stderr, "", "the first rank of a machine says it for all");
        }
    }
    launched.machines.are_clean();
}

#[test]
fn a_second_machine_of_a_number_is_refused_and_the_first_goes_on() {
    let machines = Machines::new(3);
    let mut first = machines.waiting(&["train.batch_size=2", "train.global_batch_size=6"]);
    let changes = ["train.batch_size=2", "train.global_batch_size=6"];
    let second = machines.start(1, &changes);
    // Node 0 does not say which has come: the later of the two is refused.
    let again = machines.start(1, &changes);
    let mut both = [second, again];
    until("a refusal", || both.iter_mut().any(Running::is_over));
    assert!(!first.is_over(), "{}", first.stderr());
    let third = machines.start(2, &changes);
    let [one, other] = both.map(Running::wait);
    let (good, refused) = if one.code == 0 { (one, other) } else { (other, one) };
    good.has_code(0);
    refused.has_code(2);
    refused.says(&["node 1 has already joined: "]);
    for ended in end(vec![first, third]) {
        ended.has_code(0);
    }
    machines.are_clean();
}

#[test]
fn a_machine_that_does_not_come_is_named_at_the_deadline() {
    let machines = Machines::new(2);
    let ended = machines.start(0, &["distributed.timeout=1s"]).wait();
    ended.has_code(5);
    ended.says(&["node 0 waited 1 s, but node 1 did not come", "do: "]);
    machines.are_clean();
}

#[test]
fn what_several_machines_cannot_do_is_refused_with_a_remedy() {
    let machines = Machines::new(2);
    let refuses = |changes: &[&str], words: &[&str]| {
        let ended = machines.start(0, changes).wait();
        ended.has_code(2);
        ended.says(words);
        ended.says(&["several machines"]);
    };
    refuses(&["distributed.min_world_size=1"], &["`distributed.min_world_size`"]);
    let lab = &machines.labs[0];
    let many = ["small.toml", "--nnodes", "2"];
    for (more, words) in [
        (&[][..], "`--node-rank 0`"),
        (&["--node-rank", "2"], "has no node 2"),
        (&["--node-rank", "0"], "`--master-addr HOST"),
        (&["--node-rank", "0", "--rdzv-endpoint", "localhost:1"], "`ddprun token run.token`"),
    ] {
        lab.run_to(2, &[&many[..], more].concat()).says(&["error: `--nnodes 2` ", words, "do: "]);
    }
    lab.run_to(2, &["small.toml", "distributed.backend=tcp"]).says(&["connects several machines"]);
    let token = lab.path("run.token");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let ended = machines.start(0, &[]).wait();
    ended.has_code(2);
    ended.says(&["`run.token` has mode 0644: others may have read it", "`chmod 600`"]);
    lab.run_to(6, &["token", "run.token"]).says(&["run.token", "does not exist yet"]);
    machines.are_clean();
}
