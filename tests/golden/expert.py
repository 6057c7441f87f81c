"""Writes tests/golden/expert.npz: three episodes of four steps with the arrays, types and order of an expert data set of
stable-baselines, as numpy 2 writes them, compressed or not (`expert_compressed.npz`).

    python tests/golden/expert.py
"""

import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
EPISODES, STEPS = 3, 4

step = np.arange(EPISODES * STEPS)
arrays = {
    "actions": (step[:, None] / 10 - 0.5).astype(np.float32),
    "obs": np.stack([np.cos(step), np.sin(step), step - 6], axis=1).astype(np.float32),
    "rewards": -np.abs(step - 5).astype(np.float32),
    "episode_returns": np.array([-14.0, -6.0, -18.0]),
    "episode_starts": step % STEPS == 0,
}
np.savez(HERE / "expert.npz", **arrays)
np.savez_compressed(HERE / "expert_compressed.npz", **arrays)
