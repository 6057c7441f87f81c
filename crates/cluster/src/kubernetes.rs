//! `kind = "kubernetes"`
//!
//! An Indexed Job with a pod for each machine, which find each other by a headless service, or with
//! a pod for each worker of a sweep; or the same as a `TrainJob` of Kubeflow Trainer. A pod that is
//! taken away, or that was told to stop and has saved, is replaced without counting as a failure;
//! one that refuses its experiment or its data ends the job.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::kind::{Kind, OptionConflict};
use crate::config::values::{Duration, Size};
use crate::ddprun;
use crate::manifest::{documents, is_name, name_of};
use crate::shell::{self, line, quoted};
use crate::user_error::ExitCode;
use crate::{Call, Cluster, Job, JobHandle, Output, SaveTime, Shape, State};

/// Folder of the experiment in a pod.
const EXPERIMENT: &str = "/ddprun";
/// Folder of the token in a pod.
const TOKEN: &str = "/ddprun-token";
/// Exit codes after which a run would fail again: of its experiment, its data, its numbers or its
/// checkpoint.
const FINAL: [ExitCode; 5] = [
    ExitCode::Refused,
    ExitCode::Data,
    ExitCode::Numeric,
    ExitCode::Checkpoint,
    ExitCode::Expectation,
];
/// Default number of replacements of failed pods.
const MAX_RESTARTS: u32 = 3;
/// Name of a training runtime's container, and of its job.
const NODE: &str = "node";
/// Manager of our changes to the runtime: a domain and a path.
const MANAGER: &str = "ddprun/submit";
/// Variables that the policy `torch` sets.
const VARIABLES: [&str; 5] =
    ["PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE"];

/// a Kubernetes cluster: `kubectl` is called on this machine. Data and runs are on volumes, ddprun
/// is in the image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kubernetes {
    /// Container image with ddprun in it.
    #[schemars(extend("examples" = ["registry.example.com/ddprun:0.1"]))]
    pub image: String,
    /// kubectl context; by default the current one.
    #[serde(default)]
    #[schemars(extend("examples" = ["lab"]))]
    pub context: Option<String>,
    /// Namespace; by default that of the context.
    #[serde(default)]
    #[schemars(extend("examples" = ["training"]))]
    pub namespace: Option<String>,
    /// Pods, each of which counts as a machine; for a sweep the number of workers.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub nodes: u32,
    /// Ranks in each pod. Default: one per GPU, else `distributed.devices`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1024))]
    pub ranks_per_node: Option<u32>,
    /// GPUs of each pod (`nvidia.com/gpu`).
    #[serde(default)]
    #[schemars(range(min = 0, max = 1024))]
    pub gpus_per_node: u32,
    /// Cores of each pod.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4096))]
    pub cpus_per_node: Option<u32>,
    /// Memory of each pod.
    #[serde(default)]
    #[schemars(extend("examples" = ["64GiB"]))]
    pub memory: Option<Size>,
    /// Persistent volume claims, each with its mount folder: data, `logs` and `checkpoints` must be
    /// on one.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "project-claim": "/project" }]))]
    pub volumes: BTreeMap<String, String>,
    /// Folder in the container to which the experiment's paths are relative.
    #[schemars(extend("format" = "remote-path", "examples" = ["/project"]))]
    pub folder: String,
    /// Path of ddprun in the image.
    #[serde(default = "ddprun")]
    #[schemars(extend("format" = "remote-path"))]
    pub program: String,
    /// Secret whose key `token` holds the output of `ddprun token`; required for several pods.
    #[serde(default)]
    #[schemars(extend("examples" = ["ddprun-token"]))]
    pub token_secret: Option<String>,
    /// Labels that nodes must have to run it.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "gpu": "a100" }]))]
    pub node_selector: BTreeMap<String, String>,
    /// How long a pod may take to save before it ends. Default: 2m, or more if saves of an earlier
    /// run took long.
    #[serde(default)]
    #[schemars(extend("examples" = ["5m"]))]
    pub grace: Option<Duration>,
    /// How often failed pods are replaced (3); for a TrainJob its runtime decides.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: Option<u32>,
    /// Kubeflow Trainer's training runtime (a ClusterTrainingRuntime): run the job as a TrainJob.
    #[serde(default)]
    #[schemars(extend("examples" = ["ddprun"]))]
    pub training_runtime: Option<String>,
    /// Environment variables of the job.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "OMP_NUM_THREADS": "8" }]))]
    pub environment: BTreeMap<String, String>,
}

/// Pods without a number.
fn one() -> u32 {
    1
}

impl Kind for Kubernetes {
    const NAME: &'static str = "kubernetes";

    fn check(&self) -> Vec<OptionConflict> {
        let wrong = |key, what: String| OptionConflict { key, with: &[], what };
        let token = (self.nodes > 1 && self.token_secret.is_none()).then(|| {
            let make = "kubectl create secret generic ddprun-token --from-file=token=run.token";
            wrong("token_secret", format!("is missing: several pods need one; `{make}`"))
        });
        let empty = |key, text: &str| text.is_empty().then(|| wrong(key, "is empty".to_owned()));
        let relative = |key, text: &str| {
            (!text.starts_with('/')).then(|| wrong(key, format!("`{text}` is no whole path")))
        };
        let folder = relative("folder", &self.folder);
        let mounts = self.volumes.values().find_map(|path| relative("volumes", path));
        let claims = self.volumes.keys().find(|claim| !is_name(claim));
        let claims = claims.map(|claim| wrong("volumes", format!("`{claim}` cannot name a claim")));
        let name = shell::wrong_name(&self.environment);
        let image = empty("image", &self.image);
        let found = [token, image, folder, self.check_volumes(), mounts, claims, name];
        found.into_iter().flatten().chain(self.check_train_job()).collect()
    }
}

impl Kubernetes {
    /// A runtime of the cluster may mount volumes of its own.
    fn check_volumes(&self) -> Option<OptionConflict> {
        (self.volumes.is_empty() && self.training_runtime.is_none()).then(|| {
            let what = "is missing: runs would be lost with their pods, and workers could not \
                        share trials; name a claim and where it is mounted, such as `{ \
                        project-claim = \"/project\" }`";
            OptionConflict { key: "volumes", with: &[], what: what.to_owned() }
        })
    }

    /// Checks that apply to a `TrainJob` alone.
    fn check_train_job(&self) -> Vec<OptionConflict> {
        let Some(runtime) = &self.training_runtime else { return Vec::new() };
        let name = (!is_name(runtime)).then(|| OptionConflict {
            key: "training_runtime",
            with: &[],
            what: format!("`{runtime}` cannot name a runtime"),
        });
        let restarts = self.max_restarts.map(|_| OptionConflict {
            key: "max_restarts",
            with: &["training_runtime"],
            what: "is decided by the training runtime (`backoffLimit`)".to_owned(),
        });
        [name, restarts].into_iter().flatten().collect()
    }

    fn kubectl<'a>(&'a self, args: impl IntoIterator<Item = &'a str>) -> Call {
        let flag = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("--{name}={value}"))
        };
        let flags = [flag("context", &self.context), flag("namespace", &self.namespace)];
        let args = args.into_iter().map(str::to_owned);
        Call::new("kubectl", flags.into_iter().flatten().chain(args))
    }

    /// The objects to create for a job.
    fn objects(&self, job: &Job) -> Vec<Value> {
        let name = name_of(job);
        let labels = json!({"app.kubernetes.io/managed-by": "ddprun", "ddprun-job": job.key});
        let metadata = json!({"name": name, "labels": labels});
        let config = config_map(job, &metadata);
        let objects = match &self.training_runtime {
            None => self.indexed_job(job, &name, &metadata),
            Some(runtime) => vec![self.train_job(job, &name, &metadata, runtime)],
        };
        config.into_iter().chain(objects).collect()
    }

    /// Resource name of its jobs for kubectl.
    fn resource(&self) -> &'static str {
        if self.training_runtime.is_some() { "trainjobs.trainer.kubeflow.org" } else { "jobs" }
    }
}

impl Cluster for Kubernetes {
    fn shape(&self) -> Shape {
        Shape {
            nodes: self.nodes,
            ranks_per_node: self.ranks_per_node,
            gpus_per_node: self.gpus_per_node,
            needs_token: false,
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
        documents(&self.objects(job))
    }

    fn save_time(&self, job: &Job) -> Option<SaveTime> {
        Some(SaveTime::of("grace", self.grace, job.longest_save.as_ref()))
    }

    fn question(&self) -> Option<Call> {
        let runtimes = "clustertrainingruntimes.trainer.kubeflow.org";
        let names = "--output=jsonpath={.items[*].metadata.name}";
        self.training_runtime.as_ref().map(|_| self.kubectl(["get", runtimes, names]))
    }

    fn objection(&self, answer: &str) -> Option<(&'static str, String)> {
        let asked = self.training_runtime.as_ref()?;
        let known: Vec<&str> = answer.split_whitespace().collect();
        let what = || format!("the cluster has no `{asked}`; its runtimes: {}", known.join(", "));
        (!known.contains(&asked.as_str())).then(|| ("training_runtime", what()))
    }

    fn submit(&self, job: &Job) -> Call {
        self.kubectl(["create", "--filename=-"]).reading(self.script(job))
    }

    fn id(&self, job: &Job, _: &str) -> Option<String> {
        Some(name_of(job))
    }

    fn list(&self, _: &[JobHandle]) -> Call {
        let active = match self.training_runtime {
            None => "active",
            Some(_) => "jobsStatus[*].active",
        };
        let output = format!(
            "--output=jsonpath={{range .items[*]}}{{.metadata.name}}|{{.status.{active}}}|\
             {{.status.conditions[?(@.status==\"True\")].type}}{{\"\\n\"}}{{end}}"
        );
        let ours = "--selector=app.kubernetes.io/managed-by=ddprun";
        self.kubectl(["get", self.resource(), ours, &output])
    }

    fn states(&self, answer: &str) -> Vec<(String, State)> {
        let state = |line: &str| {
            let mut parts = line.split('|');
            let name = parts.next()?;
            let active = parts.next()?;
            let conditions = parts.next().unwrap_or_default();
            let has = |word: &str| conditions.split_whitespace().any(|it| it == word);
            let state = match active.parse() {
                _ if has("Complete") => State::over("Complete"),
                _ if has("Failed") => State::over("Failed"),
                Ok(1_u32..) => State::open("Active"),
                _ => State::open("Pending"),
            };
            Some((name.to_owned(), state))
        };
        answer.lines().filter_map(state).collect()
    }

    fn cancel(&self, handle: &JobHandle) -> Call {
        // Its pods are told to stop, and have their grace to save.
        self.kubectl(["delete", self.resource(), &handle.id])
    }

    fn output(&self, handle: &JobHandle, follow: bool) -> Output {
        let label = match self.training_runtime {
            None => "batch.kubernetes.io/job-name",
            Some(_) => "jobset.sigs.k8s.io/replicatedjob-name=node,jobset.sigs.k8s.io/jobset-name",
        };
        let name = format!("--selector={label}={}", handle.id);
        // The first pod speaks for all that train one model; workers speak for themselves.
        let first = format!("{name},batch.kubernetes.io/job-completion-index=0");
        let most = format!("--max-log-requests={}", handle.workers.unwrap_or(1));
        let args = match handle.workers {
            None => vec!["logs", &first, "--tail=-1"],
            Some(_) => vec!["logs", &name, "--tail=-1", "--prefix", &most],
        };
        Output::Call(self.kubectl(args.into_iter().chain(follow.then_some("--follow"))))
    }
}

/// The variables, resources and volumes of a pod.
impl Kubernetes {
    /// True if the pods of a job train one model together.
    fn trains_together(&self, job: &Job) -> bool {
        self.nodes > 1 && job.workers().is_none()
    }

    /// Pods of a job.
    fn pods(&self, job: &Job) -> u32 {
        job.workers().unwrap_or(self.nodes)
    }

    /// Seconds that a pod has to save.
    fn grace_of(&self, job: &Job) -> u64 {
        SaveTime::of("grace", self.grace, job.longest_save.as_ref()).time.as_secs()
    }

    fn variables(&self, job: &Job) -> Vec<Value> {
        let mut all = self.environment.clone();
        all.insert("DDPRUN_JOB".to_owned(), job.key.clone());
        all.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    }

    /// Limits of a pod, which are also its requests; `None` = whatever there is.
    fn resources(&self) -> Option<Value> {
        let memory = self.memory.map(|Size(bytes)| format!("{}Mi", bytes.div_ceil(1 << 20)));
        let given = [
            ("cpu", self.cpus_per_node.map(|cpus| cpus.to_string())),
            ("memory", memory),
            ("nvidia.com/gpu", (self.gpus_per_node > 0).then(|| self.gpus_per_node.to_string())),
        ];
        let given = given.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let limits: BTreeMap<&str, String> = given.collect();
        (!limits.is_empty()).then(|| json!({"limits": limits, "requests": limits}))
    }

    fn mounted(&self, job: &Job, name: &str) -> Volumes {
        let mut all = Volumes { volumes: Vec::new(), mounts: Vec::new() };
        if job.experiment().is_some() {
            all.add(EXPERIMENT, json!({"name": "experiment", "configMap": {"name": name}}));
        }
        if let Some(secret) = self.token_secret.as_deref()
            && self.trains_together(job)
        {
            let secret = json!({"secretName": secret, "defaultMode": 0o400});
            all.add(TOKEN, json!({"name": "token", "secret": secret}));
        }
        for (number, (claim, path)) in self.volumes.iter().enumerate() {
            let name = format!("volume-{number}");
            let claim = json!({"claimName": claim});
            all.add(path, json!({"name": name, "persistentVolumeClaim": claim}));
        }
        all
    }
}

/// Volumes of a pod, and where a container has them.
struct Volumes {
    volumes: Vec<Value>,
    mounts: Vec<Value>,
}

impl Volumes {
    fn add(&mut self, path: &str, volume: Value) {
        self.mounts.push(json!({"name": volume["name"], "mountPath": path}));
        self.volumes.push(volume);
    }
}

/// The experiment, for the pods to read; workers of a sweep read its file.
fn config_map(job: &Job, metadata: &Value) -> Option<Value> {
    job.experiment().map(|text| {
        let data = json!({"experiment.toml": text});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    })
}

/// An Indexed Job, whose pods meet by a headless service.
impl Kubernetes {
    /// The objects of an Indexed Job.
    fn indexed_job(&self, job: &Job, name: &str, metadata: &Value) -> Vec<Value> {
        let labels = &metadata["labels"];
        let template = json!({"metadata": {"labels": labels}, "spec": self.pod(job, name)});
        let spec = json!({
            "completionMode": "Indexed",
            "completions": self.pods(job),
            "parallelism": self.pods(job),
            "backoffLimit": self.max_restarts.unwrap_or(MAX_RESTARTS),
            "podFailurePolicy": failure_policy("ddprun"),
            "template": template,
        });
        let made =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec});
        self.service(job, name, metadata).into_iter().chain([made]).collect()
    }

    /// The service by which the pods of a job find each other.
    fn service(&self, job: &Job, name: &str, metadata: &Value) -> Option<Value> {
        let spec = json!({
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {"batch.kubernetes.io/job-name": name},
        });
        self.trains_together(job).then(
            || json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}),
        )
    }

    /// The words that a pod runs.
    fn command(&self, job: &Job, name: &str) -> Vec<String> {
        let nodes = self.nodes.to_string();
        let master = format!("{name}-0.{name}");
        let rank = "$(JOB_COMPLETION_INDEX)";
        let token = format!("{TOKEN}/token");
        let place = ["--nnodes", &nodes, "--node-rank", rank];
        let meeting = place.into_iter().chain(["--master-addr", &master, "--token-file", &token]);
        let meeting = meeting.filter(|_| self.trains_together(job)).map(str::to_owned);
        job.command(&self.program, EXPERIMENT).into_iter().chain(meeting).collect()
    }

    fn pod(&self, job: &Job, name: &str) -> Value {
        let mounted = self.mounted(job, name);
        let mut container = json!({
            "name": "ddprun",
            "image": self.image,
            "workingDir": self.folder,
            "command": self.command(job, name),
            "env": self.variables(job),
            "volumeMounts": mounted.mounts,
        });
        if let Some(resources) = self.resources() {
            container["resources"] = resources;
        }
        let mut pod = json!({
            "subdomain": name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace_of(job),
            "containers": [container],
            "volumes": mounted.volumes,
        });
        if !self.node_selector.is_empty() {
            pod["nodeSelector"] = json!(self.node_selector);
        }
        pod
    }
}

/// The policy for a pod that has ended, by the exit code of the container with this name.
fn failure_policy(container: &str) -> Value {
    let on = |action: &str, codes: &[ExitCode]| {
        let codes = json!({"containerName": container, "operator": "In", "values": codes});
        json!({"action": action, "onExitCodes": codes})
    };
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let ignored = json!({"action": "Ignore", "onPodConditions": disrupted});
    json!({"rules": [on("FailJob", &FINAL), on("Ignore", &[ExitCode::Preempted]), ignored]})
}

/// A `TrainJob` of Kubeflow Trainer, whose training runtime says what happens when a pod fails
/// (docs/clusters.md). Its policy `torch` numbers the pods and names the first of them in variables
/// (`PET_*`).
impl Kubernetes {
    /// A `TrainJob` with this training runtime of the cluster.
    fn train_job(&self, job: &Job, name: &str, metadata: &Value, runtime: &str) -> Value {
        let mut trainer = json!({
            "image": self.image,
            "command": ["sh", "-c", self.shell(job)],
            "env": self.variables(job),
            "numNodes": self.pods(job),
            "numProcPerNode": job.ranks,
        });
        if let Some(resources) = self.resources() {
            trainer["resourcesPerNode"] = resources;
        }
        json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": metadata,
            "spec": {
                "runtimeRef": {"name": runtime},
                "trainer": trainer,
                "runtimePatches": [self.patch(job, &metadata["labels"], &self.mounted(job, name))],
            },
        })
    }

    /// This job's changes to the runtime.
    fn patch(&self, job: &Job, labels: &Value, mounted: &Volumes) -> Value {
        let mut pod = json!({
            "terminationGracePeriodSeconds": self.grace_of(job),
            "containers": [{"name": NODE, "volumeMounts": mounted.mounts}],
            "volumes": mounted.volumes,
        });
        if !self.node_selector.is_empty() {
            pod["nodeSelector"] = json!(self.node_selector);
        }
        let pods = json!({"metadata": {"labels": labels}, "spec": pod});
        let jobs = json!([{"name": NODE, "template": {"spec": {"template": pods}}}]);
        let runtime = json!({"template": {"spec": {"replicatedJobs": jobs}}});
        json!({"manager": MANAGER, "trainingRuntimeSpec": runtime})
    }

    /// The shell script that the container runs: a `TrainJob` has no key for its folder.
    fn shell(&self, job: &Job) -> String {
        let folder = quoted(&self.folder);
        let alone = line(&job.command(&self.program, EXPERIMENT));
        let (before, meeting) = if self.trains_together(job) {
            let place = "--nnodes \"$PET_NNODES\" --node-rank \"$PET_NODE_RANK\"";
            let master = "--master-addr \"$PET_MASTER_ADDR\" --master-port \"$PET_MASTER_PORT\"";
            (String::new(), format!(" {place} {master} --token-file {TOKEN}/token"))
        } else {
            // Pods that do not meet are no machines of one run.
            (format!("unset {}\n", VARIABLES.join(" ")), String::new())
        };
        format!("cd {folder} || exit 2\n{before}exec {alone}{meeting}\n")
    }
}

#[cfg(test)]
mod tests;
