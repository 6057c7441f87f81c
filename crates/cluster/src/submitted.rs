//! Submitted jobs: `logs/.jobs/KEY/job.json`, beside the job's script, experiment and output.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::JobHandle;
use crate::config::kind::Choice;
use crate::files;

/// File in a job's folder.
const FILE: &str = "job.json";
/// Folder beside the runs; hidden, so that it is not taken for one.
const JOBS: &str = ".jobs";
/// Format version of the file.
pub const FORMAT: u32 = 1;

/// A job that was submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submitted {
    pub format: u32,
    /// Name that the engine gave to the job.
    pub id: String,
    /// Name of the cluster in the file of clusters.
    pub cluster: String,
    /// The cluster at the time of submission: its table may change.
    pub kind: Choice,
    /// Name of the experiment or of the sweep.
    pub name: String,
    /// Workers, if it is a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    pub time: jiff::Timestamp,
}

/// The folder of the job `key` of the runs in `logs`.
pub fn folder_of(logs: &Path, key: &str) -> PathBuf {
    logs.join(JOBS).join(key)
}

/// Notes that a job was submitted.
pub fn write(folder: &Path, job: &Submitted) -> Result<(), files::Error> {
    files::write_atomic(&folder.join(FILE), &serde_json::to_vec_pretty(job).unwrap_or_default())
}

/// True if a program that is called with `id` takes it for a job's name, not for a flag.
fn is_id(id: &str) -> bool {
    !id.is_empty() && !id.starts_with('-') && !id.contains(char::is_control)
}

/// All jobs of the runs in `logs`, oldest first. Files that cannot be read, or have a newer format,
/// are skipped.
pub fn all(logs: &Path) -> Vec<(JobHandle, Submitted)> {
    let entries = std::fs::read_dir(logs.join(JOBS)).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    let job = |folder: PathBuf| {
        let job: Submitted = serde_json::from_slice(&files::read(&folder.join(FILE)).ok()?).ok()?;
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let place = JobHandle { id: job.id.clone(), folder, workers: job.workers };
        (job.format <= FORMAT && is_id(&job.id)).then_some((place, job))
    };
    folders.into_iter().filter_map(job).collect()
}

/// The newest job called `id`.
pub fn find(logs: &Path, id: &str) -> Option<(JobHandle, Submitted)> {
    all(logs).into_iter().rfind(|(_, job)| job.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_found_by_its_id() {
        let logs = tempfile::tempdir().unwrap();
        let submit = |key: &str, id: &str, name: &str, format: u32| {
            let job = Submitted {
                format,
                id: id.to_owned(),
                cluster: "lab".to_owned(),
                kind: Choice::named("slurm"),
                name: name.to_owned(),
                workers: None,
                time: jiff::Timestamp::UNIX_EPOCH,
            };
            let folder = folder_of(logs.path(), key);
            files::create_folder(&folder).unwrap();
            write(&folder, &job).unwrap();
        };
        submit("1", "7", "mnist", FORMAT);
        submit("2", "8", "mnist", FORMAT);
        // Another cluster counts from 1, too.
        submit("3", "7", "gpt", FORMAT);
        submit("4", "10", "gpt", FORMAT + 1);
        submit("6", "--user=root", "gpt", FORMAT);
        files::create_folder(&folder_of(logs.path(), "5")).unwrap();
        let name = |id: &str| find(logs.path(), id).map(|(_, job)| job.name);
        assert_eq!(name("8").as_deref(), Some("mnist"));
        assert_eq!(name("7").as_deref(), Some("gpt"));
        assert_eq!(name("10"), None);
        assert_eq!(all(logs.path()).len(), 3);
        assert_eq!(all(&logs.path().join("none")), []);
    }
}
