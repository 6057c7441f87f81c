"""What a model that `ddprun checkpoint export` wrote as ONNX answers, by the files of the export alone:

    python preprocess.py EXPORT/model.onnx FILE

FILE is an image, a WAV recording, a text, or a CSV table. Each function below follows `preprocessing.json` literally
and gives the inputs of the model.
"""

import csv
import json
import math
import sys
import wave
from datetime import datetime
from pathlib import Path

import numpy as np


def image(told, file):
    from PIL import Image, ImageOps

    picture = Image.open(file)
    picture = ImageOps.exif_transpose(picture) if told["data"]["statistics"]["exif"] == "apply" else picture
    picture = picture.convert("RGB")
    for step in told["transforms"]:
        if step["name"] == "resize":
            (w, h), size = picture.size, step["size"]
            s = size if isinstance(size, int) else 0
            size = size if s == 0 else [s * h // w, s] if w <= h else [s, s * w // h]
            picture = picture.resize(size[::-1], Image.Resampling[step["interpolation"].upper()])
        elif step["name"] == "center_crop":
            h, w = step["size"] if isinstance(step["size"], list) else [step["size"]] * 2
            offset = lambda have, want: round((have - want) / 2) if have >= want else -((want - have) // 2)
            left, top = offset(picture.width, w), offset(picture.height, h)
            picture = picture.crop((left, top, left + w, top + h))
        elif step["name"] == "grayscale":
            picture = picture.convert("L")
        elif step["name"] == "normalize":
            values = np.asarray(picture, np.float32).reshape(picture.height, picture.width, -1) / told["image"]["divide_by"]
            values = (values - np.float32(step["mean"])) / np.float32(step["std"])
    return values.transpose(2, 0, 1)[None]


def table(told, file):
    found = told["data"]["statistics"]
    rows = []
    for row in csv.DictReader(open(file, newline="")):
        numbers, empty, categories = [], [], []
        for feature in found["fit"]["features"]:
            cell = row[feature["name"]].strip()
            cell = None if cell in found["empty_cells"] else cell
            (kind, fit), = feature["encoding"].items()
            if kind == "one_hot":
                categories += [float(category == (cell or "")) for category in fit]
                continue
            mean, std = fit["scale"]
            fill = mean if fit["fill"] is None else fit["fill"]
            numbers.append(((fill if cell is None else float(cell)) - mean) / std)
            empty += [float(cell is None)] if fit["indicator"] else []
        rows.append(numbers + empty + categories)
    return np.array(rows, np.float32)


def series(told, file):
    found, length = told["data"]["statistics"], told["input"]["shape"][0]
    rows = list(csv.reader(open(file, newline="")))
    names, rows = rows[0], rows[-length:]
    part = lambda date, of: {
        "minute": date.minute, "hour": date.hour, "day_of_week": date.weekday(),
        "day_of_month": date.day, "day_of_year": date.timetuple().tm_yday,
    }[of]
    values = [[(float(row[names.index(s["name"])]) - s["mean"]) / s["std"] for s in found["series"]] for row in rows]
    dates = [datetime.fromisoformat(row[0]) for row in rows]
    calendar = [[(part(d, f["of"]) - f["minus"]) / f["over"] - 0.5 for f in found["calendar_features"]] for d in dates]
    return np.concatenate([np.array(values), np.array(calendar).reshape(length, -1)], 1, dtype=np.float32)[None]


def mel_filters(found):
    knee, step = 1000 / (200 / 3), math.log(6.4) / 27
    mel = lambda hz: hz / (200 / 3) if hz < 1000 else knee + math.log(hz / 1000) / step
    hz = lambda mel: np.where(mel < knee, mel * 200 / 3, 1000 * np.exp((mel - knee) * step))
    edges = hz(np.linspace(mel(found["f_min"]), mel(found["f_max"]), found["n_mels"] + 2))
    bins = np.arange(found["n_fft"] // 2 + 1) * found["sample_rate"] / found["n_fft"]
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))
    return np.maximum(triangles, 0) * 2 / (high - low)


def speech(told, file):
    found = told["data"]["statistics"]
    with wave.open(str(file)) as recording:
        assert recording.getsampwidth() == 2 and recording.getframerate() == found["sample_rate"], "resample it"
        samples = np.frombuffer(recording.readframes(recording.getnframes()), "<i2") / 32768
        samples = samples.reshape(-1, recording.getnchannels()).mean(1)[: found["max_samples"]]
    samples = np.resize(samples, max(len(samples), found["min_samples"]))
    emphasised = samples - found["preemphasis"] * np.concatenate([[0], samples[:-1]])
    size, length, hop = found["n_fft"], found["win_length"], found["hop_length"]
    before = (size - length) // 2
    window = np.pad(np.hanning(length), (before, size - length - before))
    padded, frames = np.pad(emphasised, size // 2), len(samples) // hop
    spectra = [np.fft.rfft(padded[i * hop : i * hop + size] * window) for i in range(frames)]
    mels = np.log(np.abs(spectra) ** found["power"] @ mel_filters(found).T + found["log_floor"])
    features = np.zeros(told["input"]["shape"], np.float32)
    features[:, :frames] = (mels - mels.mean(0)) / (mels.std(0, ddof=1) + found["std_eps"])
    features[:, -1, 0] = frames
    return features[None]


def text(told, file):
    characters = Path(file).read_text()
    if told["text"]["tokens"] == "characters":
        return np.array([[told["classes"].index(c) for c in characters]], np.int64)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(told["folder"] / told["text"]["tokenizer"]))
    return np.array([tokenizer.encode(characters, add_special_tokens=False).ids], np.int64)


def inputs(folder, file):
    told = {**json.loads((folder / "preprocessing.json").read_text()), "folder": folder}
    found = told["data"]["statistics"]
    marks = {image: "image" in told, speech: "n_fft" in found, series: "series" in found, text: "text" in told}
    kind = next((kind for kind, is_it in marks.items() if is_it), table)
    return told, kind(told, file)


def answers(told, output):
    if told["probabilities"] == "softmax":
        shifted = np.exp(output - output.max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True)
    if told["probabilities"] == "sigmoid":
        return 1 / (1 + np.exp(-output))
    if "series" in told["data"]["statistics"]:
        scales = told["data"]["statistics"]["series"]
        return output * [s["std"] for s in scales] + [s["mean"] for s in scales]
    return output


if __name__ == "__main__":
    import onnxruntime

    model, file = map(Path, sys.argv[1:3])
    told, values = inputs(model.parent, file)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    output, = session.run(None, {told["input"]["name"]: values})
    json.dump(answers(told, output).tolist(), sys.stdout)
