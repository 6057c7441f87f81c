//! A `TrainJob` of Kubeflow Trainer, whose training runtime says what happens when a pod fails
//! (docs/clusters.md).
//!
//! Its policy `torch` numbers the pods and names the first of them in variables (`PET_*`).

use serde_json::{Value, json};

use super::Kubernetes;
use super::pod::{EXPERIMENT, TOKEN, Volumes};
use crate::cluster::Job;
use crate::cluster::shell::{line, quoted};

/// Name of the runtime's container, and of its job.
const NODE: &str = "node";
/// Whose changes to the runtime they are: a domain and a path.
const MANAGER: &str = "ddprun/submit";
/// What the policy `torch` sets.
const VARIABLES: [&str; 5] =
    ["PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE"];

impl Kubernetes {
    /// A `TrainJob` with this training runtime of the cluster.
    pub(super) fn train_job(
        &self,
        job: &Job,
        name: &str,
        metadata: &Value,
        runtime: &str,
    ) -> Value {
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

    /// What of the runtime is this job's own.
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

    /// What the container runs: a `TrainJob` has no word for its folder.
    fn shell(&self, job: &Job) -> String {
        let folder = quoted(&self.folder);
        let alone = line(&job.command(&self.program, EXPERIMENT));
        let (before, meeting) = if self.meets(job) {
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
