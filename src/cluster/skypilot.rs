//! `kind = "skypilot"`
//!
//! A managed job: `SkyPilot` finds machines, and finds others when they are taken away or the job
//! was stopped and saved (exit 75). The experiment stands in the task's `run`, so that nothing but
//! what is on the volumes or in the buckets has to be there before.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::cluster::defaults::{ddprun, one, three};
use crate::cluster::manifest::{documents, is_name, name_of};
use crate::cluster::shell::{line, quoted};
use crate::cluster::{Call, Cluster, Job, Output, Place, Shape, State, shell};
use crate::config::kind::{Kind, Wrong};
use crate::config::values::Size;
use crate::launch::exit_code;

/// cloud machines found by SkyPilot: `sky jobs` is called on this machine. Data and runs are on
/// volumes or in buckets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkyPilot {
    /// Where to look for machines: cloud, region, zone, or a Kubernetes context. Default: the
    /// cheapest place that has them.
    #[serde(default)]
    #[schemars(extend("examples" = ["aws/us-east-1", "k8s/lab"]))]
    pub infra: Option<String>,
    /// Machines; for a sweep the number of workers.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub nodes: u32,
    /// Ranks on each machine. Default: one per GPU, else `distributed.devices`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1024))]
    pub ranks_per_node: Option<u32>,
    /// GPUs of each machine.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1024))]
    pub gpus_per_node: u32,
    /// Which GPU, as `sky gpus list` names it.
    #[serde(default)]
    #[schemars(extend("examples" = ["A100"]))]
    pub gpu: Option<String>,
    /// Cores of each machine, at least.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4096))]
    pub cpus_per_node: Option<u32>,
    /// Memory of each machine, at least.
    #[serde(default)]
    #[schemars(extend("examples" = ["64GiB"]))]
    pub memory: Option<Size>,
    /// Image of the machines, or of a container on them.
    #[serde(default)]
    #[schemars(extend("examples" = ["docker:registry.example.com/ddprun:0.1"]))]
    pub image: Option<String>,
    /// Whether to use spot instances, which are cheaper and may be preempted.
    #[serde(default)]
    pub spot: bool,
    /// SkyPilot volumes, each with its mount folder: data, `logs` and `checkpoints` must be on one,
    /// or in a bucket.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "project-volume": "/project" }]))]
    pub volumes: BTreeMap<String, String>,
    /// Buckets, each with its mount folder (`MOUNT_CACHED`).
    #[serde(default)]
    #[schemars(extend("examples" = [{ "s3://project": "/project" }]))]
    pub buckets: BTreeMap<String, String>,
    /// Folder on the machines to which the experiment's paths are relative.
    #[schemars(extend("format" = "remote-path", "examples" = ["/project"]))]
    pub folder: String,
    /// Shell lines that prepare a machine, such as those that install ddprun.
    #[serde(default)]
    #[schemars(extend("examples" = [["pip install ddprun"]]))]
    pub setup: Vec<String>,
    /// Path of ddprun on the machines.
    #[serde(default = "ddprun")]
    #[schemars(extend("format" = "remote-path"))]
    pub program: String,
    /// How often a failed job is restarted.
    #[serde(default = "three")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: u32,
    /// Environment variables of the job.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "OMP_NUM_THREADS": "8" }]))]
    pub environment: BTreeMap<String, String>,
}

impl Kind for SkyPilot {
    const NAME: &'static str = "skypilot";

    fn check(&self) -> Vec<Wrong> {
        let wrong = |key, what: String| Wrong { key, with: &[], what };
        let gpu = match (&self.gpu, self.gpus_per_node) {
            (None, 1..) => Some(wrong("gpu", "is missing: `sky gpus list` shows them".to_owned())),
            (Some(_), 0) => Some(wrong("gpus_per_node", "must say how many of `gpu`".to_owned())),
            _ => None,
        };
        let relative = |key, text: &str| {
            (!text.starts_with('/')).then(|| wrong(key, format!("`{text}` is no whole path")))
        };
        let folder = relative("folder", &self.folder);
        let volumes = self.volumes.values().find_map(|path| relative("volumes", path));
        let buckets = self.buckets.values().find_map(|path| relative("buckets", path));
        let volume = self.volumes.keys().find(|name| !is_name(name));
        let volume = volume.map(|name| wrong("volumes", format!("`{name}` cannot name a volume")));
        let url = self.buckets.keys().find(|url| !url.contains("://"));
        let url = url.map(|url| wrong("buckets", format!("`{url}` is no bucket: `s3://name`")));
        let name = shell::wrong_name(&self.environment);
        [gpu, folder, volumes, buckets, volume, url, name].into_iter().flatten().collect()
    }
}

/// The entries that have a value, in their order.
fn table<const N: usize>(entries: [(&str, Option<Value>); N]) -> Value {
    let given = entries.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(given.collect::<Map<_, _>>())
}

/// Folder of a job's files on a machine, below the home folder.
fn files_of(job: &Job) -> String {
    format!("$HOME/.ddprun/{}", job.key)
}

impl SkyPilot {
    /// What `SkyPilot` looks for, and when it looks again.
    fn resources(&self) -> Value {
        let gpus = |name| format!("{name}:{}", self.gpus_per_node);
        let at_least = |count: u64| format!("{count}+");
        let memory = self.memory.map(|Size(bytes)| at_least(bytes.div_ceil(1 << 30)));
        let recovery = json!({
            "max_restarts_on_errors": self.max_restarts,
            "recover_on_exit_codes": [exit_code::PREEMPTED],
        });
        table([
            ("infra", self.infra.clone().map(Value::from)),
            ("accelerators", self.gpu.as_ref().map(gpus).map(Value::from)),
            ("cpus", self.cpus_per_node.map(|cpus| at_least(cpus.into()).into())),
            ("memory", memory.map(Value::from)),
            ("image_id", self.image.clone().map(Value::from)),
            ("use_spot", self.spot.then_some(Value::Bool(true))),
            ("job_recovery", Some(recovery)),
        ])
    }

    /// The volume at each path; `None` if there are none.
    fn mounted_volumes(&self) -> Option<Value> {
        let at = |(name, path): (&String, &String)| (path.clone(), Value::from(name.as_str()));
        (!self.volumes.is_empty()).then(|| self.volumes.iter().map(at).collect())
    }

    /// The bucket at each path; `None` if there are none.
    fn mounted_buckets(&self) -> Option<Value> {
        let at = |(url, path): (&String, &String)| {
            (path.clone(), json!({"source": url, "mode": "MOUNT_CACHED"}))
        };
        (!self.buckets.is_empty()).then(|| self.buckets.iter().map(at).collect())
    }

    /// What each machine runs.
    fn run(&self, job: &Job) -> String {
        let root = quoted(&self.folder);
        let folder = files_of(job);
        let Some(experiment) = job.experiment() else {
            let worker = line(&job.command(&self.program, &folder));
            return format!("cd {root} || exit 2\nexec {worker}\n");
        };
        // Nothing that begins a line of the experiment ends with the key of this job.
        let end = format!("END-{}", job.key);
        let program = quoted(&self.program);
        let (token, meeting) = self.meeting(job, &folder);
        format!(
            "mkdir -p \"{folder}\"
cat >\"{folder}/experiment.toml\" <<'{end}'
{experiment}
{end}
{token}cd {root} || exit 2
exec {program} \"{folder}/experiment.toml\"{meeting}
",
            experiment = experiment.trim_end(),
        )
    }

    /// Whether the machines of a job train one model together.
    fn meets(&self, job: &Job) -> bool {
        self.nodes > 1 && job.workers().is_none()
    }

    /// How several machines meet: the lines that write the token, and the flags.
    fn meeting(&self, job: &Job, folder: &str) -> (String, String) {
        if !self.meets(job) {
            return (String::new(), String::new());
        }
        let token = format!("{folder}/token");
        let write = format!("(umask 077; printf '%s\\n' \"$DDPRUN_TOKEN\" >\"{token}\")\n");
        let flags = format!(
            " --nnodes \"$SKYPILOT_NUM_NODES\" --node-rank \"$SKYPILOT_NODE_RANK\" --master-addr \
             \"$(echo \"$SKYPILOT_NODE_IPS\" | head -n 1)\" --token-file \"{token}\""
        );
        (write + "unset DDPRUN_TOKEN\n", flags)
    }
}

impl Cluster for SkyPilot {
    fn shape(&self) -> Shape {
        Shape {
            nodes: self.nodes,
            ranks_per_node: self.ranks_per_node,
            gpus_per_node: self.gpus_per_node,
            needs_token: self.nodes > 1,
            is_launched: false,
        }
    }

    fn sees_files(&self) -> bool {
        false
    }

    fn script_name(&self) -> &'static str {
        "job.yaml"
    }

    fn script(&self, job: &Job) -> String {
        let mut variables = self.environment.clone();
        variables.insert("DDPRUN_JOB".to_owned(), job.key.clone());
        let lines = |lines: &[String]| Value::from(lines.join("\n") + "\n");
        documents(&[table([
            ("name", Some(name_of(job).into())),
            ("num_nodes", Some(job.workers().unwrap_or(self.nodes).into())),
            ("resources", Some(self.resources())),
            ("envs", Some(json!(variables))),
            ("volumes", self.mounted_volumes()),
            ("file_mounts", self.mounted_buckets()),
            ("setup", (!self.setup.is_empty()).then(|| lines(&self.setup))),
            ("run", Some(self.run(job).into())),
        ])])
    }

    fn question(&self) -> Option<Call> {
        // Says that SkyPilot is missing before a shell could.
        Some(Call::new("sky", ["--version"]))
    }

    fn submit(&self, job: &Job) -> Call {
        let launch = ["jobs", "launch", "--yes", "--detach-run"];
        let script = job.folder.join(self.script_name()).into_os_string();
        if !self.meets(job) {
            return Call::new("sky", launch.into_iter().map(Into::into).chain([script]));
        }
        // The token is in no argument, which every user of the machine could read.
        let line = format!(
            "DDPRUN_TOKEN=$(cat \"$0\") exec sky {} --secret DDPRUN_TOKEN \"$1\"",
            launch.join(" ")
        );
        Call::new("sh", ["-c".into(), line.into(), job.token_path().into_os_string(), script])
    }

    fn id(&self, job: &Job, _: &str) -> Option<String> {
        Some(name_of(job))
    }

    fn list(&self, _: &[Place]) -> Call {
        Call::new("sky", ["jobs", "queue", "--all", "--output=json"])
    }

    fn states(&self, answer: &str) -> Vec<(String, State)> {
        // It may tell of its progress before.
        let json = answer.find("[\n").or_else(|| answer.find("[]")).map_or("", |at| &answer[at..]);
        let jobs: Vec<Listed> = serde_json::from_str(json).unwrap_or_default();
        let state = |Listed { job_name, status }| {
            let is_over = ["SUCCEEDED", "CANCELLED"].contains(&status.as_str())
                || status.starts_with("FAILED");
            (job_name, State { word: status, is_over })
        };
        jobs.into_iter().map(state).collect()
    }

    fn cancel(&self, job: &Place) -> Call {
        Call::new("sky", ["jobs", "cancel", "--yes", "--name", &job.id])
    }

    fn saves_when_cancelled(&self) -> bool {
        false
    }

    fn output(&self, job: &Place, follow: bool) -> Output {
        let follow = if follow { "--follow" } else { "--no-follow" };
        Output::Call(Call::new("sky", ["jobs", "logs", "--name", &job.id, "--tail=0", follow]))
    }
}

/// A job in `SkyPilot`'s list.
#[derive(Debug, Deserialize)]
struct Listed {
    job_name: String,
    status: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_machine() -> SkyPilot {
        SkyPilot {
            infra: None,
            nodes: 1,
            ranks_per_node: None,
            gpus_per_node: 0,
            gpu: None,
            cpus_per_node: None,
            memory: None,
            image: None,
            spot: false,
            volumes: BTreeMap::from([("project".to_owned(), "/project".to_owned())]),
            buckets: BTreeMap::new(),
            folder: "/project".to_owned(),
            setup: Vec::new(),
            program: ddprun(),
            max_restarts: 3,
            environment: BTreeMap::new(),
        }
    }

    fn two_machines() -> SkyPilot {
        SkyPilot {
            infra: Some("aws/us-east-1".to_owned()),
            nodes: 2,
            gpus_per_node: 8,
            gpu: Some("A100".to_owned()),
            cpus_per_node: Some(64),
            memory: Some(Size(512 << 30)),
            image: Some("docker:example.com/ddprun:0.1".to_owned()),
            spot: true,
            volumes: BTreeMap::new(),
            buckets: BTreeMap::from([("s3://project".to_owned(), "/project".to_owned())]),
            setup: vec!["pip install ddprun".to_owned(), "nvidia-smi".to_owned()],
            environment: BTreeMap::from([("HF_HOME".to_owned(), "/a: b".to_owned())]),
            ..one_machine()
        }
    }

    #[test]
    fn one_machine_needs_no_token() {
        insta::assert_snapshot!(one_machine().script(&Job::example()));
        let call = one_machine().submit(&Job::example());
        assert_eq!(call.program, "sky");
        let file = "/project/logs/.jobs/20261125-1200-3f9a/job.yaml";
        assert_eq!(call.args, ["jobs", "launch", "--yes", "--detach-run", file]);
    }

    #[test]
    fn several_machines_meet_at_the_first_with_a_secret_token() {
        insta::assert_snapshot!(two_machines().script(&Job::example()));
        let call = two_machines().submit(&Job::example());
        assert!(two_machines().shape().needs_token);
        assert_eq!(call.args[2], "/project/logs/.jobs/20261125-1200-3f9a/token");
        let line = call.args[1].to_string_lossy();
        assert!(line.ends_with("--secret DDPRUN_TOKEN \"$1\""), "{line}");
    }

    #[test]
    fn workers_of_a_sweep_are_machines_without_a_token() {
        let task = two_machines().script(&Job::example_sweep());
        assert!(task.contains("\nnum_nodes: 3\n"), "{task}");
        let run =
            "exec ddprun sweep experiments/tune.toml 'optimizer.lr=choice(0.1, 0.01)' --share";
        assert!(task.contains(&format!("run: |\n  cd /project || exit 2\n  {run}\n")), "{task}");
        assert_eq!(two_machines().submit(&Job::example_sweep()).program, "sky");
    }

    #[test]
    fn states_are_read_from_the_queue() {
        let answer = "Fetching managed jobs\n[\n  {\"job_id\": 1, \"job_name\": \"a\", \"status\": \
                      \"RECOVERING\"},\n {\"job_name\": \"b\", \"status\": \"FAILED_SETUP\"}\n]\n";
        let expected = [
            ("a".to_owned(), State::open("RECOVERING")),
            ("b".to_owned(), State::over("FAILED_SETUP")),
        ];
        assert_eq!(one_machine().states(answer), expected);
        assert_eq!(one_machine().states("[]\n"), []);
        assert_eq!(one_machine().states("no answer"), []);
    }

    #[test]
    fn what_skypilot_would_refuse_is_refused_here() {
        let check = |cluster: SkyPilot, key: &str| {
            let found: Vec<&str> = cluster.check().iter().map(|wrong| wrong.key).collect();
            assert_eq!(found, [key]);
        };
        check(SkyPilot { gpus_per_node: 1, ..one_machine() }, "gpu");
        check(SkyPilot { gpu: Some("A100".to_owned()), ..one_machine() }, "gpus_per_node");
        check(SkyPilot { folder: "project".to_owned(), ..one_machine() }, "folder");
        let of = |name: &str, path: &str| BTreeMap::from([(name.to_owned(), path.to_owned())]);
        check(SkyPilot { volumes: of("v", "project"), ..one_machine() }, "volumes");
        check(SkyPilot { buckets: of("project", "/project"), ..one_machine() }, "buckets");
        check(SkyPilot { environment: of("A;rm", ""), ..one_machine() }, "environment");
        assert!(two_machines().check().is_empty());
    }
}
