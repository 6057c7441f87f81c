//! What a pod of a job has: its variables, its resources, what is mounted where.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Kubernetes;
use crate::cluster::{Job, SaveTime};
use crate::config::values::Size;

/// Folder of the experiment in a pod.
pub(super) const EXPERIMENT: &str = "/ddprun";
/// Folder of the token in a pod.
pub(super) const TOKEN: &str = "/ddprun-token";

/// Volumes of a pod, and where a container has them.
pub(super) struct Volumes {
    pub(super) volumes: Vec<Value>,
    pub(super) mounts: Vec<Value>,
}

impl Volumes {
    fn add(&mut self, path: &str, volume: Value) {
        self.mounts.push(json!({"name": volume["name"], "mountPath": path}));
        self.volumes.push(volume);
    }
}

impl Kubernetes {
    /// Whether the pods of a job train one model together.
    pub(super) fn meets(&self, job: &Job) -> bool {
        self.nodes > 1 && job.workers().is_none()
    }

    /// Pods of a job.
    pub(super) fn pods(&self, job: &Job) -> u32 {
        job.workers().unwrap_or(self.nodes)
    }

    /// Seconds that a pod has to save.
    pub(super) fn grace_of(&self, job: &Job) -> u64 {
        SaveTime::of("grace", self.grace, job.longest_save.as_ref()).time.as_secs()
    }

    pub(super) fn variables(&self, job: &Job) -> Vec<Value> {
        let mut all = self.environment.clone();
        all.insert("DDPRUN_JOB".to_owned(), job.key.clone());
        all.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    }

    /// What a pod may use, which is also what is kept for it; `None` = whatever there is.
    pub(super) fn resources(&self) -> Option<Value> {
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

    pub(super) fn mounted(&self, job: &Job, name: &str) -> Volumes {
        let mut all = Volumes { volumes: Vec::new(), mounts: Vec::new() };
        if job.experiment().is_some() {
            all.add(EXPERIMENT, json!({"name": "experiment", "configMap": {"name": name}}));
        }
        if let Some(secret) = self.token_secret.as_deref()
            && self.meets(job)
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

/// The experiment, for the pods to read; workers of a sweep read its file.
pub(super) fn config_map(job: &Job, metadata: &Value) -> Option<Value> {
    job.experiment().map(|text| {
        let data = json!({"experiment.toml": text});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    })
}
