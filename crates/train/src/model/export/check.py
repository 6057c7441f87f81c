"""Runs the models of `cases.json` by onnxruntime; prints what differs from what is expected."""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime

folder = pathlib.Path(sys.argv[1])
failed = False
for case in json.loads((folder / "cases.json").read_text()):
    path = str(folder / case["file"])
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for run in case["runs"]:
        feeds = {
            feed["name"]: np.array(feed["values"], feed["dtype"]).reshape(feed["shape"]) for feed in run["feeds"]
        }
        (output,) = session.run(["output"], feeds)
        expected = np.array(run["expected"], np.float32).reshape(run["shape"])
        if output.shape != expected.shape:
            print(f"{case['file']}: {output.shape} instead of {expected.shape}")
            failed = True
            continue
        error = np.abs(output - expected).max() / max(np.abs(expected).max(), 1e-3)
        print(f"{case['file']} {expected.shape}: {error:.1e}")
        if not error < 1e-4:
            print(f"{case['file']} differs")
            failed = True
sys.exit(failed)
