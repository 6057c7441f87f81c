"""Writes dates.json: dates that pandas makes of a frequency, its name for it, and the dates that follow; and cells with the
instants and clocks that pandas or Python read in them.

    python tests/golden/dates.py > tests/golden/dates.json
"""

import json
import warnings
from datetime import datetime

import pandas as pd

# infer_freq will return an object instead of its name.
warnings.simplefilter("ignore")

AFTER = 6

# Frequency, first date, rows and time zone. Starts lie before weekends, ends of months, leap days and changes of clocks.
RANGES = [
    ("h", "2024-02-28 20:00", 40, None),
    ("h", "2024-03-30 20:00", 30, "Europe/Berlin"),
    ("h", "2024-10-26 20:00", 30, "Europe/Berlin"),
    ("h", "2024-11-02 20:00", 30, "America/New_York"),
    ("30min", "2024-12-31 20:00", 12, None),
    ("15min", "2024-02-28 22:00", 30, None),
    ("90min", "2024-02-28 22:00", 30, None),
    ("6h", "2024-02-27", 12, None),
    ("min", "2024-02-28 23:30", 60, None),
    ("s", "2024-12-31 23:59:30", 60, None),
    ("100ms", "2024-01-01", 400, None),
    ("250us", "2024-01-01", 30, None),
    ("D", "2024-02-20", 12, None),
    ("D", "2023-02-20", 12, None),
    ("D", "2024-03-25", 10, "Europe/Berlin"),
    ("D", "2024-10-20", 10, "Europe/Berlin"),
    ("2D", "2024-02-20", 12, None),
    ("28D", "2012-01-16", 30, None),
    ("W-SUN", "2024-01-07", 12, None),
    ("W-MON", "2024-01-01", 12, None),
    ("2W-FRI", "2024-01-05", 12, None),
    ("B", "2024-01-01", 30, None),
    ("B", "2024-02-07", 16, None),
    ("MS", "2023-11-01", 12, None),
    ("ME", "2023-10-31", 12, None),
    ("ME", "2022-10-31", 16, None),
    ("BMS", "2023-06-01", 14, None),
    ("BME", "2000-01-31", 30, None),
    ("2MS", "2023-11-01", 12, None),
    ("QS-JAN", "2020-01-01", 12, None),
    ("QS-FEB", "2020-02-01", 12, None),
    ("QE-DEC", "2020-03-31", 12, None),
    ("QE-JAN", "2020-01-31", 12, None),
    ("BQE-DEC", "2020-03-31", 12, None),
    ("BQS-JAN", "2021-10-01", 12, None),
    ("YS-JAN", "1990-01-01", 12, None),
    ("YS-JUL", "1990-07-01", 12, None),
    ("YE-DEC", "1990-12-31", 12, None),
    ("YE-FEB", "1990-02-28", 12, None),
    ("BYE-DEC", "1990-12-31", 20, None),
    ("WOM-3FRI", "2023-01-20", 14, None),
]

# A format of strptime, with the way in which it is written.
FORMATS = [
    "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d %H:%M", "%Y.%m.%d", "%Y%m%d", "%Y%m%dT%H%M%S", "%Y%m%d%H%M%S",
    "%Y%m%d%H", "%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M %p", "%m/%d/%Y", "%d-%m-%Y", "%d.%m.%Y %H:%M", "%d %b %Y", "%d-%b-%Y",
    "%d %B %Y", "%b %d, %Y", "%B %d, %Y %H:%M", "%a, %d %b %Y %H:%M:%S +0000", "%A, %B %d, %Y", "%Y-%m", "%m/%Y", "%b %Y",
    "%Y", "%G-W%V-%u", "%GW%V%u", "%m/%d/%y %H:%M", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y-%m-%d %I:%M:%S %p", "%Y-%m-%dT%H:%M+02:00", "%Y-%m-%d %H:%M:%S-0530", "%Y-%m-%dT%H%M%S+01",
]
MOMENTS = [
    datetime(2024, 1, 31, 0, 5), datetime(2024, 2, 29, 12, 30), datetime(2021, 12, 3, 23, 59, 59), datetime(1999, 5, 13, 2, 30),
    datetime(2024, 12, 30, 14, 0, 1, 250000), datetime(2023, 3, 26, 2, 15),
]


def ranges():
    for freq, start, n, zone in RANGES:
        dates = pd.date_range(start, periods=n + AFTER, freq=freq, tz=zone)
        inferred = pd.infer_freq(dates[:n])
        cells = [date.isoformat() for date in dates]
        yield {"frequency": freq, "inferred": inferred, "zone": zone, "dates": cells[:n], "after": cells[n:]}


def columns():
    for form in FORMATS:
        cells = [moment.strftime(form) for moment in MOMENTS]
        ends = [end for end in ("+0000", "+02:00", "-0530", "+01", "Z") if form.endswith(end)]
        parsed = form.removesuffix(ends[0]) + "%z" if ends else form
        # Python wants four digits.
        read = [datetime.strptime(cell + "00" if ends == ["+01"] else cell, parsed) for cell in cells]
        instants = [pd.Timestamp(date) if date.tzinfo is None else pd.Timestamp(date).tz_convert(None) for date in read]
        yield {
            "format": form,
            "cells": cells,
            "clocks": [date.replace(tzinfo=None).isoformat() for date in read],
            "instants": [instant.isoformat() for instant in instants],
        }


print(json.dumps({"versions": {"pandas": pd.__version__}, "ranges": list(ranges()), "columns": list(columns())}))
