"""Writes tests/golden/trajectories/*.parquet: the two episodes of crates/trajectories/src/windows/tests.rs as pyarrow 26 writes the
columns of LeRobot's data sets, with Pillow's images. Run in the project's folder: python tests/golden/trajectories.py"""

import io

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

STEPS = range(9)
EPISODE = [0 if step < 5 else 1 for step in STEPS]
STATE = [[step, 1.0] for step in STEPS]
ACTION = [[10.0 * step] for step in STEPS]


def table(state, action):
    return pa.table({
        "observation.state": pa.array(STATE, state),
        "action": pa.array(ACTION, action),
        "episode_index": pa.array(EPISODE, pa.int64()),
        "frame_index": pa.array([step % 5 for step in STEPS], pa.int64()),
        "timestamp": pa.array([step % 5 / 10 for step in STEPS], pa.float32()),
        "next.done": pa.array([step in (4, 8) for step in STEPS]),
        "task": pa.array(["push"] * len(STEPS)),
    })


def write(name, state, action, **options):
    pq.write_table(table(state, action), f"tests/golden/trajectories/{name}.parquet", store_schema=False, **options)


write("snappy", pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 1), compression="snappy")
write("zstd", pa.list_(pa.float64()), pa.list_(pa.float32()), compression="zstd", data_page_version="2.0",
      row_group_size=4)
write("plain", pa.list_(pa.float32()), pa.list_(pa.float64()), compression="none", use_dictionary=False)
write("gzip", pa.list_(pa.float32()), pa.list_(pa.float32()), compression="gzip")


def image(step, value):
    """As Hugging Face's `datasets` store one: its file's bytes, and a name."""
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (value, 0, 255)).save(file, "png")
    return {"bytes": file.getvalue(), "path": f"frame_{step:06d}.png"}


stored = pa.struct({"bytes": pa.binary(), "path": pa.string()})
top = [image(step, 10 * step) for step in STEPS]
images = table(pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 1))
images = images.append_column("observation.images.top", pa.array(top, stored))
absent = [None if step == 3 else image(step, 1) for step in STEPS]
images = images.append_column("observation.images.torn", pa.array(absent, stored))
pq.write_table(images, "tests/golden/trajectories/images.parquet", store_schema=False, compression="snappy",
               row_group_size=5)

# Four episodes that are long enough for a policy, as LeRobot names them.
long = [(episode, frame) for episode in range(4) for frame in range(24)]
pq.write_table(pa.table({
    "observation.state": pa.array([[frame, episode] for episode, frame in long], pa.list_(pa.float32(), 2)),
    "action": pa.array([[10.0 * frame] for _, frame in long], pa.list_(pa.float32(), 1)),
    "episode_index": pa.array([episode for episode, _ in long], pa.int64()),
    "frame_index": pa.array([frame for _, frame in long], pa.int64()),
}), "tests/golden/trajectories/long.parquet", store_schema=False, compression="snappy")
