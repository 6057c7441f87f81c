//! Words and lines of shell scripts.

use std::collections::BTreeMap;
use std::path::Path;

/// A word that the shell takes as it is.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A path as a word.
pub(crate) fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// A command line.
pub(crate) fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// What comes before the program: variables, then lines.
pub(crate) fn preparation(variables: &BTreeMap<String, String>, setup: &[String]) -> String {
    let export = |(name, value): (&String, &String)| format!("export {name}={}\n", quoted(value));
    let exports: String = variables.iter().map(export).collect();
    let line = |line: &String| format!("{line}\n");
    exports + &setup.iter().map(line).collect::<String>()
}

/// The first name that is no name of a variable.
pub(crate) fn not_a_variable(variables: &BTreeMap<String, String>) -> Option<&str> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    variables.keys().map(String::as_str).find(|name| !is_name(name))
}

/// What a script does at SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtTerm {
    /// Tells the program.
    PassOn,
    /// Waits: the program is told by others.
    Wait,
}

impl AtTerm {
    fn traps(self) -> String {
        let at_term = match self {
            Self::PassOn => "pass_on TERM",
            Self::Wait => "signalled=1",
        };
        format!("trap 'pass_on USR1' USR1\ntrap '{at_term}' TERM\n")
    }
}

/// Runs a command and passes on SIGUSR1 to it; its exit code is in `$code`.
pub(crate) fn supervised(command: &str, at_term: AtTerm) -> String {
    format!(
        "pass_on() {{ signalled=1; kill -\"$1\" $! 2>/dev/null; }}
{}{command} &
while :; do
    signalled=
    wait $!
    code=$?
    [ -n \"$signalled\" ] || break    # a signal ends the wait, not the program
done
",
        at_term.traps()
    )
}

/// As [`supervised`], for so many processes of the command. The least exit code counts: a worker
/// that was killed does not matter where another has ended the sweep.
pub(crate) fn supervised_workers(command: &str, workers: u32, at_term: AtTerm) -> String {
    if workers == 1 {
        return supervised(command, at_term);
    }
    format!(
        "workers=
pass_on() {{ signalled=1; kill -\"$1\" $workers 2>/dev/null; }}
{}for worker in $(seq {workers}); do
    {command} &
    workers=\"$workers $!\"
done
code=255
for worker in $workers; do
    while :; do
        signalled=
        wait \"$worker\"
        ended=$?
        [ -n \"$signalled\" ] || break    # a signal ends the wait, not the worker
    done
    # Bash forgets how a worker ended that was gone when it was told, and says -1.
    [ \"$ended\" -lt 0 ] || [ \"$ended\" -ge \"$code\" ] || code=$ended
done
",
        at_term.traps()
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_shell_gives_back_a_quoted_word() {
        for word in ["plain", "", "it's", "a b", "$HOME `x` \"y\"", "*\n\\"] {
            let script = format!("printf %s {}", quoted(word));
            let printed = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(printed.stdout).unwrap(), word);
        }
    }

    #[test]
    fn a_script_passes_signals_on_and_ends_with_the_programs_code() {
        let child = "trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done";
        let script = supervised(&format!("sh -c {}", quoted(child)), AtTerm::Wait) + "exit $code";
        let mut running = Command::new("bash")
            .args(["-c", &script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = running.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let pid = rustix::process::Pid::from_raw(running.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(75));
    }

    #[test]
    fn several_workers_get_a_signal_and_the_least_code_counts() {
        let child = "trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done";
        let first = "mkdir first 2>/dev/null && exit 137";
        let folder = tempfile::tempdir().unwrap();
        let command = format!("sh -c {}", quoted(&format!("{first}; {child}")));
        let script = supervised_workers(&command, 3, AtTerm::PassOn) + "exit $code";
        let mut running = Command::new("bash")
            .args(["-c", &script])
            .current_dir(folder.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = std::io::BufReader::new(running.stdout.take().unwrap());
        for _ in 0..2 {
            std::io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
        }
        let pid = rustix::process::Pid::from_raw(running.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(75));
    }

    #[test]
    fn variables_have_names() {
        let of = |name: &str| BTreeMap::from([(name.to_owned(), String::new())]);
        assert_eq!(not_a_variable(&of("HF_HOME2")), None);
        assert_eq!(not_a_variable(&of("A;rm")), Some("A;rm"));
        assert_eq!(not_a_variable(&of("2A")), Some("2A"));
        assert_eq!(not_a_variable(&of("")), Some(""));
    }
}
