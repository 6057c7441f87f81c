//! `kind = "ssh"`

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::ddprun;
use crate::machine::{self, key_of};
use crate::shell::{preparation, quoted};
use crate::{Call, Cluster, Job, JobHandle, Output, Shape, State, shell};

/// another machine, over ssh: jobs start at once. The experiment is sent; ddprun and the data must
/// be there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ssh {
    /// The machine: a host of `~/.ssh/config`, or `user@host`.
    #[schemars(extend("examples" = ["me@gpu-box"]))]
    pub host: String,
    /// Folder on that machine to which the experiment's paths are relative; itself relative to the
    /// home folder. It must exist.
    #[schemars(extend("format" = "remote-path", "examples" = ["project"]))]
    pub folder: String,
    /// Path of ddprun on that machine.
    #[serde(default = "ddprun")]
    #[schemars(extend("format" = "remote-path"))]
    pub program: String,
    /// Environment variables of the job.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "OMP_NUM_THREADS": "8" }]))]
    pub environment: BTreeMap<String, String>,
    /// Shell lines to run before ddprun starts.
    #[serde(default)]
    #[schemars(extend("examples" = [["module load cuda"]]))]
    pub setup: Vec<String>,
}

impl Kind for Ssh {
    const NAME: &'static str = "ssh";

    fn check(&self) -> Vec<OptionConflict> {
        let wrong = |key, what: String| OptionConflict { key, with: &[], what };
        let is_host = |host: &str| {
            !host.is_empty()
                && !host.starts_with('-')
                && !host.contains(|c: char| c.is_control() || c.is_whitespace())
        };
        let host =
            (!is_host(&self.host)).then(|| wrong("host", format!("{:?} is not a host", self.host)));
        let folder = self.folder.is_empty().then(|| wrong("folder", "is empty".to_owned()));
        let name = shell::wrong_name(&self.environment);
        [host, folder, name].into_iter().flatten().collect()
    }
}

/// The folder of a job, from that in which the experiment's paths begin.
fn folder_of(key: &str) -> String {
    format!("logs/.jobs/{key}")
}

impl Ssh {
    /// Runs a script in the folder on that machine.
    fn bash(&self, script: &str) -> Call {
        let script = format!("cd {} || exit 2\n{script}", quoted(&self.folder));
        self.call(["bash", "-s"]).reading(script)
    }

    fn call<'a>(&'a self, command: impl IntoIterator<Item = &'a str>) -> Call {
        // A question for a password could not be answered.
        let head = ["-o", "BatchMode=yes", "--", &self.host];
        Call::new("ssh", head.into_iter().chain(command))
    }
}

impl Cluster for Ssh {
    fn shape(&self) -> Shape {
        Shape::one_machine(None)
    }

    fn sees_files(&self) -> bool {
        false
    }

    fn script(&self, job: &Job) -> String {
        let folder = folder_of(&job.key);
        let preparation = preparation(&self.environment, &self.setup);
        machine::script(job, &folder, &self.program, &preparation)
    }

    fn submit(&self, job: &Job) -> Call {
        let folder = folder_of(&job.key);
        // Nothing that begins a line of the two ends with the key of this job.
        let file = |name: &str, text: &str| {
            let end = format!("END-{}", job.key);
            format!("cat >{folder}/{name} <<'{end}'\n{text}\n{end}\n")
        };
        let experiment = |text: &str| file("experiment.toml", text.trim_end());
        let script = format!(
            "set -e\nmkdir -p {folder}\n{}{}setsid --fork bash {folder}/job.sh </dev/null \
             >/dev/null 2>&1\n",
            job.experiment().map(experiment).unwrap_or_default(),
            file("job.sh", self.script(job).trim_end()),
        );
        self.bash(&script)
    }

    fn id(&self, job: &Job, _: &str) -> Option<String> {
        Some(job.key.clone())
    }

    fn list(&self, jobs: &[JobHandle]) -> Call {
        let folders: Vec<String> = jobs.iter().map(|job| folder_of(key_of(job))).collect();
        self.bash(&machine::list(folders.iter().map(String::as_str)))
    }

    fn states(&self, answer: &str) -> Vec<(String, State)> {
        machine::states(answer)
    }

    fn cancel(&self, handle: &JobHandle) -> Call {
        self.bash(&machine::cancel(&folder_of(key_of(handle))))
    }

    fn output(&self, handle: &JobHandle, follow: bool) -> Output {
        let folder = format!("{}/{}", self.folder, folder_of(key_of(handle)));
        let at = |name: &str| quoted(&format!("{folder}/{name}"));
        let output = at("output.log");
        let script = if follow {
            // The number of a process that is gone may have become another's.
            format!(
                "if [ -e {} ]; then cat {output}; else tail -n +1 -f --pid=\"$(cat {})\" \
                 {output}; fi",
                at("exit"),
                at("pid")
            )
        } else {
            format!("cat {output}")
        };
        // The user's own shell there may be another.
        let command = format!("bash -c {}", quoted(&script));
        Output::Call(self.call([command.as_str()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Ssh {
        Ssh {
            host: "me@box".to_owned(),
            folder: "my project".to_owned(),
            program: ddprun(),
            environment: BTreeMap::new(),
            setup: vec!["source env.sh".to_owned()],
        }
    }

    #[test]
    fn the_experiment_and_the_script_are_sent_and_started() {
        let call = machine().submit(&Job::example());
        assert_eq!(call.args, ["-o", "BatchMode=yes", "--", "me@box", "bash", "-s"]);
        insta::assert_snapshot!(call.input);
    }

    /// The other machine is imitated by a shell in another folder.
    #[test]
    fn what_is_sent_runs_the_experiment_there() {
        let home = tempfile::tempdir().unwrap();
        crate::files::create_folder(&home.path().join("my project")).unwrap();
        let sent = |call: &Call| {
            let script = format!("cd {}\n{}", home.path().display(), call.input);
            Call::new("bash", ["-s"]).reading(script).run().unwrap()
        };
        let ssh =
            Ssh { program: "cat".to_owned(), setup: vec!["echo begun".to_owned()], ..machine() };
        let job = Job::example();
        sent(&ssh.submit(&job));
        let place = JobHandle { id: job.key.clone(), folder: job.folder.clone(), workers: None };
        let state = loop {
            let (key, state) = ssh.states(&sent(&ssh.list(std::slice::from_ref(&place)))).remove(0);
            assert_eq!(key, job.key);
            if state.is_over {
                break state;
            }
        };
        assert_eq!(state, State::over("ended (exit 0)"));
        let output = home.path().join("my project").join(folder_of(&job.key)).join("output.log");
        let printed = std::fs::read_to_string(output).unwrap();
        assert_eq!(printed, format!("begun\n{}", job.experiment().unwrap()));
    }

    #[test]
    fn the_output_of_a_job_that_is_over_is_shown_to_its_end() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("my project").join(folder_of("key"));
        crate::files::create_folder(&folder).unwrap();
        let mut other = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let pid = other.id().to_string();
        for (name, text) in [("pid", pid.as_str()), ("exit", "0\n"), ("output.log", "done\n")] {
            crate::files::write_atomic(&folder.join(name), text.as_bytes()).unwrap();
        }
        let place = JobHandle { id: "key".to_owned(), folder: "/here/key".into(), workers: None };
        let Output::Call(call) = machine().output(&place, true) else { panic!("no call") };
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(call.args.last().unwrap()).current_dir(home.path());
        let printed = shell.output().unwrap();
        let is_running = other.try_wait().unwrap().is_none();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(String::from_utf8(printed.stdout).unwrap(), "done\n");
        assert!(is_running, "it waited for another process");
    }
}
