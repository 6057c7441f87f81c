//! `kind = "local"`

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::machine::{self, text};
use crate::shell::{path, preparation};
use crate::{Call, Cluster, Job, JobHandle, Output, Shape, State, job, shell};

/// this machine: jobs start at once, and keep running when the terminal is closed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Local {
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

impl Kind for Local {
    const NAME: &'static str = "local";

    fn check(&self) -> Vec<OptionConflict> {
        shell::wrong_name(&self.environment).into_iter().collect()
    }
}

impl Cluster for Local {
    fn shape(&self) -> Shape {
        Shape::one_machine(None)
    }

    fn program(&self) -> Option<PathBuf> {
        self.program.clone()
    }

    fn script(&self, job: &Job) -> String {
        let preparation = format!(
            "cd {} || exit 2\n{}",
            path(&job.root),
            preparation(&self.environment, &self.setup)
        );
        machine::script(job, &text(&job.folder), &text(&job.program), &preparation)
    }

    fn submit(&self, job: &Job) -> Call {
        let script = job.folder.join(self.script_name()).into_os_string();
        Call::new("setsid", ["--fork".into(), "bash".into(), script])
    }

    fn id(&self, job: &Job, _: &str) -> Option<String> {
        Some(job.key.clone())
    }

    fn list(&self, jobs: &[JobHandle]) -> Call {
        let folders: Vec<String> = jobs.iter().map(|job| text(&job.folder)).collect();
        bash(machine::list(folders.iter().map(String::as_str)))
    }

    fn states(&self, answer: &str) -> Vec<(String, State)> {
        machine::states(answer)
    }

    fn cancel(&self, handle: &JobHandle) -> Call {
        bash(machine::cancel(&text(&handle.folder)))
    }

    fn output(&self, handle: &JobHandle, _: bool) -> Output {
        Output::Files(vec![job::output_in(&handle.folder)])
    }
}

fn bash(script: String) -> Call {
    Call::new("bash", ["-s"]).reading(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_leaves_process_and_exit_code_in_the_jobs_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let program = at("program.sh");
        let text = "#!/bin/sh\necho $DDPRUN_JOB $A $(pwd) $1\nexit 9\n";
        crate::files::write_atomic(&program, text.as_bytes()).unwrap();
        let job = Job {
            folder: at("it's here"),
            root: folder.path().to_owned(),
            program: "sh".into(),
            ..Job::example()
        };
        let local = Local {
            environment: BTreeMap::from([("A".to_owned(), "a b".to_owned())]),
            setup: vec!["sh() { command sh program.sh \"$@\"; }".to_owned()],
            program: None,
        };
        crate::files::create_folder(&job.folder).unwrap();
        let script = job.folder.join("job.sh");
        crate::files::write_atomic(&script, local.script(&job).as_bytes()).unwrap();
        local.submit(&job).run().unwrap();
        let place = JobHandle { id: job.key.clone(), folder: job.folder.clone(), workers: None };
        let state = loop {
            let answer = local.list(std::slice::from_ref(&place)).run().unwrap();
            let (_, state) = local.states(&answer).remove(0);
            if state.is_over {
                break state;
            }
        };
        assert_eq!(state, State::over("ended (exit 9)"));
        let output = std::fs::read_to_string(job.output_path()).unwrap();
        let (root, experiment) = (folder.path().display(), job.experiment_path());
        assert_eq!(output, format!("{} a b {root} {}\n", job.key, experiment.display()));
    }

    #[test]
    fn a_job_whose_process_is_gone_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let place =
            JobHandle { id: "x".to_owned(), folder: folder.path().to_owned(), workers: None };
        let state = || {
            let answer = Local::default().list(std::slice::from_ref(&place)).run().unwrap();
            Local::default().states(&answer).remove(0).1
        };
        assert_eq!(state(), State::open("starting"));
        crate::files::write_atomic(&folder.path().join("pid"), b"1\n").unwrap();
        assert_eq!(state(), State::over("killed"));
    }

    /// The job's process is gone, and another one of the same user has its number by now.
    #[test]
    fn a_job_that_is_over_is_not_cancelled_in_the_person_of_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let place =
            JobHandle { id: "x".to_owned(), folder: folder.path().to_owned(), workers: None };
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = format!("{}\n", other.id());
        crate::files::write_atomic(&folder.path().join("pid"), pid.as_bytes()).unwrap();
        let refused = Local::default().cancel(&place).run();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let is_running = other.try_wait().unwrap().is_none();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(refused.unwrap_err().to_string(), "`bash` failed: the job is over");
        assert!(is_running);
    }

    /// The folder came from somebody else: a name that is in every line, and a pipe as the process.
    #[test]
    fn a_job_folder_from_someone_else_cannot_kill_a_process_or_hang_the_listing() {
        let all = tempfile::tempdir().unwrap();
        let folder = all.path().join("evil\n");
        let place = JobHandle { id: "evil".to_owned(), folder: folder.clone(), workers: None };
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = format!("{}\n", other.id());
        crate::files::create_folder(&folder).unwrap();
        crate::files::write_atomic(&folder.join("pid"), pid.as_bytes()).unwrap();
        let refused = Local::default().cancel(&place).run();
        assert_eq!(refused.unwrap_err().to_string(), "`bash` failed: the job is over");
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(other.try_wait().unwrap().is_none(), "it lives");
        other.kill().unwrap();
        other.wait().unwrap();
        std::fs::remove_file(folder.join("pid")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("pid"), pipe, mode, 0).unwrap();
        let answer = Local::default().list(std::slice::from_ref(&place)).run().unwrap();
        assert!(answer.contains("starting"), "{answer}");
    }
}
