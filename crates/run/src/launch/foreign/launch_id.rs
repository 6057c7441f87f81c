//! Identifies the launch of another program that this process belongs to, so that a run is found
//! again when its launcher restarts the ranks. Pure except for the environment.

use serde::{Deserialize, Serialize};

use crate::launch::error_report::host;
use crate::launch::rank::env::CONTROL_FD;

/// The job that `ddprun submit` made, as its script says.
const JOB: &str = "DDPRUN_JOB";

/// A launch of torchrun, a job of Slurm, or one of `ddprun submit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaunchId {
    /// The launcher.
    pub launcher: Launcher,
    /// torchrun's run id, Slurm's job, or ours.
    pub id: String,
    /// Distinguishes launches with the same id: torchrun's folder of this launch, or Slurm's step.
    /// Absent if the launcher does not tell.
    pub mark: Option<String>,
    /// The machine.
    pub host: String,
    /// Restarts by the launcher so far.
    pub attempt: u32,
}

/// A program that starts ranks again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Launcher {
    /// PyTorch's launcher.
    Torchrun,
    /// Slurm, which restarts a job after its machine failed, or when it was preempted.
    Slurm,
    /// The engine that runs a job of `ddprun submit`.
    Job,
}

impl std::fmt::Display for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm",
            Self::Job => "the cluster",
        })
    }
}

impl LaunchId {
    /// True if this may be a later attempt: engines do not tell our jobs their number of restarts.
    pub(crate) fn may_be_again(&self) -> bool {
        self.attempt > 0 || self.launcher == Launcher::Job
    }

    /// True if it is our job called `id`.
    pub(crate) fn is_job(&self, id: &str) -> bool {
        self.launcher == Launcher::Job && self.id == id
    }

    /// "torchrun has started the ranks again (restart 1)"
    pub(crate) fn again(&self) -> String {
        let Self { launcher, id, attempt, .. } = self;
        match launcher {
            Launcher::Job => format!("{launcher} has started job {id} again"),
            _ => format!("{launcher} has started the ranks again (restart {attempt})"),
        }
    }

    /// True if `earlier` is this launch before its restart; `None` if that is unknown.
    pub(crate) fn continues(&self, earlier: &Self) -> Option<bool> {
        let has_same_name = (self.launcher, &self.id) == (earlier.launcher, &earlier.id);
        if !has_same_name || earlier.attempt > self.attempt {
            return Some(false);
        }
        let (mark, before) = (self.mark.as_ref()?, earlier.mark.as_ref()?);
        // torchrun has a folder on each machine, and rank 0 may have moved to another one.
        let has_moved = self.launcher == Launcher::Torchrun && self.host != earlier.host;
        if mark != before && has_moved { None } else { Some(mark == before) }
    }
}

/// The launches that this process belongs to, innermost first.
pub(crate) fn launch_ids() -> Vec<LaunchId> {
    parse(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

fn parse(get: impl Fn(&str) -> Option<String>) -> Vec<LaunchId> {
    if get(CONTROL_FD).is_some() {
        return Vec::new();
    }
    let attempt = |name: &str| get(name).and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    let torchrun = get("TORCHELASTIC_RUN_ID").map(|id| LaunchId {
        launcher: Launcher::Torchrun,
        id,
        mark: get("TORCHELASTIC_ERROR_FILE").as_deref().and_then(folder_of_launch),
        host: host(),
        attempt: attempt("TORCHELASTIC_RESTART_COUNT"),
    });
    let slurm = get("SLURM_JOB_ID").map(|job| LaunchId {
        launcher: Launcher::Slurm,
        // Job ids are unique within a cluster.
        id: get("SLURM_CLUSTER_NAME").map_or(job.clone(), |cluster| format!("{cluster}/{job}")),
        mark: Some(get("SLURM_STEP_ID").unwrap_or_else(|| "batch".to_owned())),
        host: host(),
        attempt: attempt("SLURM_RESTART_COUNT"),
    });
    // No other job has this id, on no machine.
    let job = get(JOB).map(|id| LaunchId {
        launcher: Launcher::Job,
        id,
        mark: Some(String::new()),
        host: host(),
        attempt: 0,
    });
    torchrun.into_iter().chain(slurm).chain(job).collect()
}

/// The folder with a random name that torchrun creates for a launch: above those of the attempt and
/// of the rank.
fn folder_of_launch(error_file: &str) -> Option<String> {
    let folder = std::path::Path::new(error_file).ancestors().nth(3)?;
    folder.file_name().is_some().then(|| folder.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::rank::env::variables;

    fn ids(environment: &str) -> Vec<LaunchId> {
        parse(variables(environment))
    }

    fn torchrun(id: &str, folder: &str, attempt: u32) -> LaunchId {
        let file = if folder.is_empty() {
            String::new()
        } else {
            format!("/tmp/torchelastic_1/{folder}/attempt_{attempt}/0/error.json")
        };
        let environment = format!(
            "TORCHELASTIC_RUN_ID={id} TORCHELASTIC_RESTART_COUNT={attempt} \
             TORCHELASTIC_ERROR_FILE={file}"
        );
        ids(&environment).remove(0)
    }

    #[test]
    fn a_launch_of_torchrun_is_identified_by_its_folder_and_run_id() {
        let again = torchrun("none", "none_x7", 2);
        assert_eq!(again.mark.as_deref(), Some("/tmp/torchelastic_1/none_x7"));
        assert_eq!(again.continues(&torchrun("none", "none_x7", 0)), Some(true));
        assert_eq!(again.continues(&torchrun("none", "none_x7", 2)), Some(true), "a node left");
        assert_eq!(again.continues(&torchrun("none", "none_x7", 3)), Some(false));
        assert_eq!(again.continues(&torchrun("none", "none_y8", 0)), Some(false));
        assert_eq!(again.continues(&torchrun("mine", "none_x7", 0)), Some(false));
    }

    #[test]
    fn without_a_folder_or_on_another_machine_it_is_unknown() {
        let before = torchrun("none", "none_x7", 0);
        assert_eq!(torchrun("none", "", 1).mark, None);
        assert_eq!(torchrun("none", "", 1).continues(&before), None);
        assert_eq!(before.continues(&torchrun("none", "", 0)), None);
        let moved = LaunchId { host: "elsewhere".to_owned(), ..torchrun("none", "none_y8", 1) };
        assert_eq!(moved.continues(&before), None);
    }

    #[test]
    fn a_job_of_slurm_is_identified_by_cluster_number_and_step() {
        let job = |step: &str, attempt: u32| {
            let environment =
                format!("SLURM_CLUSTER_NAME=c SLURM_JOB_ID=7 {step} SLURM_RESTART_COUNT={attempt}");
            ids(&environment).remove(0)
        };
        let again = job("SLURM_STEP_ID=1", 1);
        assert_eq!((again.id.as_str(), again.attempt), ("c/7", 1));
        let moved = LaunchId { host: "elsewhere".to_owned(), ..job("SLURM_STEP_ID=1", 0) };
        assert_eq!(again.continues(&moved), Some(true));
        assert_eq!(again.continues(&job("SLURM_STEP_ID=0", 0)), Some(false));
        assert_eq!(again.continues(&job("", 0)), Some(false));
    }

    #[test]
    fn a_job_of_ours_is_the_same_at_every_start_and_on_every_machine() {
        let job = |id: &str| ids(&format!("DDPRUN_JOB={id}")).remove(0);
        let moved = LaunchId { host: "elsewhere".to_owned(), ..job("a") };
        assert_eq!(moved.continues(&job("a")), Some(true));
        assert_eq!(moved.continues(&job("b")), Some(false));
        assert!(job("a").may_be_again() && job("a").is_job("a"));
        assert_eq!(job("a").again(), "the cluster has started job a again");
    }

    #[test]
    fn torchrun_within_a_job_comes_first_and_our_own_ranks_belong_to_no_launch() {
        let both = "TORCHELASTIC_RUN_ID=a SLURM_JOB_ID=7";
        let launchers: Vec<Launcher> = ids(both).into_iter().map(|id| id.launcher).collect();
        assert_eq!(launchers, [Launcher::Torchrun, Launcher::Slurm]);
        assert!(ids(&format!("{both} DDPRUN_CONTROL_FD=5")).is_empty());
        assert!(ids("").is_empty());
    }
}
