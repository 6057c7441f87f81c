//! `kind = "kubernetes"`
//!
//! An Indexed Job with a pod for each machine, which find each other by a headless service, or with
//! a pod for each worker of a sweep. A pod that is taken away, or that was told to stop and has
//! saved, is replaced without counting as a failure; one that refuses its experiment or its data
//! ends the job.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::defaults::{ddprun, one, three};
use crate::cluster::manifest::{block, entries, is_name, name_of, yaml};
use crate::cluster::{Call, Cluster, Job, Output, Place, Shape, State, shell};
use crate::config::kind::{Kind, Wrong};
use crate::config::values::{Duration, Size};

/// a cluster that Kubernetes runs: `kubectl` is called here. Data and runs are on volumes, ddprun
/// is in the image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kubernetes {
    /// Image of the containers, with ddprun in it.
    #[schemars(extend("examples" = ["registry.example.com/ddprun:0.1"]))]
    pub image: String,
    /// Context of kubectl; by default its current one.
    #[serde(default)]
    #[schemars(extend("examples" = ["lab"]))]
    pub context: Option<String>,
    /// Namespace; by default that of the context.
    #[serde(default)]
    #[schemars(extend("examples" = ["training"]))]
    pub namespace: Option<String>,
    /// Pods, each of which counts as a machine; for a sweep its workers.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub nodes: u32,
    /// Ranks of each pod. Default: one for each GPU, else `distributed.devices`.
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
    /// Claims of volumes, each with the folder at which it is mounted: data, `logs` and
    /// `checkpoints` must be on one.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "project-claim": "/project" }]))]
    pub volumes: BTreeMap<String, String>,
    /// Folder of the container in which the experiment's paths begin.
    #[schemars(extend("examples" = ["/project"]))]
    pub folder: String,
    /// The ddprun of the image.
    #[serde(default = "ddprun")]
    pub program: String,
    /// Secret whose key `token` holds what `ddprun token` prints. Several pods need it.
    #[serde(default)]
    #[schemars(extend("examples" = ["ddprun-token"]))]
    pub token_secret: Option<String>,
    /// Labels of the nodes that may run it.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "gpu": "a100" }]))]
    pub node_selector: BTreeMap<String, String>,
    /// How long a pod that is taken away may save.
    #[serde(default = "grace")]
    pub grace: Duration,
    /// How often failed pods are replaced.
    #[serde(default = "three")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: u32,
    /// Variables of the job.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "OMP_NUM_THREADS": "8" }]))]
    pub environment: BTreeMap<String, String>,
}

fn grace() -> Duration {
    Duration(std::time::Duration::from_mins(2))
}

impl Kind for Kubernetes {
    const NAME: &'static str = "kubernetes";

    fn check(&self) -> Vec<Wrong> {
        let wrong = |key, what: String| Wrong { key, with: &[], what };
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
        let name = shell::not_a_variable(&self.environment)
            .map(|name| wrong("environment", format!("`{name}` cannot name a variable")));
        let found = [token, empty("image", &self.image), folder, mounts, claims, name];
        found.into_iter().flatten().collect()
    }
}

/// Folder of the experiment in a pod.
const CONFIG: &str = "/ddprun";

impl Kubernetes {
    fn kubectl<'a>(&'a self, args: impl IntoIterator<Item = &'a str>) -> Call {
        let flag = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("--{name}={value}"))
        };
        let flags = [flag("context", &self.context), flag("namespace", &self.namespace)];
        let args = args.into_iter().map(str::to_owned);
        Call::new("kubectl", flags.into_iter().flatten().chain(args))
    }

    /// Whether the pods of a job train one model together.
    fn meets(&self, job: &Job) -> bool {
        self.nodes > 1 && job.workers().is_none()
    }

    /// The command line of a pod.
    fn command(&self, job: &Job, name: &str) -> String {
        let alone = job.command(&self.program, CONFIG);
        let alone = alone.iter().map(|word| yaml(word));
        let (nodes, master) = (self.nodes.to_string(), format!("{name}-0.{name}"));
        let meeting = [
            "--nnodes",
            &nodes,
            "--node-rank",
            "$(JOB_COMPLETION_INDEX)",
            "--master-addr",
            &master,
            "--token-file",
            "/ddprun-token/token",
        ];
        let meeting = meeting.into_iter().filter(|_| self.meets(job)).map(yaml);
        alone.chain(meeting).collect::<Vec<_>>().join(", ")
    }

    fn resources(&self) -> String {
        let memory = self.memory.map(|Size(bytes)| format!("{}Mi", bytes.div_ceil(1 << 20)));
        let given = [
            ("cpu", self.cpus_per_node.map(|cpus| cpus.to_string())),
            ("memory", memory),
            ("nvidia.com/gpu", (self.gpus_per_node > 0).then(|| self.gpus_per_node.to_string())),
        ];
        let given = given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let limits: BTreeMap<String, String> = given.collect();
        if limits.is_empty() {
            return String::new();
        }
        let lines = entries(&limits, 12);
        format!("\n        resources:\n          limits:{lines}\n          requests:{lines}")
    }

    fn variables(&self, key: &str) -> String {
        let mut all = self.environment.clone();
        all.insert("DDPRUN_JOB".to_owned(), key.to_owned());
        let variable = |(name, value): (&String, &String)| {
            format!("\n        - {{name: {}, value: {}}}", yaml(name), yaml(value))
        };
        all.iter().map(variable).collect()
    }

    /// Where volumes are mounted, and the volumes.
    fn volumes(&self, job: &Job, name: &str) -> (String, String) {
        let (mut mounts, mut volumes) = (String::new(), String::new());
        if job.experiment().is_some() {
            let _ = write!(mounts, "\n        - {{name: experiment, mountPath: {CONFIG}}}");
            let config = format!("configMap: {{name: {}}}", yaml(name));
            let _ = write!(volumes, "\n      - name: experiment\n        {config}");
        }
        if let Some(secret) = self.token_secret.as_deref().filter(|_| self.meets(job)) {
            mounts += "\n        - {name: token, mountPath: /ddprun-token, readOnly: true}";
            let _ = write!(
                volumes,
                "\n      - name: token\n        secret: {{secretName: {}, defaultMode: 0400}}",
                yaml(secret)
            );
        }
        for (number, (claim, path)) in self.volumes.iter().enumerate() {
            let _ =
                write!(mounts, "\n        - {{name: volume-{number}, mountPath: {}}}", yaml(path));
            let _ = write!(
                volumes,
                "\n      - name: volume-{number}\n        persistentVolumeClaim: {{claimName: {}}}",
                yaml(claim)
            );
        }
        (mounts, volumes)
    }

    /// The experiment, for the pods to read.
    fn config(job: &Job, head: &str) -> String {
        let manifest = |text| {
            let text = block(text);
            format!(
                "apiVersion: v1\nkind: ConfigMap\n{head}\ndata:\n  experiment.toml: {text}\n---\n"
            )
        };
        job.experiment().map(manifest).unwrap_or_default()
    }

    fn service(&self, job: &Job, name: &str, head: &str) -> String {
        if !self.meets(job) {
            return String::new();
        }
        format!(
            "apiVersion: v1
kind: Service
{head}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{batch.kubernetes.io/job-name: {name}}}
---
"
        )
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
        let name = name_of(job);
        let labels = format!("{{app.kubernetes.io/managed-by: ddprun, ddprun-job: {}}}", job.key);
        let head = format!("metadata:\n  name: {name}\n  labels: {labels}");
        let (mounts, volumes) = self.volumes(job, &name);
        let selector = if self.node_selector.is_empty() {
            String::new()
        } else {
            format!("\n      nodeSelector:{}", entries(&self.node_selector, 8))
        };
        format!(
            "{config}{service}apiVersion: batch/v1
kind: Job
{head}
spec:
  completionMode: Indexed
  completions: {nodes}
  parallelism: {nodes}
  backoffLimit: {restarts}
  podFailurePolicy:
    rules:
    # The experiment, the data, the numbers or the checkpoint: it would fail again.
    - action: FailJob
      onExitCodes: {{containerName: ddprun, operator: In, values: [2, 3, 4, 7, 9]}}
    # Stopped by request, and saved.
    - action: Ignore
      onExitCodes: {{containerName: ddprun, operator: In, values: [75]}}
    - action: Ignore
      onPodConditions: [{{type: DisruptionTarget, status: \"True\"}}]
  template:
    metadata:
      labels: {labels}
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {grace}{selector}
      containers:
      - name: ddprun
        image: {image}
        workingDir: {folder}
        command: [{command}]
        env:{variables}{resources}
        volumeMounts:{mounts}
      volumes:{volumes}
",
            config = Self::config(job, &head),
            service = self.service(job, &name, &head),
            nodes = job.workers().unwrap_or(self.nodes),
            restarts = self.max_restarts,
            grace = self.grace.0.as_secs(),
            image = yaml(&self.image),
            folder = yaml(&self.folder),
            command = self.command(job, &name),
            variables = self.variables(&job.key),
            resources = self.resources(),
        )
    }

    fn submit(&self, job: &Job) -> Call {
        self.kubectl(["create", "--filename=-"]).reading(self.script(job))
    }

    fn id(&self, job: &Job, _: &str) -> Option<String> {
        Some(name_of(job))
    }

    fn list(&self, _: &[Place]) -> Call {
        let columns = "{range .items[*]}{.metadata.name}|{.status.active}|\
                       {.status.conditions[?(@.status==\"True\")].type}{\"\\n\"}{end}";
        let output = format!("--output=jsonpath={columns}");
        self.kubectl(["get", "jobs", "--selector=app.kubernetes.io/managed-by=ddprun", &output])
    }

    fn states(&self, answer: &str) -> Vec<(String, State)> {
        let state = |line: &str| {
            let mut parts = line.split('|');
            let (name, active) = (parts.next()?, parts.next()?);
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

    fn cancel(&self, job: &Place) -> Call {
        // Its pods are told to stop, and have their grace to save.
        self.kubectl(["delete", "job", &job.id])
    }

    fn output(&self, job: &Place, follow: bool) -> Output {
        let name = format!("--selector=batch.kubernetes.io/job-name={}", job.id);
        // The first pod speaks for all that train one model; workers speak for themselves.
        let first = format!("{name},batch.kubernetes.io/job-completion-index=0");
        let most = format!("--max-log-requests={}", job.workers.unwrap_or(1));
        let args = match job.workers {
            None => vec!["logs", &first, "--tail=-1"],
            Some(_) => vec!["logs", &name, "--tail=-1", "--prefix", &most],
        };
        Output::Call(self.kubectl(args.into_iter().chain(follow.then_some("--follow"))))
    }
}

#[cfg(test)]
mod tests;
