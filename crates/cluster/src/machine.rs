//! A machine without a scheduler: a script that leaves its process and its exit code in the job's
//! folder, and scripts that read these.

use std::path::Path;

use crate::shell::{AtTerm, line, quoted, supervised};
use crate::{Job, JobHandle, State};

/// The script of a job whose folder is `folder`, seen from where `program` runs it.
pub(crate) fn script(job: &Job, folder: &str, program: &str, preparation: &str) -> String {
    let at = |name: &str| quoted(&format!("{folder}/{name}"));
    format!(
        "#!/bin/bash
exec >>{output} 2>&1 </dev/null
echo $$ >{pid}
{preparation}export DDPRUN_JOB={key}

{supervised}
echo \"$code\" >{exit}
exit \"$code\"
",
        key = job.key,
        output = at("output.log"),
        pid = at("pid"),
        exit = at("exit"),
        supervised = supervised(
            &line(&job.command(program, folder)),
            job.workers().unwrap_or(1),
            AtTerm::PassOn
        ),
    )
}

/// The process `$pid` of the job in `$folder`, and whether it is `$alive`: its number may have become
/// another's. The folder may come from somebody else: only a number in a regular file counts.
const PROCESS: &str = r#"pid= alive=0
    [ -f "$folder/pid" ] && pid=$(head -c 20 "$folder/pid" 2>/dev/null)
    case "$pid" in
        *[!0-9]*) pid= ;;
        ?*) case "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")" in *"$folder"*) alive=1 ;; esac ;;
    esac"#;

/// Prints how the jobs in these folders stand.
pub(crate) fn list<'a>(folders: impl IntoIterator<Item = &'a str>) -> String {
    let folders: Vec<String> = folders.into_iter().map(quoted).collect();
    format!(
        "for folder in {}; do
    # Before its exit code is looked for, which it leaves at its end.
    {PROCESS}
    # Not while its code is being written.
    if [ -f \"$folder/exit\" ] && [ -s \"$folder/exit\" ]; then
        word=\"ended (exit $(head -c 20 \"$folder/exit\"))\"
    elif [ -z \"$pid\" ]; then
        word=starting
    elif [ \"$alive\" != 0 ]; then
        word=running
    else
        word=killed
    fi
    echo \"${{folder##*/}}|$word\"
done
",
        folders.join(" ")
    )
}

/// The states that [`list`] printed.
pub(crate) fn states(answer: &str) -> Vec<(String, State)> {
    let state = |line: &str| {
        let (key, word) = line.split_once('|')?;
        let is_over = !["starting", "running"].contains(&word);
        Some((key.to_owned(), State { word: word.to_owned(), is_over }))
    };
    answer.lines().filter_map(state).collect()
}

/// Tells the job in this folder to save and to end; fails where it has ended.
pub(crate) fn cancel(folder: &str) -> String {
    format!(
        "folder={}
{PROCESS}
if [ -e \"$folder/exit\" ] || [ \"$alive\" = 0 ]; then
    echo 'the job is over' >&2
    exit 1
fi
kill -TERM \"$pid\"
",
        quoted(folder)
    )
}

/// The key of a job: the name of its folder.
pub(crate) fn key_of(handle: &JobHandle) -> &str {
    handle.folder.file_name().and_then(|name| name.to_str()).unwrap_or(&handle.id)
}

/// A path as text.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
