//! A call of another program, and its answer.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::user_error::{ExitCode, UserError};

/// A program with its arguments and its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Name or path.
    pub program: String,
    pub args: Vec<OsString>,
    /// Standard input; nothing if empty.
    pub input: String,
}

/// A call without an answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started.
    #[error("`{program}` cannot be run: {source}")]
    NotRun {
        program: String,
        #[source]
        source: io::Error,
    },
    /// It failed.
    #[error("`{program}` failed: {said}")]
    Failed {
        program: String,
        /// Text on standard error, or else the exit status.
        said: String,
    },
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::NotRun { .. } => ExitCode::Refused,
            Self::Failed { .. } => ExitCode::Peer,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::NotRun { program, source } if source.kind() == io::ErrorKind::NotFound => {
                Some(format!(
                    "submit from a machine that has `{program}` on its PATH, such as the \
                     cluster's login node"
                ))
            }
            _ => None,
        }
    }
}

impl Call {
    /// A call with these arguments.
    pub fn new<A: Into<OsString>>(program: &str, args: impl IntoIterator<Item = A>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.to_owned(), args, input: String::new() }
    }

    /// The same call, which reads `input`.
    #[must_use]
    pub fn reading(self, input: String) -> Self {
        Self { input, ..self }
    }

    /// Calls the program, and waits for its answer.
    pub fn run(&self) -> Result<String, Error> {
        let not_run = |source| Error::NotRun { program: self.program.clone(), source };
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(not_run)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read to the end says why itself.
            drop(stdin.write_all(self.input.as_bytes()));
        }
        let ended = child.wait_with_output().map_err(not_run)?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        let said = if said.is_empty() { ended.status.to_string() } else { said };
        Err(Error::Failed { program: self.program.clone(), said })
    }

    /// Calls the program, and gives each line that it prints to `hear`, until that has heard
    /// enough.
    pub fn lines(&self, mut hear: impl FnMut(&str) -> bool) -> Result<(), Error> {
        let not_run = |source| Error::NotRun { program: self.program.clone(), source };
        let mut command = Command::new(&self.program);
        let spawned = command.args(&self.args).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(not_run)?;
        let output = child.stdout.take().map(BufReader::new);
        let lines = output.into_iter().flat_map(|output| output.split(b'\n')).map_while(Result::ok);
        let is_heard = lines.into_iter().all(|line| hear(&String::from_utf8_lossy(&line)));
        if !is_heard {
            // It has nobody to print for.
            let _ = child.kill();
        }
        let ended = child.wait().map_err(not_run)?;
        if ended.success() || !is_heard {
            return Ok(());
        }
        Err(Error::Failed { program: self.program.clone(), said: ended.to_string() })
    }

    /// Calls the program, which prints where this one does.
    pub fn show(&self) -> Result<(), Error> {
        let not_run = |source| Error::NotRun { program: self.program.clone(), source };
        let ended = Command::new(&self.program).args(&self.args).status().map_err(not_run)?;
        if ended.success() {
            return Ok(());
        }
        Err(Error::Failed { program: self.program.clone(), said: ended.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_its_input_and_what_it_prints_is_the_answer() {
        let call = Call::new("sh", ["-c", "tr a-z A-Z; echo $0", "z"]).reading("abc\n".to_owned());
        assert_eq!(call.run().unwrap(), "ABC\nz\n");
    }

    #[test]
    fn lines_are_heard_as_they_come_until_enough_were_heard() {
        let (mut heard, call) = (Vec::new(), Call::new("sh", ["-c", "echo a; echo b; exit 3"]));
        let failed = call.lines(|line| {
            heard.push(line.to_owned());
            true
        });
        assert_eq!(heard, ["a", "b"]);
        assert_eq!(failed.unwrap_err().to_string(), "`sh` failed: exit status: 3");
        Call::new("sh", ["-c", "while echo a; do :; done"]).lines(|_| false).unwrap();
    }

    #[test]
    fn a_failure_is_told_in_the_programs_own_words() {
        let failed = Call::new("sh", ["-c", "echo no such thing >&2; exit 3"]).run().unwrap_err();
        assert_eq!(failed.to_string(), "`sh` failed: no such thing");
        let silent = Call::new("sh", ["-c", "exit 3"]).run().unwrap_err();
        assert_eq!(silent.to_string(), "`sh` failed: exit status: 3");
        let missing = Call::new("no-such-program", [""; 0]).run().unwrap_err();
        assert!(missing.help().unwrap().contains("`no-such-program` on its PATH"));
    }
}
