"""Writes audio.json and audio/*: two tones as FLAC, OGG Vorbis, MP3 and WAV, the samples that libsndfile reads from
each, and samples that torchaudio resamples, in f64.

    python tests/golden/audio.py
"""

import json
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio

HERE = Path(__file__).parent
FILES = {
    # format, kind of samples, channels, seconds
    "stereo.flac": ("FLAC", "PCM_16", 2, 3),
    "deep.flac": ("FLAC", "PCM_24", 1, 1),
    "mono.ogg": ("OGG", "VORBIS", 1, 4),
    "mono.mp3": ("MP3", "MPEG_LAYER_III", 1, 4),
    "float.wav": ("WAV", "FLOAT", 1, 1),
    "stereo24.wav": ("WAV", "PCM_24", 2, 0.6),
    "mulaw.wav": ("WAV", "ULAW", 1, 1),
}
RATE = 8000


def tones(channels, seconds):
    t = np.arange(int(seconds * RATE)) / RATE
    left = 0.3 * np.sin(2 * np.pi * 220 * t) * np.minimum(1, 8 * t)
    right = 0.2 * np.sin(2 * np.pi * 333 * t + 1)
    return np.stack([left, right], 1)[:, :channels] if channels > 1 else left + right


def summed(samples):
    """Squares in eight equal parts, and samples of the middle."""
    mean = samples.mean(1) if samples.ndim > 1 else samples
    parts = [float((part.astype(np.float64) ** 2).sum()) for part in np.array_split(mean, 8)]
    return {"n": len(mean), "parts": parts, "middle": mean[4000:4016].astype(float).tolist()}


def written(name):
    kind, subtype, channels, seconds = FILES[name]
    path = HERE / "audio" / name
    soundfile.write(path, tones(channels, seconds), RATE, subtype, format=kind)
    samples, rate = soundfile.read(path, dtype="float32")
    return {"name": name, "rate": rate, **summed(samples)}


def resampled(source, target):
    i = torch.arange(2000, dtype=torch.float64)
    samples = (0.3 * (i * 0.05).sin() + 0.2 * (i * 0.31).cos())
    found = torchaudio.functional.resample(samples, source, target)
    return {
        "from": source,
        "to": target,
        "n": len(found),
        "first": found[:24].tolist(),
        "last": found[-24:].tolist(),
        "energy": float(found.square().sum()),
    }


rates = [(44100, 16000), (48000, 16000), (8000, 16000), (22050, 16000), (16000, 8000), (11025, 8000)]
golden = {
    "soundfile": soundfile.__version__,
    "libsndfile": soundfile.__libsndfile_version__,
    "torchaudio": torchaudio.__version__,
    "files": [written(name) for name in FILES],
    "resampled": [resampled(*pair) for pair in rates],
}
(HERE / "audio.json").write_text(json.dumps(golden) + "\n")
