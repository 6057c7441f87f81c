//! Words and lines of shell scripts.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::kind::OptionConflict;
pub(crate) use crate::terminal::shell_word as quoted;

/// A path as a word of a shell script.
pub(crate) fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// A command line.
pub(crate) fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Lines before the program: variables, then `setup`.
pub(crate) fn preparation(variables: &BTreeMap<String, String>, setup: &[String]) -> String {
    let export = |(name, value): (&String, &String)| format!("export {name}={}\n", quoted(value));
    let exports: String = variables.iter().map(export).collect();
    let line = |line: &String| format!("{line}\n");
    exports + &setup.iter().map(line).collect::<String>()
}

/// Checks the names of a kind's `environment`.
pub(crate) fn wrong_name(variables: &BTreeMap<String, String>) -> Option<OptionConflict> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let name = variables.keys().find(|name| !is_name(name))?;
    Some(OptionConflict {
        key: "environment",
        with: &[],
        what: format!("`{name}` cannot name a variable"),
    })
}

/// Checks a text that must stay within one line of a script or of a command line.
pub(crate) fn wrong_line(key: &'static str, text: &str) -> Option<OptionConflict> {
    let what = || format!("{text:?} has a line break or another control character");
    text.contains(char::is_control).then(|| OptionConflict { key, with: &[], what: what() })
}

/// A script's reaction to SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtTerm {
    /// Passes it on to the program.
    PassOn,
    /// Waits: others send it to the program.
    Wait,
}

/// Runs so many processes of a command, and passes on SIGUSR1 to them. The least exit code is in
/// `$code`: a worker that was killed does not matter where another has ended the sweep.
pub(crate) fn supervised(command: &str, workers: u32, at_term: AtTerm) -> String {
    let start = match workers {
        1 => format!("    {command} >&3 &\n    programs=$!\n"),
        _ => format!(
            "    for worker in $(seq {workers}); do
        {command} >&3 &
        programs=\"$programs $!\"
    done
"
        ),
    };
    let at_term = match at_term {
        AtTerm::PassOn => "pass_on TERM",
        AtTerm::Wait => ":",
    };
    format!(
        "programs=
early=
pass_on() {{
    if [ -n \"$programs\" ]; then kill -\"$1\" $programs 2>/dev/null; else early=\"$early $1\"; fi
}}
trap 'pass_on USR1' USR1
trap '{at_term}' TERM
# A shell of its own waits, without signals: bash may lose the exit code of a program that ends in
# the instant of one.
exec 3>&1 4< <(
    trap : USR1 TERM
{start}    trap '' USR1 TERM
    echo $programs
    code=255
    for program in $programs; do
        wait \"$program\"
        ended=$?
        [ \"$ended\" -ge \"$code\" ] || code=$ended
    done
    echo \"$code\"
)
read -r programs <&4
# Programs need a moment before they can be told.
[ -z \"$early\" ] || sleep 1
for signal in $early; do pass_on \"$signal\"; done
# Older shells pass a signal on only between two reads.
while read -r -t 1 code <&4; [ $? -gt 128 ]; do :; done
"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_shell_gives_back_a_quoted_word() {
        for word in ["plain", "", "it's", "a b", "$HOME `x` \"y\"", "*\n\\"] {
            let script = format!("printf %s {}", quoted(word));
            let printed = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(printed.stdout).unwrap(), word);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// One shell for many words, as starting one takes a thousand times as long as quoting.
        #[test]
        fn the_shell_gives_back_any_word(words in prop::collection::vec("[^\0]{0,12}", 1..200)) {
            let script = format!("printf '%s\\0' {}", line(&words));
            let printed = Command::new("sh").args(["-c", &script]).output().unwrap();
            let expected: String = words.iter().flat_map(|word| [word.as_str(), "\0"]).collect();
            prop_assert_eq!(String::from_utf8(printed.stdout).unwrap(), expected);
        }
    }

    #[test]
    fn a_script_passes_signals_on_and_ends_with_the_programs_code() {
        let child = "trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done";
        let script =
            supervised(&format!("sh -c {}", quoted(child)), 1, AtTerm::Wait) + "exit $code";
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
    fn signals_at_the_end_of_a_program_do_not_change_its_code() {
        let child = "trap '' USR1; echo ready; sleep 0.01; exit 75";
        let command = format!("sh -c {}", quoted(child));
        for workers in [1, 2] {
            let script = supervised(&command, workers, AtTerm::PassOn) + "exit $code";
            for _ in 0..20 {
                let mut running = Command::new("bash")
                    .args(["-c", &script])
                    .stdout(std::process::Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut out = std::io::BufReader::new(running.stdout.take().unwrap());
                for _ in 0..workers {
                    std::io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
                }
                let pid = rustix::process::Pid::from_raw(running.id() as i32).unwrap();
                let status = loop {
                    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
                    if let Some(status) = running.try_wait().unwrap() {
                        break status;
                    }
                    // Thousands of nested traps are a segmentation fault of bash 5.2 itself.
                    std::thread::sleep(std::time::Duration::from_micros(500));
                };
                assert_eq!(status.code(), Some(75), "{status}");
            }
        }
    }

    #[test]
    fn several_workers_get_a_signal_and_the_least_code_counts() {
        let child = "trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done";
        let first = "mkdir first 2>/dev/null && exit 137";
        let folder = tempfile::tempdir().unwrap();
        let command = format!("sh -c {}", quoted(&format!("{first}; {child}")));
        let script = supervised(&command, 3, AtTerm::PassOn) + "exit $code";
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
        let check = |name: &str, expected: Option<&str>| {
            let found = wrong_name(&BTreeMap::from([(name.to_owned(), String::new())]));
            assert_eq!(found.map(|wrong| wrong.what).as_deref(), expected);
        };
        check("HF_HOME2", None);
        check("A;rm", Some("`A;rm` cannot name a variable"));
        check("2A", Some("`2A` cannot name a variable"));
        check("", Some("`` cannot name a variable"));
    }
}
