"""What a model that `ddprun checkpoint export` wrote as ONNX answers, by the files of the export alone:

    python preprocess.py EXPORT/model.onnx FILE

FILE is an image, a WAV recording, a text, a CSV table, or a JSON object a line. Each function below follows
`preprocessing.json` literally and gives the inputs of the model.
"""

import csv
import gzip
import json
import math
import re
import sys
import wave
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

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


def rows(file):
    """Each row of a CSV table or of a JSON object a line as a dictionary of cells."""
    name = file.name.lower().removesuffix(".gz")
    opened = gzip.open if file.name.lower().endswith(".gz") else open
    with opened(file, "rt", encoding="utf-8-sig", newline="") as lines:
        if name.endswith((".jsonl", ".json")):
            for line in filter(str.strip, lines):
                row = {}
                for key, value in json.loads(line).items():
                    values = value if isinstance(value, list) else [value]
                    names = [key] if len(values) == 1 else [f"{key}[{at}]" for at in range(len(values))]
                    row.update(zip(names, map(cell_of_json, values)))
                yield row
            return
        table = csv.reader(lines, delimiter="\t" if name.endswith(".tsv") else ",")
        names = [cell.strip() for cell in next(table)]
        for row in filter(None, table):
            yield dict(zip(names, map(str.strip, row)))


def cell_of_json(value):
    if isinstance(value, str):
        return value.strip()
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 9e15
    return "" if value is None else json.dumps(int(value) if is_whole else value)


def is_empty(found, cell):
    """A number that counts as empty does so however it is written: -999 and -999.0."""
    words = found["empty_cells"]
    return cell in words or (as_float(cell) is not None and as_float(cell) in map(as_float, words))


def as_float(text):
    try:
        return float(text)
    except ValueError:
        return None


def number(found, cell):
    return found["truth_values"][cell] if cell in found["truth_values"] else float(cell)


def part(date, ahead, of):
    """A number of a date that is so many seconds ahead of UTC."""
    if of == "elapsed_days":
        return (date - datetime(1970, 1, 1)).total_seconds() / 86400 - ahead / 86400
    return {
        "year": date.year, "month": date.month, "day": date.day, "day_of_month": date.day,
        "day_of_week": date.weekday(), "day_of_year": date.timetuple().tm_yday,
        "hour": date.hour, "minute": date.minute,
    }[of]


def of_date(number, date, ahead):
    value = part(date, ahead, number["of"])
    if "wave" not in number:
        return value
    angle = 2 * math.pi * (value - number["minus"]) / number["period"]
    return math.sin(angle) if number["wave"] == "sine" else math.cos(angle)


def table(told, file):
    found = told["data"]["statistics"]
    encoded = []
    for row in rows(file):
        numbers, indicators, categories = [], [], []

        def push(fit, value):
            mean, std = fit["scale"]
            assert value is not None or fit["fill"] is not None, "an empty cell"
            numbers.append(((fit["fill"] if value is None else value) - mean) / std)
            indicators.extend([float(value is None)] if fit["indicator"] else [])

        for feature in found["fit"]["features"]:
            cell = row.get(feature["name"], "")
            cell = None if is_empty(found, cell) else cell
            (kind, fit), = feature["encoding"].items()
            if kind == "one_hot":
                assert found["handle_unknown"] == "ignore" or (cell or "") in fit, "an unknown category"
                categories += [float(category == (cell or "")) for category in fit]
            elif kind == "date":
                date = None if cell is None else read_date(fit, cell)
                for it in fit["numbers"]:
                    push(it, None if date is None else of_date(it, *date))
            else:
                push(fit, None if cell is None else number(found, cell))
        encoded.append(numbers + indicators + categories)
    return np.array(encoded, np.float32)


def series(told, file):
    found, length = told["data"]["statistics"], told["input"]["shape"][0]
    last = list(rows(file))[-length:]
    values = [[(number(found, row[s["name"]]) - s["mean"]) / s["std"] for s in found["series"]] for row in last]
    # Zeros if the table that was trained on had no dates.
    features = found["calendar_features"]
    calendar = np.zeros((length, len(features)))
    for at, row in enumerate(last if found["dates"] and features else []):
        date, ahead = read_date(found["dates"], next(iter(row.values())))
        calendar[at] = [(part(date, ahead, f["of"]) - f["minus"]) / f["over"] - 0.5 for f in features]
    return np.concatenate([np.array(values), calendar], 1, dtype=np.float32)[None]


# What Python's strptime calls otherwise, or does not know.
SPELLINGS = {
    "%F": "%Y-%m-%d", "%D": "%m/%d/%y", "%T": "%H:%M:%S", "%R": "%H:%M", "%e": "%d", "%k": "%H",
    "%l": "%I", "%h": "%b", "%P": "%p", "%:z": "%z", "%.f": "",
}


def read_date(told, cell):
    """The local time in a cell, and by how many seconds it is ahead of UTC."""
    form = told["format"]
    if form == "%s":
        # By the number of digits in seconds, milli-, micro- or nanoseconds.
        digits = len(cell.split(".")[0])
        seconds = float(cell) / 1000 ** max(0, (digits - 9) // 3)
        return datetime(1970, 1, 1) + timedelta(seconds=seconds), 0
    if form == "%YQ%q":
        quarter, year = sorted(re.findall(r"\d+", cell), key=len)
        return datetime(int(year), 3 * int(quarter) - 2, 1), 0
    if told["whole_cell"]:
        form = re.sub(r"%[-_0^#](?=\w)", "%", form)
        cell = re.sub(r"(?<=:\d\d)[.]\d+", "", cell) if "%.f" in form else cell
        for ours, theirs in SPELLINGS.items():
            form = form.replace(ours, theirs)
        date = datetime.strptime(cell, form)
        ahead = date.utcoffset() or timedelta()
        return date.replace(tzinfo=None), ahead.total_seconds()
    # The name of a day of the week may stand before the date, a time and an offset behind it.
    cell = re.sub(r"(?i)^(mon|tue|wed|thu|fri|sat|sun)[a-z]*,? +", "", cell)
    if form == "%Y-%m-%d":
        cell = cell.replace(cell[4:5], "-", 2) if cell[4:5] in ("/", ".") else cell
    if "%V" in form and "%u" not in form:
        form, cell = form + "-%u", cell + "-1"
    days = ((as_date(cell[:end], form), cell[end:]) for end in range(len(cell), 0, -1))
    return clock(*next((day, rest) for day, rest in days if day))


def as_date(text, form):
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def clock(day, rest):
    """A day with the time, the offset and the time zone that stand behind it."""
    rest, zone = rest.lstrip("Tt, "), None
    if named := re.search(r"\[(\S+/\S+)\]$| ([A-Za-z]+/\S+)$", rest):
        zone, rest = named[1] or named[2], rest[: named.start()]
    ahead = None
    if offset := re.search(r" ?(?:UTC|GMT)?([-+\u2212])(\d\d?):?(\d\d)?$| ?(?:UTC|GMT|Z|z)$", rest):
        sign, hours, minutes = offset.groups()
        ahead = (3600 * int(hours or 0) + 60 * int(minutes or 0)) * (1 if sign == "+" else -1)
        rest = rest[: offset.start()]
    time = re.sub(r"(?<=\d\d)[.,]\d+", "", rest).replace("a.m.", "AM").replace("p.m.", "PM").strip()
    if time:
        clocks = ["%H:%M:%S", "%H:%M", "%H", "%I:%M:%S%p", "%I:%M%p", "%I%p"]
        packed = {4: ["%H%M"], 6: ["%H%M%S"]}.get(len(time) if time.isdigit() else 0, clocks)
        read = next(filter(None, (as_date(time.replace(" ", ""), form) for form in packed)))
        day = day.replace(hour=read.hour, minute=read.minute, second=read.second)
    if ahead is None and zone:
        ahead = day.replace(tzinfo=ZoneInfo(zone)).utcoffset().total_seconds()
    return day, ahead or 0


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
    # Numbers as the data have them.
    targets = told.get("targets", [])
    return output * [t["scale"] for t in targets] + [t["mean"] for t in targets] if targets else output


if __name__ == "__main__":
    import onnxruntime

    model, file = map(Path, sys.argv[1:3])
    told, values = inputs(model.parent, file)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    output, = session.run(None, {told["input"]["name"]: values})
    json.dump(answers(told, output).tolist(), sys.stdout)
