//! Manifests: as they are, and as Kubernetes publishes its schemas.

use test_support::skipped::skipped;

use super::*;

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
        grace: grace(),
        max_restarts: 3,
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
    let place = Place { id: "x".to_owned(), folder: "/x".into(), workers: Some(3) };
    let Output::Call(call) = kubernetes().output(&place, true) else { unreachable!() };
    let args: Vec<_> = call.args.iter().map(|arg| arg.to_string_lossy()).collect();
    let logs = "logs --selector=batch.kubernetes.io/job-name=x --tail=-1 --prefix \
                --max-log-requests=3 --follow";
    assert_eq!(args.join(" "), format!("--namespace=training {logs}"));
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
}

#[test]
fn names_are_dns_labels_with_room_for_the_number_of_a_pod() {
    let of = |name: &str| name_of(&Job { name: name.to_owned(), ..Job::example() });
    assert_eq!(of("ResNet18_animals.v2"), "resnet18-animals-v2-20261125-1200-3f9a");
    assert_eq!(of("18"), "run-18-20261125-1200-3f9a");
    assert_eq!(of("___"), "run-20261125-1200-3f9a");
    assert!(of(&"a".repeat(128)).len() + "-63".len() <= 63);
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
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let check = "import sys, yaml, kubernetes_validate as k
for x in yaml.safe_load_all(sys.stdin):
    k.validate(x, k.latest_version(), strict=True)
    print(x['kind'])";
    let call = |input: String| {
        let program = python.to_string_lossy();
        Call::new(&program, ["-c", check]).reading(input).run()
    };
    let printed = match call(kubernetes().script(&Job::example())) {
        Err(error) if error.to_string().contains("No module named") => {
            return skipped("no Python with `kubernetes-validate`");
        }
        printed => printed.unwrap(),
    };
    assert_eq!(printed, "ConfigMap\nService\nJob\n");
    assert_eq!(call(alone().script(&Job::example())).unwrap(), "ConfigMap\nJob\n");
    assert_eq!(call(kubernetes().script(&Job::example_sweep())).unwrap(), "Job\n");
    let broken = kubernetes().script(&Job::example()).replace("completions: 2", "completions: x");
    assert!(call(broken).is_err(), "a wrong manifest is refused");
}
