//! An Indexed Job, whose pods meet by a headless service.

use serde_json::{Value, json};

use super::Kubernetes;
use super::pod::{EXPERIMENT, TOKEN};
use crate::cluster::Job;
use crate::user_error::ExitCode;

/// Exit codes after which a run would fail again: of its experiment, its data, its numbers or its
/// checkpoint.
const FINAL: [ExitCode; 5] = [
    ExitCode::Refused,
    ExitCode::Data,
    ExitCode::Numeric,
    ExitCode::Checkpoint,
    ExitCode::Expectation,
];
/// How often failed pods are replaced by default.
const MAX_RESTARTS: u32 = 3;

impl Kubernetes {
    /// The objects of an Indexed Job.
    pub(super) fn indexed_job(&self, job: &Job, name: &str, metadata: &Value) -> Vec<Value> {
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

    /// By which the pods of a job find each other.
    fn service(&self, job: &Job, name: &str, metadata: &Value) -> Option<Value> {
        let spec = json!({
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {"batch.kubernetes.io/job-name": name},
        });
        self.meets(job).then(
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
        let meeting = meeting.filter(|_| self.meets(job)).map(str::to_owned);
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

/// What happens when a pod whose container is called so has ended.
pub(super) fn failure_policy(container: &str) -> Value {
    let on = |action: &str, codes: &[ExitCode]| {
        let codes = json!({"containerName": container, "operator": "In", "values": codes});
        json!({"action": action, "onExitCodes": codes})
    };
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let ignored = json!({"action": "Ignore", "onPodConditions": disrupted});
    json!({"rules": [on("FailJob", &FINAL), on("Ignore", &[ExitCode::Preempted]), ignored]})
}
