//! Keys that name files and folders: no URL is taken for a path.

use super::*;
use crate::config::clusters;

const URL: &str = "is a URL, but must be a path";

/// Formats of keys whose values are paths.
fn is_path(schema: &serde_json::Value) -> bool {
    ["path", "output-path", "remote-path"].iter().any(|format| schema["format"] == *format)
}

#[test]
fn options_that_are_called_like_files_are_known_as_paths() {
    let ends =
        ["dir", "_file", "file", "manifest", "tokenizer", "chat_template", "program", "folder"];
    let mut checked = 0;
    for family in Kinds::default().families() {
        for kind in &family.kinds {
            for key in kind.keys.iter().filter(|key| ends.iter().any(|end| key.name.ends_with(end)))
            {
                assert!(is_path(&key.schema), "{}.{} of `{}`", family.table, key.name, kind.name);
                checked += 1;
            }
        }
    }
    assert!(checked > 35, "{checked}");
}

#[test]
fn a_url_is_refused_by_every_key_that_names_a_file() {
    let mut tried = 0;
    for family in Kinds::default().families().iter().filter(|family| family.table == "data") {
        for kind in &family.kinds {
            for key in kind.keys.iter().filter(|key| is_path(&key.schema)) {
                let (name, option) = (kind.name, &key.name);
                let word = format!("data={{name={name}, {option}=\"s3://bucket/x.csv\"}}");
                let problems = read(GOOD, &[&word]).unwrap_err();
                let key = format!("data.{option}");
                let found = problems.iter().find(|it| it.key() == key && it.what() == URL);
                let found = found.unwrap_or_else(|| panic!("{name}: {problems}"));
                assert!(found.line().is_some(), "{name} {option}: no line");
                let remedy = found.remedy().unwrap();
                assert!(remedy.contains("aws s3 cp"), "{name} {option}: {remedy}");
                tried += 1;
            }
        }
    }
    assert!(tried > 30, "{tried}");
    for key in ["model.pretrained", "checkpoint.dir", "logging.dir"] {
        for url in ["s3://bucket/a", "gs://bucket/a", "https://x.org/a", "file:///a"] {
            let problems = told(GOOD, &[&format!("{key}={url}")]);
            assert_eq!(problems, [format!("`{key}`: {URL}")], "{url}");
        }
    }
    let problems = told(GOOD, &["model={name=llama, lora={adapters=\"s3://org/a\"}}"]);
    assert!(problems.contains(&format!("`model.lora.adapters`: {URL}")), "{problems:?}");
    assert_eq!(
        told(&format!("extends = 'gs://b/x.toml'\n{GOOD}"), &[]),
        [format!("`extends`: {URL}")]
    );
    // A name on the hub can be read, and not be written to.
    good(GOOD, &["model.pretrained=hf:org/a", "data.train_dir=hf://org/a"]);
    let written = told(
        GOOD,
        &["checkpoint.dir=hf:org/a", "logging.sinks=[{name=tensorboard, dir=\"hf:a/b\"}]"],
    );
    assert!(
        written.len() == 2 && written.iter().all(|it| it.contains("nothing is written to")),
        "{written:?}"
    );
    // A path may hold a colon, and the name of a run.
    good(GOOD, &["model.pretrained=run:x/best", "logging.dir=a:b"]);
}

#[test]
fn a_url_in_a_sweep_or_a_cluster_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        crate::files::write_atomic(&path, text.as_bytes()).unwrap();
        path
    };
    let sweep = |base: &str, values: &str| {
        let text = format!(
            "schema = 1\nbase = \"{base}\"\n[sweep]\nmethod = \"grid\"\n[sweep.parameters]\n\
             \"data.train_dir\" = {values}\n"
        );
        let path = write("sweep.toml", &text);
        let problems = crate::config::sweep::load(&path, &[], vocabulary()).unwrap_err();
        problems.page(false, 80)
    };
    write("exp.toml", GOOD);
    let page = sweep("s3://bucket/exp.toml", "[\"a\"]");
    assert!(page.contains(&format!("`base`: {URL}")), "{page}");
    let page = sweep("exp.toml", "[\"a\", \"s3://bucket/b\"]");
    assert!(page.contains(URL) && page.contains("s3://bucket/b"), "{page}");
    let file = write(
        "ddprun.toml",
        "[cluster.lab]\nkind = \"ssh\"\nhost = \"gpu\"\nfolder = \"s3://bucket/project\"\n",
    );
    let error = clusters::load(&[file], "lab", vocabulary()).unwrap_err();
    let clusters::ClusterError::Problems(problems) = error else { panic!("{error}") };
    assert!(problems.page(false, 80).contains(URL), "{problems}");
}

#[test]
fn files_that_are_missing_are_named_beside_other_problems() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("exp.toml");
    let text = with("epochs = 50", "epohcs = 50") + "[experiment]\ntags = [\"-\"]\n";
    crate::files::write_atomic(&path, text.as_bytes()).unwrap();
    let problems = load(&path, &[], vocabulary()).unwrap_err();
    let keys: Vec<&str> = problems.iter().map(crate::config::Problem::key).collect();
    for key in ["train.epohcs", "experiment.tags[0]", "data.train_dir", "data.val_dir"] {
        assert!(keys.contains(&key), "{keys:?}");
    }
    // What a run has stored may be on another machine.
    assert_eq!(told(&with("epochs = 50", "epohcs = 50"), &[]).len(), 1);
}

#[test]
fn a_misspelt_key_has_no_other_problem_and_the_stages_of_zero_are_numbers() {
    let mlp = with("name = \"resnet18\"", "name = \"mlp\"");
    for word in ["model.widht=64", "model.widths=[64]", "model.layerz=3"] {
        let problems = told(&mlp, &[word]);
        assert_eq!(problems.len(), 1, "{problems:?}");
    }
    let problems = read(&mlp, &["model.widht=64"]).unwrap_err();
    let remedy = problems.iter().find_map(|problem| problem.remedy().map(str::to_owned)).unwrap();
    assert!(remedy.contains("one of the keys of `mlp`") && remedy.contains("`hidden`"), "{remedy}");

    for stage in 0..3 {
        let loaded = good(GOOD, &[&format!("distributed.zero_stage={stage}")]);
        assert_eq!(loaded.experiment.distributed.zero_stage.number(), stage);
        assert!(resolved(&loaded.experiment).unwrap().contains(&format!("zero_stage = {stage}\n")));
    }
    let stages = "0 (plain DDP), 1 (optimizer state in parts) or 2 (gradients too)";
    for (value, found) in [("3", "3"), ("optimizer", "`\"optimizer\"`"), ("-1", "-1")] {
        let problems = told(GOOD, &[&format!("distributed.zero_stage={value}")]);
        let said = format!("`distributed.zero_stage`: must be {stages}, not {found}");
        assert_eq!(problems, [said]);
    }
    let problems = read(&(GOOD.to_owned() + "[distributed]\nshard = 1\n"), &[]).unwrap_err();
    let remedy = problems.iter().find_map(|problem| problem.remedy().map(str::to_owned)).unwrap();
    assert!(remedy.starts_with("did you mean `zero_stage`"), "{remedy}");
}

#[test]
fn an_unknown_model_is_answered_with_those_for_the_data() {
    let problems = read(GOOD, &["model.name=banana"]).unwrap_err();
    let remedy = problems.iter().find_map(|problem| problem.remedy().map(str::to_owned)).unwrap();
    assert!(remedy.contains("resnet18") && !remedy.contains("gpt"), "{remedy}");
}

#[test]
fn a_kind_with_the_name_of_another_is_reported() {
    let mut kinds = Kinds::default();
    assert_eq!(kinds.taken(), Vec::<String>::new());
    kinds.models.add::<crate::model::MlpConfig>();
    kinds.metrics.add(crate::metric::Accuracy);
    assert_eq!(kinds.taken(), ["model `mlp`", "metric `accuracy`"]);
}
