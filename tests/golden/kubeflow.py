"""Writes kubeflow.json: what the CRDs of Kubeflow Trainer 2.3.0 say of the parts of a TrainJob and of a
ClusterTrainingRuntime that ddprun and docs/clusters.md write, as JSON schemas that refuse unknown keys.

    git clone --branch v2.3.0 https://github.com/kubeflow/trainer
    python tests/golden/kubeflow.py trainer        # PyYAML 6.0
"""

import json
import sys
from pathlib import Path

import yaml

CRDS = Path(sys.argv[1]) / "manifests/base/crds"
JOB_POD = "spec.runtimePatches.[].trainingRuntimeSpec.template.spec.replicatedJobs.[].template.spec.template.spec"
RUNTIME_POD = "spec.template.spec.replicatedJobs.[].template.spec.template.spec"
VOLUMES = ["name", "configMap", "secret", "persistentVolumeClaim"]
# Of these objects only these keys are kept: the others are long, and not written.
KEPT = {
    "TrainJob": {
        "": ["apiVersion", "kind", "metadata", "spec"],
        "spec": ["runtimeRef", "trainer", "runtimePatches"],
        JOB_POD: ["containers", "volumes", "nodeSelector", "terminationGracePeriodSeconds"],
        f"{JOB_POD}.containers.[]": ["name", "volumeMounts", "env"],
        f"{JOB_POD}.volumes.[]": VOLUMES,
    },
    "ClusterTrainingRuntime": {
        "spec.template.spec": ["failurePolicy", "replicatedJobs"],
        RUNTIME_POD: ["containers", "restartPolicy", "volumes", "nodeSelector"],
        f"{RUNTIME_POD}.containers.[]": ["name", "image", "command"],
        f"{RUNTIME_POD}.volumes.[]": VOLUMES,
    },
}


def schema(value):
    """A JSON schema: without prose and Kubernetes' own words, and closed to unknown keys, as the API server is when it is
    asked to be strict."""
    if isinstance(value, list):
        return [schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, inner in value.items():
        if key == "properties":
            kept[key] = {name: schema(property) for name, property in inner.items()}
        elif key not in ("description", "default", "format") and not key.startswith("x-"):
            kept[key] = schema(inner)
    if "properties" in kept:
        kept.setdefault("additionalProperties", False)
    return kept


def below(value, path):
    for name in filter(None, path.split(".")):
        value = value["items"] if name == "[]" else value["properties"][name]
    return value


def read(kind, keys):
    text = (CRDS / f"trainer.kubeflow.org_{kind.lower()}s.yaml").read_text()
    whole = schema(yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    for path, names in keys.items():
        properties = below(whole, path)["properties"]
        below(whole, path)["properties"] = {name: properties[name] for name in names}
    return whole


lines = [f'"{kind}": {json.dumps(read(kind, keys))}' for kind, keys in KEPT.items()]
Path(__file__).with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
