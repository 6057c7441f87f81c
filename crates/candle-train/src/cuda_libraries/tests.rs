use std::fs;

use super::*;

/// A folder like `/`, with these files in it, none of which is a library.
fn tree(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::File::create(path).unwrap();
    }
    root
}

fn surroundings(root: &Path) -> SearchEnvironment {
    let python = vec![root.join("venv"), root.join("conda")];
    SearchEnvironment {
        python,
        toolkits: vec![root.join("toolkit")],
        system: root.join("usr/local"),
    }
}

#[test]
fn wheels_come_before_toolkits_and_newer_toolkits_before_older_ones() {
    let root = tree(&[
        "venv/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
        "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublas.so.13",
        "conda/lib/libnccl.so.2",
        "toolkit/lib64/libcublas.so.13",
        "usr/local/cuda-12.8/lib64/libcublas.so.12",
        "usr/local/cuda-13.0/lib64/libcublas.so.13",
    ]);
    let found = surroundings(root.path()).folders();
    let below = found.iter().filter_map(|folder| folder.strip_prefix(root.path()).ok());
    let below: Vec<&str> = below.map(|folder| folder.to_str().unwrap()).collect();
    let wheels = "venv/lib/python3.12/site-packages/nvidia";
    assert_eq!(
        below,
        [
            format!("{wheels}/cu13/lib").as_str(),
            format!("{wheels}/cudnn/lib").as_str(),
            "venv/lib",
            "conda/lib",
            "toolkit/lib64",
            "usr/local/cuda-13.0/lib64",
            "usr/local/cuda-12.8/lib64",
        ]
    );
}

#[test]
fn an_older_version_is_looked_for_only_where_a_newer_one_is_nowhere() {
    let root = tree(&["venv/lib/libcublas.so.13", "usr/local/lib/libcublas.so.12"]);
    let folders = surroundings(root.path()).folders();
    let order = |file| search::candidates(file, &folders);
    let wheel = root.path().join("venv/lib/libcublas.so.13");
    assert_eq!(order("libcublas.so.13"), [PathBuf::from("libcublas.so.13"), wheel]);
    assert_eq!(order("libcublas.so.12").len(), 2);
}

#[test]
fn the_environment_of_the_python_on_the_path_is_searched() {
    let root = tree(&["env/bin/python3", "other/bin/ls"]);
    let bins = ["other/bin", "env/bin", "absent"].map(|bin| root.path().join(bin));
    let path = std::env::join_paths(bins).unwrap();
    assert_eq!(search::prefixes_of_python(&path), [root.path().join("env")]);
}

#[test]
fn a_library_that_is_missing_or_damaged_is_named_with_where_it_was_looked_for_and_its_source() {
    static NOWHERE: Library = library(
        "nowhere",
        &[("libnowhere.so.2", CUDA_13), ("libnowhere.so.1", 0)],
        "ask",
        code::<7>,
    );
    let root = tree(&["usr/local/lib/libnowhere.so.1"]);
    let folders = surroundings(root.path()).folders();
    let why = NOWHERE.open_one_of(&["libnowhere.so.2"], &folders).err().unwrap();
    assert!(why.starts_with("libnowhere.so.2 not found in LD_LIBRARY_PATH"), "{why}");
    assert!(why.contains("usr/local/lib") && why.ends_with("; ask"), "{why}");
    let why = NOWHERE.open_one_of(&["libnowhere.so.2", "libnowhere.so.1"], &folders).err().unwrap();
    assert!(why.contains("cannot be opened") && why.contains("libnowhere.so.1"), "{why}");
}

#[test]
fn a_function_of_a_missing_library_answers_with_an_error() {
    static MISSING: Library = library("gone", &[("libgone.so.1", 0)], "", code::<100>);
    static FUNCTION: Function =
        Function { at: AtomicUsize::new(0), library: &MISSING, name: c"goneInit" };
    let at = resolve(&FUNCTION);
    assert_eq!(FUNCTION.at.load(Ordering::Relaxed), at);
    // SAFETY: without the library this is the function that answers with its code, whatever it is
    // given.
    let answer = unsafe { std::mem::transmute::<usize, extern "C" fn() -> c_int>(at) };
    assert_eq!(answer(), 100);
}

/// The path of a call: from cudarc's declaration over the function of this program to the library.
#[test]
fn calls_reach_the_libraries_that_are_installed() {
    println!("driver: {:?}, NCCL: {:?}", driver(), check_nccl());
    for library in NEEDED {
        println!("{}: {:?}", library.name, library.open().map(|opened| &opened.file));
    }
    let found = opened();
    let is_there = |name: &str| {
        let is_there = found.iter().any(|(library, _)| *library == name);
        if !is_there {
            println!("SKIPPED: {name} is not installed");
        }
        is_there
    };
    if is_there("nvrtc") {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for one number each.
        let answer = unsafe { cudarc::nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        println!("nvrtc {major}.{minor}: {answer:?}");
        assert!(major >= 12);
        let kernel = "extern \"C\" __global__ void nothing() {}";
        let made = cudarc::nvrtc::compile_ptx(kernel).unwrap().to_src();
        assert!(made.contains(".visible .entry nothing("), "{made}");
    }
    if is_there("cudnn") {
        let version = cudarc::cudnn::result::get_version();
        println!("cuDNN {version}");
        assert!(version >= 90_000);
    }
    if is_there("nccl") {
        let version = cudarc::nccl::result::get_nccl_version().unwrap();
        println!("NCCL {version}");
        assert!(version >= 20_000);
    }
    if !is_there("cuda") {
        let refused = cudarc::driver::result::init().unwrap_err();
        println!("cuInit: {refused:?}");
        assert_eq!(refused.0, cudarc::driver::sys::CUresult::CUDA_ERROR_NO_DEVICE);
    }
}

#[test]
fn a_driver_that_is_older_than_the_compiler_of_the_kernels_is_refused() {
    for (driver, nvcc) in [(13000, Some("13.0")), (13010, Some("12.8")), (12040, None)] {
        assert_eq!(check_driver(driver, nvcc), Ok(()));
    }
    let refused = check_driver(12080, Some("13.0")).unwrap_err();
    assert!(refused.starts_with("the driver supports CUDA 12.8, but"), "{refused}");
    assert!(refused.contains("with CUDA 13.0") && refused.contains("12.8 or older"), "{refused}");
}
