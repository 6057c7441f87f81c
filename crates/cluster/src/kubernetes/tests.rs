//! Manifests: as they are, and as Kubernetes publishes its schemas.

use test_support::skipped::python;

use super::*;
use crate::LongestSave;

fn kubernetes() -> Kubernetes {
    Kubernetes {
        image: "registry.example.com/ddprun:0.1".to_owned(),
        context: None,
        namespace: Some("training".to_owned()),
        nodes: 2,
        ranks_per_node: None,
        gpus_per_node: 4,
        cpus_per_node: Some(16),
        memory: Some(Size(64 << 30)),
        volumes: BTreeMap::from([("project-claim".to_owned(), "/project".to_owned())]),
        folder: "/project".to_owned(),
        program: ddprun(),
        token_secret: Some("ddprun-token".to_owned()),
        node_selector: BTreeMap::from([("gpu".to_owned(), "a100".to_owned())]),
        grace: None,
        max_restarts: None,
        training_runtime: None,
        environment: BTreeMap::from([("HF_HOME".to_owned(), "/project/hf".to_owned())]),
    }
}

fn alone() -> Kubernetes {
    Kubernetes {
        nodes: 1,
        gpus_per_node: 0,
        cpus_per_node: None,
        memory: None,
        token_secret: None,
        node_selector: BTreeMap::new(),
        ..kubernetes()
    }
}

#[test]
fn several_pods_meet_by_a_headless_service_with_a_token() {
    insta::assert_snapshot!(kubernetes().script(&Job::example()));
}

#[test]
fn one_pod_needs_neither() {
    insta::assert_snapshot!(alone().script(&Job::example()));
    assert_eq!(alone().check(), []);
}

#[test]
fn workers_of_a_sweep_are_pods_that_read_its_file_on_a_volume() {
    insta::assert_snapshot!(kubernetes().script(&Job::example_sweep()));
    let place = JobHandle { id: "x".to_owned(), folder: "/x".into(), workers: Some(3) };
    let Output::Call(call) = kubernetes().output(&place, true) else { unreachable!() };
    let args: Vec<_> = call.args.iter().map(|arg| arg.to_string_lossy()).collect();
    let logs = "logs --selector=batch.kubernetes.io/job-name=x --tail=-1 --prefix \
                --max-log-requests=3 --follow";
    assert_eq!(args.join(" "), format!("--namespace=training {logs}"));
}

fn of_kubeflow() -> Kubernetes {
    Kubernetes { training_runtime: Some("ddprun".to_owned()), ..kubernetes() }
}

#[test]
fn a_train_job_numbers_its_pods_by_the_variables_of_its_runtime() {
    assert_eq!(of_kubeflow().check(), []);
    insta::assert_snapshot!(of_kubeflow().script(&Job::example()));
}

#[test]
fn workers_of_a_sweep_take_the_pods_of_a_train_job_for_no_machines_of_one_run() {
    insta::assert_snapshot!(of_kubeflow().script(&Job::example_sweep()));
    let calls = [
        of_kubeflow().list(&[]),
        of_kubeflow().cancel(&JobHandle { id: "x".to_owned(), folder: "/x".into(), workers: None }),
    ];
    let words = |call: &Call| call.args.iter().any(|arg| arg == "trainjobs.trainer.kubeflow.org");
    assert!(calls.iter().all(words), "{calls:?}");
}

/// `kubeflow.json` was made from the CRDs by the program beside it.
#[test]
fn train_jobs_and_the_runtime_of_the_docs_fit_the_crds_of_kubeflow_trainer() {
    let crds = include_str!("../../../../tests/golden/kubeflow.json");
    let crds: Value = serde_json::from_str(crds).unwrap();
    let errors = |object: &Value| -> Vec<String> {
        let kind = object["kind"].as_str().unwrap();
        let schema = jsonschema::validator_for(&crds[kind]).unwrap();
        schema.iter_errors(object).map(|it| format!("{}: {it}", it.instance_path())).collect()
    };
    let alone = Kubernetes { training_runtime: Some("x".to_owned()), ..alone() };
    for job in [Job::example(), Job::example_sweep()] {
        for kind in [of_kubeflow(), alone.clone()] {
            assert_eq!(errors(kind.objects(&job).last().unwrap()), [""; 0], "{kind:?} {job:?}");
        }
    }
    let mut wrong = of_kubeflow().objects(&Job::example()).remove(1);
    wrong["spec"]["trainer"]["nodes"] = 2.into();
    assert_eq!(errors(&wrong).len(), 1, "{:?}", errors(&wrong));
    assert_eq!(errors(&runtime()), [""; 0]);
    let page = include_str!("../../../../docs/clusters.md");
    let shown = documents(&[runtime()]);
    assert!(page.contains(&shown), "docs/clusters.md has no\n{shown}");
}

/// The training runtime that does to a pod what an Indexed Job does.
fn runtime() -> Value {
    let node = json!([{"name": "node", "image": "ddprun"}]);
    let pod = json!({"restartPolicy": "Never", "containers": node});
    let label = json!({"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"});
    let policy = failure_policy("node");
    let job = json!({"backoffLimit": 3, "podFailurePolicy": policy, "template": {"spec": pod}});
    let job = json!({"metadata": {"labels": label}, "spec": job});
    let jobs = json!({"replicatedJobs": [{"name": "node", "template": job}]});
    let policy = json!({"numNodes": 1, "torch": {}});
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "ddprun"},
        "spec": {"mlPolicy": policy, "template": {"spec": jobs}},
    })
}

/// The command of a pod of a `TrainJob` is run, with the variables of its runtime.
#[test]
fn the_command_of_a_train_job_gives_ddprun_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let run = |job: &Job| {
        let kind = Kubernetes {
            program: "echo".to_owned(),
            folder: folder.path().display().to_string(),
            ..of_kubeflow()
        };
        let made = kind.objects(job).pop().unwrap();
        let words = made["spec"]["trainer"]["command"].as_array().unwrap();
        let words = words.iter().map(|word| word.as_str().unwrap());
        let place = ["PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_ADDR=h", "PET_MASTER_PORT=7"];
        Call::new("env", place.into_iter().chain(words)).run().unwrap()
    };
    let place = "--nnodes 2 --node-rank 1 --master-addr h --master-port 7";
    let expected = format!("/ddprun/experiment.toml {place} --token-file /ddprun-token/token\n");
    assert_eq!(run(&Job::example()), expected);
    let worker = "sweep experiments/tune.toml optimizer.lr=choice(0.1, 0.01) --share\n";
    assert_eq!(run(&Job::example_sweep()), worker);
}

#[test]
fn a_runtime_that_the_cluster_lacks_is_named_with_those_that_it_has() {
    assert_eq!(kubernetes().question(), None);
    assert!(of_kubeflow().question().is_some());
    assert_eq!(of_kubeflow().objection("torch-distributed ddprun"), None);
    let what = "the cluster has no `ddprun`; its runtimes: a, b".to_owned();
    assert_eq!(of_kubeflow().objection("a b"), Some(("training_runtime", what)));
}

#[test]
fn a_pod_has_as_long_to_save_as_the_saves_of_an_earlier_run_need() {
    let longest_save = Some(LongestSave { seconds: 100.0, run: "r".to_owned() });
    let job = Job { longest_save, ..Job::example() };
    for kind in [kubernetes(), of_kubeflow()] {
        let script = kind.script(&job);
        assert!(script.contains("terminationGracePeriodSeconds: 360\n"), "{script}");
        let note = kind.save_time(&job).unwrap().message.unwrap();
        assert_eq!(note, "grace = 6m: a save of run r took 100.0 s");
    }
}

#[test]
fn what_kubernetes_would_refuse_is_wrong_before() {
    let wrong = Kubernetes {
        image: String::new(),
        token_secret: None,
        folder: "project".to_owned(),
        volumes: BTreeMap::from([("Claim".to_owned(), "project".to_owned())]),
        ..kubernetes()
    };
    let keys: Vec<&str> = wrong.check().into_iter().map(|wrong| wrong.key).collect();
    assert_eq!(keys, ["token_secret", "image", "folder", "volumes", "volumes"]);
    let lost = Kubernetes { volumes: BTreeMap::new(), ..alone() };
    assert_eq!(lost.check()[0].key, "volumes");
    let of_runtime = Kubernetes { volumes: BTreeMap::new(), ..of_kubeflow() };
    assert_eq!(of_runtime.check(), [], "the runtime may have volumes");
    let twice = Kubernetes { max_restarts: Some(1), ..of_kubeflow() };
    assert_eq!(twice.check()[0].key, "max_restarts");
}

#[test]
fn names_are_dns_labels_with_room_for_the_number_of_a_pod() {
    let of = |name: &str| name_of(&Job { name: name.to_owned(), ..Job::example() });
    assert_eq!(of("ResNet18_animals.v2"), "resnet18-animals-20261125-1200-3f9a");
    assert_eq!(of("18"), "run-18-20261125-1200-3f9a");
    assert_eq!(of("___"), "run-20261125-1200-3f9a");
    let longest = Job { key: "20261125-120000-3f9a01c4".to_owned(), ..Job::example() };
    for name in ["a", "1"].map(|name| name.repeat(128)) {
        let name = name_of(&Job { name, ..longest.clone() });
        assert!(name.len() + "-node-0-1023-abcde".len() <= 63, "{name}");
    }
}

#[test]
fn states_are_read_from_conditions() {
    let answer = "a|2|\nb||Complete SuccessCriteriaMet\nc||FailureTarget Failed\nd||\n";
    let words: Vec<_> = kubernetes()
        .states(answer)
        .into_iter()
        .map(|(name, state)| format!("{name} {} {}", state.word, state.is_over))
        .collect();
    assert_eq!(words, ["a Active false", "b Complete true", "c Failed true", "d Pending false"]);
}

/// Python's `kubernetes-validate` knows the schemas that Kubernetes publishes.
#[test]
fn manifests_fit_the_published_schemas() {
    let Some(python) = python("yaml, kubernetes_validate") else { return };
    let check = "import sys, yaml, kubernetes_validate as k
for x in yaml.safe_load_all(sys.stdin):
    k.validate(x, k.latest_version(), strict=True)
    print(x['kind'])";
    let call = |input: String| Call::new(&python, ["-c", check]).reading(input).run();
    let printed = call(kubernetes().script(&Job::example())).unwrap();
    assert_eq!(printed, "ConfigMap\nService\nJob\n");
    assert_eq!(call(alone().script(&Job::example())).unwrap(), "ConfigMap\nJob\n");
    assert_eq!(call(kubernetes().script(&Job::example_sweep())).unwrap(), "Job\n");
    let broken = kubernetes().script(&Job::example()).replace("completions: 2", "completions: x");
    assert!(call(broken).is_err(), "a wrong manifest is refused");
}
