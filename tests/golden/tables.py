"""Writes tables.json: a small table as scikit-learn's SimpleImputer, StandardScaler and OneHotEncoder make it numbers.

    python tests/golden/tables.py > tests/golden/tables.json
"""

import datetime
import math

import numpy as np
import sklearn
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from filled import write

HEADER = "age,city,floor,area,sold,price"
TRAIN = """
31,Bern,10,55.5,2024-01-31,410
,Rome,2,70,2024-03-10,350.5
45,Bern,1,,2023-07-04 18:00,512
28,,2,48.25,,298
45,Oslo,10,91,2022-12-25,645
"""
VAL = """
,Rome,1,60,2025-06-15,400
39,Paris,7,,,380
51,,2,55.5,2024-02-29,330
"""


def rows(text):
    return [line.split(",") for line in text.strip().splitlines()]


def number(table, at):
    return np.array([[float(row[at]) if row[at] else math.nan] for row in table])


def words(table, at):
    return np.array([[row[at] or None] for row in table], dtype=object)


def wholes(table, at):
    return np.array([[int(row[at])] for row in table])


def dates(table, at):
    return [datetime.datetime.fromisoformat(row[at]) if row[at] else None for row in table]


PARTS = {
    "year": (lambda date: date.year, None),
    "month": (lambda date: date.month - 1, 12),
    "day_of_week": (lambda date: date.weekday(), 7),
    "hour": (lambda date: date.hour, 24),
}


def part(found, name, cyclic):
    """The columns of a date's feature, and whether they are standardised."""
    value, period = PARTS[name]
    nan = math.nan
    if cyclic and period:
        angles = [2 * math.pi * value(date) / period if date else nan for date in found]
        return [np.sin(angles), np.cos(angles)], False
    return [np.array([value(date) if date else nan for date in found], dtype=float)], True


def encoded(strategy, indicator, cyclic, parts):
    train, val = rows(TRAIN), rows(VAL)
    fill = {"strategy": strategy} if isinstance(strategy, str) else {
        "strategy": "constant", "fill_value": strategy,
    }
    found = {"train": [], "val": []}
    flags = {"train": [], "val": []}

    def add(columns, fitted):
        for name, column in columns.items():
            found[name].append(fitted.transform(column))

    def flag(columns):
        if indicator and np.isnan(columns["train"]).any():
            for name, column in columns.items():
                flags[name].append(np.isnan(column).astype(float))

    for at in (0, 3):
        columns = {"train": number(train, at), "val": number(val, at)}
        add(columns, make_pipeline(SimpleImputer(**fill), StandardScaler()).fit(columns["train"]))
        flag(columns)
    both = {"train": dates(train, 4), "val": dates(val, 4)}
    for place, name in enumerate(parts):
        columns = {key: part(value, name, cyclic) for key, value in both.items()}
        for at in range(len(columns["train"][0])):
            one = {key: value[0][at][:, None] for key, value in columns.items()}
            scaled = [StandardScaler()] if columns["train"][1] else []
            add(one, make_pipeline(SimpleImputer(strategy="mean"), *scaled).fit(one["train"]))
            if place == at == 0:
                flag(one)
    categories = []
    one_hot = {"train": [], "val": []}
    for read, at in ((words, 1), (wholes, 2)):
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(read(train, at))
        categories.append(["" if c is None else str(c) for c in encoder.categories_[0]])
        for name, table in (("train", train), ("val", val)):
            one_hot[name].append(encoder.transform(read(table, at)))
    together = {key: np.hstack(found[key] + flags[key] + one_hot[key]).tolist() for key in found}
    return {
        "missing": strategy,
        "missing_indicator": indicator,
        "cyclic_dates": cyclic,
        "date_features": parts,
        "categories": categories,
        **together,
    }


def targets():
    scaler = StandardScaler().fit(number(rows(TRAIN), 5))
    return {
        "scale": scaler.scale_[0],
        "train": scaler.transform(number(rows(TRAIN), 5)).ravel().tolist(),
        "val": scaler.transform(number(rows(VAL), 5)).ravel().tolist(),
    }


USUAL = ["year", "month", "day_of_week"]

write({
    "scikit-learn": sklearn.__version__,
    "train_file": HEADER + TRAIN,
    "val_file": HEADER + VAL,
    "targets": targets(),
    "encoded": [
        encoded("mean", True, True, USUAL),
        encoded("median", False, False, USUAL),
        encoded("most_frequent", True, True, ["hour", "year"]),
        encoded(7.5, False, True, USUAL),
    ],
})
