//! What is around a run: cores that others use, disks that end or fail, files that change, locks
//! that do not work, and time enough for counters to grow and memory to leak.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::bad_input::on_small_disk;
use crate::harness::bits::{Bits, bits, must_be_whole};
use crate::harness::experiments::{BASE, four_steps};
use crate::harness::faults::{TRACER, can_trace, undisturbed};
use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Ended, Running, spawn};
use crate::skipped::skipped;

/// Whether this machine has a program, which says its version.
fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A core that this process may use.
fn a_core() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().chars().take_while(char::is_ascii_digit).collect()
}

/// A process that does nothing but use a core, until it is dropped.
struct Burner(Child);

impl Burner {
    fn on(core: &str) -> Self {
        let mut command = Command::new("taskset");
        Self(command.args(["-c", core, "sh", "-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A run of this many ranks on one core, beside as many processes that want it too.
fn crowded(lab: &Lab, ranks: u32, burners: u32, changes: &[&str]) -> (Vec<Burner>, Running) {
    let core = a_core();
    let devices = format!("distributed.devices={ranks}");
    let batch = format!("train.global_batch_size={}", 2 * ranks);
    let ours = ["-c", &core, BINARY, "small.toml", &devices, &batch, "train.batch_size=2"];
    let burners = (0..burners).map(|_| Burner::on(&core)).collect();
    (burners, spawn(lab.command("taskset", &[&ours[..], changes].concat())))
}

/// No rank was accused of anything.
fn accuses_no_rank(ended: &Ended) {
    ended.has_code(0);
    for word in ["has not made progress", "restart 1", "error:"] {
        assert!(!ended.stderr.contains(word), "{}", ended.stderr);
    }
}

#[test]
fn many_ranks_on_one_core_beside_others_are_slow_and_not_accused() {
    if !has("taskset") {
        skipped("no `taskset`");
        return;
    }
    let lab = Lab::new();
    let (_burners, running) = crowded(&lab, 8, 1, &["fault.max_restarts=1"]);
    accuses_no_rank(&running.wait());
    lab.is_clean();
}

#[test]
#[ignore = "ten minutes: `just soak`"]
fn sixteen_ranks_on_one_core_beside_four_others_are_not_accused_in_ten_minutes() {
    let lab = Lab::new();
    let endless = ["~train.epochs", "train.time=10m", "fault.max_restarts=1"];
    let quiet = ["logging.every=100 steps", "validation.every=never", "checkpoint.every=500 steps"];
    let (_burners, mut running) = crowded(&lab, 16, 4, &[&endless[..], &quiet].concat());
    while !running.is_over() {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    accuses_no_rank(&running.wait());
    lab.is_clean();
}

/// Bytes of a process that are in memory.
fn resident(pid: u32) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<i64>().unwrap()
}

#[test]
#[ignore = "minutes: `just soak`"]
fn no_process_grows_by_a_kibibyte_a_step_over_100000_steps() {
    const WARM: u64 = 20_000;
    const STEPS: u64 = 100_000;
    let lab = Lab::with(&BASE.replace("train_per_class = 16", "train_per_class = 200"));
    let mut running = lab.start(&[
        "small.toml",
        "train.batch_size=1",
        "train.global_batch_size=2",
        "train.epochs=1000000",
        "validation.every=never",
        "checkpoint.every=1000 steps",
        "logging.every=1000 steps",
        "logging.sinks=[jsonl]",
    ]);
    let mut measure = |step: u64| {
        while lab.last_step() < step {
            assert!(!running.is_over(), "{}", running.stderr());
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let processes = [running.ranks(), vec![running.pid()]].concat();
        (lab.last_step(), processes.into_iter().map(resident).collect::<Vec<_>>())
    };
    let (first, before) = measure(WARM);
    let (last, after) = measure(STEPS);
    assert_eq!((before.len(), after.len()), (3, 3));
    for (name, (before, after)) in
        ["rank 0", "rank 1", "parent"].iter().zip(before.iter().zip(&after))
    {
        let slope = (after - before) as f64 / (last - first) as f64;
        println!(
            "{name}: {before} bytes after step {first}, {after} after step {last}: {slope:.2} a step"
        );
        assert!(slope < 1024.0, "{name} grows");
    }
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    lab.is_clean();
}

#[test]
fn a_full_dev_shm_does_not_matter() {
    let lab = Lab::new();
    let script = "mount -t tmpfs -o size=4k none /dev/shm || exit 99\n\
        dd if=/dev/zero of=/dev/shm/full bs=4096 count=1 2>/dev/null\n\
        \"$@\"; code=$?\nls -A /dev/shm >shm.txt\nexit $code";
    let args = ["-Urm", "sh", "-c", script, "sh", BINARY, "small.toml"];
    let ended = has("unshare").then(|| spawn(lab.command("unshare", &args)).wait());
    let Some(ended) = ended.filter(|ended| ended.code != 99 && lab.path("shm.txt").exists()) else {
        skipped("no mounts of its own (`unshare -Urm`)");
        return;
    };
    ended.has_code(0);
    ended.says(&["completed after step 12"]);
    assert_eq!(fs::read_to_string(lab.path("shm.txt")).unwrap(), "full\n");
    lab.is_clean();
}

/// A rank of its own, whose checkpoints are of 200 and 400 kB: the limit is one of all files,
/// shared memory too.
const LONG_FILES: [&str; 3] = ["small.toml", "model.hidden=[64]", "distributed.devices=1"];

/// What the run above leaves undisturbed, and where its data are.
fn long_files() -> (Lab, String, Bits) {
    let lab = Lab::with(&four_steps());
    let data = format!("data.dir={}", lab.path("data/shapes").display());
    lab.run_to(0, &[&LONG_FILES[..], &[&data]].concat());
    let expected = bits(&lab);
    (lab, data, expected)
}

/// The run where no file may be longer than `most` bytes, gone on with where it may. Returns how it
/// ended at first.
fn with_short_files(most: usize, (_, data, expected): &(Lab, String, Bits)) -> i32 {
    let lab = Lab::with(&four_steps());
    let limit = format!("--fsize={most}");
    let command = [&[limit.as_str(), BINARY], &LONG_FILES[..], &[data.as_str()]].concat();
    let ended = spawn(lab.command("prlimit", &command)).wait();
    assert!([0, 6].contains(&ended.code), "{most}: {} {}", ended.code, ended.stderr);
    if ended.code == 6 {
        ended.says(&["error: cannot ", "File too large", "do: "]);
        assert_eq!(lab.temporaries(), Vec::<PathBuf>::new(), "{most}");
        lab.run_to(0, &["resume"]);
    }
    must_be_whole(&lab);
    bits(&lab).must_be(expected);
    lab.is_clean();
    ended.code
}

#[test]
fn a_file_that_may_not_grow_is_a_disk_that_is_full() {
    if !has("prlimit") {
        skipped("no `prlimit`");
        return;
    }
    let undisturbed = long_files();
    let codes = [100_000, 300_001, 1 << 30].map(|most| with_short_files(most, &undisturbed));
    assert_eq!(codes, [6, 6, 0]);
    // Before the run is there.
    let lab = Lab::new();
    let ended = spawn(lab.command("prlimit", &["--fsize=20000", BINARY, "small.toml"])).wait();
    ended.has_code(6);
    ended.says(&["error: cannot write into the folder `", "File too large", "do: "]);
    lab.is_clean();
}

#[test]
#[ignore = "minutes: `just soak`"]
fn a_checkpoint_that_ends_at_any_byte_or_page_leaves_those_before_it() {
    let undisturbed = long_files();
    let limits = (66_000..400_000).step_by(3001);
    let ended = limits.map(|most| with_short_files(most, &undisturbed));
    println!("{} runs met the longest file", ended.filter(|&code| code == 6).count());
    let mut full = 0;
    for pages in 1..=110 {
        let lab = Lab::with(BASE);
        let args = ["small.toml", "checkpoint.every=2 steps", "checkpoint.keep_last=9"];
        let args = [&args[..], &[undisturbed.1.as_str()]].concat();
        let Some(ended) = on_small_disk(&lab, &format!("{}k", 4 * pages), &args) else { return };
        assert!([0, 6].contains(&ended.code), "{pages}: {} {}", ended.code, ended.stderr);
        let left = fs::read_to_string(lab.path("left.txt")).unwrap();
        let verified = fs::read_to_string(lab.path("verified.txt")).unwrap();
        assert!(!left.contains("tmp"), "{pages}: {left}");
        assert_eq!(verified.matches(": intact").count(), left.matches("step-").count(), "{pages}");
        full += u32::from(ended.code == 6);
        lab.is_clean();
    }
    println!("{full} of 110 disks were full");
}

/// The first image that the run trains on.
fn an_image(folder: &Path) -> PathBuf {
    let mut found: Vec<PathBuf> = children(folder);
    found.sort();
    let first = found.into_iter().find(|path| path.is_dir() || path.extension().is_some()).unwrap();
    if first.is_dir() { an_image(&first) } else { first }
}

/// A run whose reads of one image fail, those that `when` says of each thread.
fn with_bad_reads(data: &str, image: &Path, when: &str) -> (Lab, Ended) {
    let lab = Lab::with(&four_steps());
    let (path, inject) = (image.to_str().unwrap(), format!("inject=read:error=EIO:when={when}"));
    let strace = ["-f", "-o", "/dev/null", "-P", path, "-e", "trace=read", "-e", &inject, "--"];
    let ended =
        spawn(lab.command("strace", &[&strace[..], &[BINARY, "small.toml", data]].concat())).wait();
    (lab, ended)
}

#[test]
fn a_read_that_fails_once_is_tried_again_and_one_that_fails_always_names_the_file() {
    if !can_trace() {
        skipped(TRACER);
        return;
    }
    let (made, data, expected) = undisturbed();
    let image = an_image(&made.generated().join("train"));
    let (lab, ended) = with_bad_reads(&data, &image, "1");
    ended.has_code(0);
    bits(&lab).must_be(&expected);
    let (_lab, ended) = with_bad_reads(&data, &image, "1+");
    ended.has_code(3);
    ended.says(&[image.file_name().unwrap().to_str().unwrap(), "Input/output error"]);
}

#[test]
fn an_image_that_is_cut_or_gone_while_a_run_reads_it_is_named() {
    let remove = |path: &Path| fs::remove_file(path).unwrap();
    let cut = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(9).unwrap();
    for change in [&remove as &dyn Fn(&Path), &cut] {
        let lab = Lab::new();
        let mut running =
            lab.start(&["small.toml", "train.epochs=1000000", "logging.sinks=[jsonl]"]);
        lab.wait_for_step(&mut running, 7);
        let image = an_image(&lab.generated().join("train"));
        change(&image);
        let ended = running.wait();
        ended.has_code(3);
        ended.says(&[image.file_name().unwrap().to_str().unwrap(), "where: rank "]);
        lab.is_clean();
    }
}

#[test]
fn images_of_any_name_are_read_and_shown_without_their_control_characters() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let lab = Lab::new();
    lab.run_to(0, &["small.toml"]);
    let text = BASE.replace("\"shapes\"", "\"image_folder\"");
    let from = text.find("dir = ").unwrap();
    let to = text.find("num_workers").unwrap();
    let part = |key: &str, name: &str| format!("{key} = {:?}\n", lab.generated().join(name));
    let folders = part("train_dir", "train") + &part("val_dir", "val");
    let resize =
        |part: &str| format!("\n[[data.transforms.{part}]]\nname = \"resize\"\nsize = [16, 16]\n");
    let text = text[..from].to_owned() + &folders + &text[to..] + &resize("train") + &resize("val");
    lab.write("small.toml", text);
    let longest = [&[b'x'; 251][..], b".png"].concat();
    let names: [&[u8]; 5] = [
        b"new\nline.png",
        b"not\xffutf-8.png",
        &longest,
        b"-rf \x1b[31m.png",
        "\u{202e}ü 🦀.png".as_bytes(),
    ];
    let mut image = PathBuf::new();
    for name in names {
        image = an_image(&lab.generated().join("train"));
        let to = image.with_file_name(OsStr::from_bytes(name));
        fs::rename(&image, &to).unwrap();
        image = to;
    }
    lab.run_to(0, &["small.toml", "logging.dir=logs2", "checkpoint.dir=checkpoints2"]);
    fs::write(image.with_file_name(OsStr::from_bytes(names[3])), b"no image").unwrap();
    fs::write(image.with_file_name(OsStr::from_bytes(names[0])), b"no image").unwrap();
    let ended = lab.run_to(3, &["small.toml", "logging.dir=logs3", "checkpoint.dir=checkpoints3"]);
    assert!(
        !ended.stderr.contains('\u{1b}') && !ended.stderr.contains("new\nline"),
        "{}",
        ended.stderr
    );
    lab.is_clean();
}

#[test]
fn a_file_system_without_locks_is_refused_before_anything_starts() {
    if !can_trace() {
        skipped(TRACER);
        return;
    }
    let (_made, data, _) = undisturbed();
    for (errno, words) in [
        ("ENOLCK", "No locks available"),
        ("EOPNOTSUPP", "not supported"),
        ("ESTALE", "Stale file handle"),
    ] {
        let lab = Lab::with(&four_steps());
        let inject = format!("inject=flock:error={errno}");
        let strace = ["-f", "-o", "/dev/null", "-e", "trace=flock", "-e", &inject, "--", BINARY];
        let all = [&strace[..], &["small.toml", &data]].concat();
        let ended = spawn(lab.command("strace", &all)).wait();
        ended.has_code(6);
        ended.says(&["error: cannot lock `", words, "with locks", "`logging.dir`"]);
        assert!(!ended.stderr.contains("Use device"), "{}", ended.stderr);
        lab.is_clean();
    }
}

/// The only checkpoint of a lab, as if it had been made after `step` steps.
fn age(lab: &Lab, step: u64) {
    let old = lab.steps().pop().unwrap();
    let new = lab.checkpoints().join(format!("step-{step:08}"));
    fs::rename(&old, &new).unwrap();
    for link in ["latest", "best"].map(|name| lab.checkpoints().join(name)) {
        if fs::remove_file(&link).is_ok() {
            std::os::unix::fs::symlink(new.file_name().unwrap(), &link).unwrap();
        }
    }
    let json = |path: &Path| -> serde_json::Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    let mut state = json(&new.join("state.json"));
    state["step"] = step.into();
    state["updates"] = step.into();
    state["best"] = serde_json::Value::Null;
    let state = serde_json::to_vec(&state).unwrap();
    let mut manifest = json(&new.join("MANIFEST.json"));
    manifest["step"] = step.into();
    let hash = blake3::hash(&state).to_hex().to_string();
    manifest["files"]["state.json"]["bytes"] = state.len().into();
    manifest["files"]["state.json"]["parts"][0]["bytes"] = state.len().into();
    manifest["files"]["state.json"]["parts"][0]["blake3"] = hash.into();
    manifest["seal"] = "".into();
    let seal = blake3::hash(&serde_json::to_vec(&manifest).unwrap());
    manifest["seal"] = seal.to_hex().to_string().into();
    fs::write(new.join("state.json"), state).unwrap();
    fs::write(new.join("MANIFEST.json"), serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
}

#[test]
fn a_run_goes_on_past_two_to_the_32_steps_with_the_same_bits_however_it_is_cut() {
    /// The last end of an epoch of 6 steps below 2^32.
    const START: u64 = (1 << 32) - 4;
    let total = format!("train.steps={}", START + 12);
    let part = format!("train.steps={}", START + 6);
    let text = BASE.replace("epochs = 2", "steps = 6") + "\n[checkpoint]\nevery = \"3 steps\"\n";
    let text = text.replace("hidden = [16]", "hidden = [16]\ndropout = 0.5");
    let [whole, cut] = [&[&total][..], &[&part, &total]].map(|lengths| {
        let lab =
            Lab::with(&text.replace("[checkpoint]", "[checkpoint]\nkeep_last = 1\nkeep_best = 0"));
        lab.run_to(0, &["small.toml"]);
        age(&lab, START);
        for (attempt, length) in lengths.iter().enumerate() {
            let devices = format!("distributed.devices={}", 3 - lengths.len() + attempt);
            let ended = lab.run_to(0, &["resume", length, &devices]);
            ended.says(&[&format!("resumed after step {}", START + 6 * attempt as u64)]);
        }
        assert_eq!(lab.last_step(), START + 12);
        assert!(lab.checkpoints().join(format!("step-{}", START + 12)).exists());
        must_be_whole(&lab);
        lab.is_clean();
        bits(&lab)
    });
    cut.must_be(&whole);
}
