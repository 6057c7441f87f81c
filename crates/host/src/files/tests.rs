use std::os::unix::fs::PermissionsExt;

use test_support::assert_refused;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs `body` without root's right to write everywhere.
fn as_nobody<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    let nobody = rustix::process::Uid::from_raw(65534);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                rustix::thread::set_thread_res_uid(None, Some(nobody), None).unwrap();
            }
            body()
        });
        thread.join().unwrap()
    })
}

fn with_mode(folder: &Path, mode: u32) {
    fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_written_file_replaces_the_old_one_and_leaves_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.json");
    write_atomic(&path, b"old").unwrap();
    write_atomic(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names(folder.path()), ["history.json"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o133, 0);
}

#[test]
fn a_failed_rename_leaves_the_old_content_and_no_temporary() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("taken");
    fs::create_dir_all(path.join("by a folder")).unwrap();
    let error = write_atomic(&path, b"new").unwrap_err();
    assert_eq!(error.to_string(), format!("cannot rename to `{}`", path.display()));
    assert_eq!(names(folder.path()), ["taken"]);
}

#[test]
fn a_read_only_folder_is_found_by_the_probe_and_named() {
    let folder = tempfile::tempdir().unwrap();
    with_mode(folder.path(), 0o555);
    let (probed, written) = as_nobody(|| {
        let probed = create_writable_folder(folder.path()).unwrap_err();
        (probed, write_atomic(&folder.path().join("a"), b"x").unwrap_err())
    });
    with_mode(folder.path(), 0o755);
    assert_eq!(
        probed.to_string(),
        format!("cannot write into the folder `{}`", folder.path().display())
    );
    for error in [probed, written] {
        assert!(!error.is_out_of_space());
        let Error::Io { reason, .. } = error else { panic!("{error}") };
        assert_eq!(reason.kind(), io::ErrorKind::PermissionDenied);
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_full_file_system_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let full = Error::io("write", &path)(io::Error::from_raw_os_error(libc::ENOSPC));
    assert!(full.is_out_of_space(), "{full:?}");
    assert!(full.help_or("choose another").starts_with("make room"));
    // A device is no log.
    let refused = LineFile::open(Path::new("/dev/full")).unwrap_err();
    assert!(refused.with_cause().ends_with("it is not a regular file"), "{refused:?}");
    assert!(!refused.is_out_of_space());
    assert_eq!(refused.help_or("choose another"), "choose another");
}

#[test]
fn a_copy_takes_the_place_of_the_one_before_it_and_a_failed_one_leaves_it() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["events.jsonl", "copy.jsonl"].map(|name| folder.path().join(name));
    for lines in ["one\n", "one\ntwo\n"] {
        write_atomic(&from, lines.as_bytes()).unwrap();
        copy_atomic(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), lines);
    }
    remove_file(&from).unwrap();
    assert!(copy_atomic(&from, &to).unwrap_err().with_cause().contains("No such file"));
    assert_eq!(fs::read_to_string(&to).unwrap(), "one\ntwo\n");
    assert_eq!(names(folder.path()), ["copy.jsonl"]);
}

#[test]
fn a_folder_appears_with_all_its_files_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step-00000010");
    let size = write_folder_atomic(&path, |dir| {
        assert!(!path.exists());
        create_folder(&dir.join("sub"))?;
        write_atomic(&dir.join("sub/model"), b"weights")?;
        Ok::<_, Error>(7)
    });
    assert_eq!(size.unwrap(), 7);
    assert_eq!(fs::read(path.join("sub/model")).unwrap(), b"weights");

    let failed = write_folder_atomic(&path, |dir| {
        write_atomic(&dir.join("model"), b"half")?;
        Err::<(), _>(Error::NotALink { path: dir.to_owned() })
    });
    assert!(matches!(failed, Err(Error::NotALink { .. })));
    assert_eq!(fs::read(path.join("sub/model")).unwrap(), b"weights");
    assert_eq!(names(folder.path()), ["step-00000010"]);
}

#[test]
fn a_folder_of_the_same_name_is_replaced_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step-00000010");
    for content in ["first", "second"] {
        write_folder_atomic(&path, |dir| write_atomic(&dir.join(content), b"")).unwrap();
    }
    assert_eq!(names(&path), ["second"]);
    assert_eq!(names(folder.path()), ["step-00000010"]);
}

#[test]
fn a_link_is_relative_and_moves_in_one_step() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("name/run");
    for step in ["step-1", "step-2"] {
        create_folder(&run.join(step)).unwrap();
        swap_link(&run.join("latest"), &run.join(step)).unwrap();
        swap_link(&folder.path().join("checkpoint_latest"), &run.join(step)).unwrap();
    }
    assert_eq!(fs::read_link(run.join("latest")).unwrap(), Path::new("step-2"));
    let from_above = fs::read_link(folder.path().join("checkpoint_latest")).unwrap();
    assert_eq!(from_above, Path::new("name/run/step-2"));
    swap_link(&run.join("up"), &folder.path().join("name")).unwrap();
    assert_eq!(fs::read_link(run.join("up")).unwrap(), Path::new("../../name"));
    assert_eq!(names(&run), ["latest", "step-1", "step-2", "up"]);
}

/// A folder with the file `content` in it.
fn filled(path: &Path, content: &[u8]) -> PathBuf {
    create_folder(path).unwrap();
    write_atomic(&path.join("file"), content).unwrap();
    path.to_owned()
}

#[test]
fn a_folder_is_replaced_where_two_cannot_be_exchanged() {
    for errno in [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP] {
        let folder = tempfile::tempdir().unwrap();
        let path = filled(&folder.path().join("step-00000010"), b"damaged");
        let new = filled(&folder.path().join(".step-00000010.1-0.ddprun-tmp"), b"whole");
        let refuse = |_: &Path, _: &Path| Err(io::Error::from_raw_os_error(errno));
        replace_filled(&new, &path, refuse).unwrap();
        assert_eq!(fs::read(path.join("file")).unwrap(), b"whole");
        assert_eq!(names(folder.path()), [".step-00000010.ddprun-old", "step-00000010"]);
        assert_eq!(remove_stale_temporaries(folder.path()).unwrap(), 1);
        assert_eq!(names(folder.path()), ["step-00000010"]);
    }
}

#[test]
fn another_error_of_an_exchange_is_told_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(&folder.path().join("step-00000010"), b"old");
    let new = filled(&folder.path().join("new"), b"new");
    let fail = |_: &Path, _: &Path| Err(io::Error::from_raw_os_error(libc::EIO));
    let error = replace_filled(&new, &path, fail).unwrap_err().to_string();
    assert_eq!(error, format!("cannot rename to `{}`", path.display()));
    assert_eq!(fs::read(path.join("file")).unwrap(), b"old");
}

#[test]
fn a_folder_that_made_way_for_one_that_never_came_has_its_name_again() {
    let folder = tempfile::tempdir().unwrap();
    filled(&folder.path().join(".step-00000010.ddprun-old"), b"old");
    filled(&folder.path().join(".step-00000010.1-0.ddprun-tmp"), b"new");
    assert_eq!(remove_stale_temporaries(folder.path()).unwrap(), 2);
    assert_eq!(names(folder.path()), ["step-00000010"]);
    assert_eq!(fs::read(folder.path().join("step-00000010/file")).unwrap(), b"old");
}

#[test]
fn what_once_made_way_is_no_obstacle_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = filled(&folder.path().join("step-00000010"), b"old");
    filled(&folder.path().join(".step-00000010.ddprun-old"), b"older");
    let new = filled(&folder.path().join("new"), b"new");
    let refuse = |_: &Path, _: &Path| Err(io::Error::from_raw_os_error(libc::EINVAL));
    replace_filled(&new, &path, refuse).unwrap();
    assert_eq!(fs::read(path.join("file")).unwrap(), b"new");
}

#[test]
fn a_users_file_with_the_name_of_a_link_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("latest");
    write_atomic(&link, b"precious").unwrap();
    let error = swap_link(&link, &folder.path().join("step-1")).unwrap_err();
    assert_eq!(error.to_string(), format!("`{}` exists and is not a link", link.display()));
    assert_eq!(fs::read(&link).unwrap(), b"precious");
}

#[test]
fn only_temporaries_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    create_folder(&at(".step-1.77-0.ddprun-tmp/sub")).unwrap();
    for name in [".history.json.77-1.ddprun-tmp", ".hidden", "a.ddprun-tmp", "kept"] {
        write_atomic(&at(name), b"").unwrap();
    }
    remove_temporaries_of(&at("history.json")).unwrap();
    assert!(
        !at(".history.json.77-1.ddprun-tmp").exists() && at(".step-1.77-0.ddprun-tmp").exists()
    );
    assert_eq!(remove_stale_temporaries(folder.path()).unwrap(), 1);
    assert_eq!(names(folder.path()), [".hidden", "a.ddprun-tmp", "kept"]);
}

#[test]
fn a_file_in_the_place_of_a_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    write_atomic(&file, b"").unwrap();
    let error = create_folder(&file.join("run")).unwrap_err();
    let expected = format!("cannot create the folder `{}`", file.join("run").display());
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_device_or_a_pipe_is_not_replaced_also_behind_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    for path in [&pipe, &link] {
        let error = write_atomic(path, b"x").unwrap_err();
        assert_eq!(error.to_string(), format!("cannot replace `{}`", path.display()));
        assert_refused(AtomicFile::create(path), "cannot replace");
    }
    assert_eq!(names(folder.path()), ["link", "pipe"]);
}
