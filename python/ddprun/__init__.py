"""Start runs, read their metrics and predict with them, from Python.

    import ddprun

    run = ddprun.train("experiments/quickstart.toml", {"optimizer.lr": 0.05})
    print(run.metrics["val/accuracy"])
    run.history().plot(x="step", y="train/loss")        # a pandas.DataFrame
    ddprun.load("quickstart").predict(["a.png", "b.png"])

Everything is done by the program ``ddprun``, which the package installs: functions run it with
``--json`` in the current folder and return what it prints. A failure is an :class:`Error` with its
exit code. What the program says to people (the progress of a training, warnings) goes to stderr.
Only the functions that return a ``DataFrame`` need pandas.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import pandas

__all__ = ["Error", "Run", "Runs", "load", "plan", "program", "runs", "stream", "sweep", "train"]

# The version of the program's output that this package understands.
_FORMAT = 1

Values = Mapping[str, Any]
PathLike = Union[str, "os.PathLike[str]"]


class Error(Exception):
    """A command that failed.

    ``code`` is its exit code, ``problems`` has an object for each thing that is wrong, and ``run``
    is the run that was trained, if it had started.
    """

    run: Run | None = None

    def __init__(self, code: int, problems: Sequence[Mapping[str, Any]]):
        self.code = code
        self.problems = [dict(problem) for problem in problems]
        super().__init__("\n".join(map(_sentence, self.problems)) or f"ddprun ended with {code}")


class Run:
    """A run, as it was when it was listed; :meth:`refresh` looks again."""

    def __init__(self, info: Mapping[str, Any]):
        self.info = dict(info)

    id = property(lambda self: self.info["id"], doc="Unique id, which begins with the start's time.")
    name = property(lambda self: self.info["name"], doc="Name of the experiment.")
    folder = property(lambda self: Path(self.info["folder"]), doc="Folder of its logs.")
    state = property(lambda self: self.info["state"], doc="running, finished, stopped, failed, killed or pruned.")
    metrics = property(lambda self: self.info["metrics"], doc="Last value of each metric.")
    best = property(
        lambda self: self.info["best"], doc="Best value of the metric that decides, with its step, or None."
    )

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.id!r}, {self.state!r})"

    def refresh(self) -> Run:
        """Looks at the run's folder again."""
        self.info = load(self.folder).info
        return self

    def history(self) -> pandas.DataFrame:
        """``metrics.csv``: a row for each step and evaluation that was logged."""
        return _pandas().read_csv(self.folder / "metrics.csv")

    def events(self) -> list[dict[str, Any]]:
        """``events.jsonl``: everything that was recorded, in order."""
        with open(self.folder / "events.jsonl", encoding="utf-8") as lines:
            # Of a run that is under way, the last line may be half written.
            return [json.loads(line) for line in lines if line.endswith("\n")]

    def evaluate(self, *, test: bool = False, latest: bool = False) -> dict[str, Any]:
        """Metrics of its best checkpoint, in total and per class."""
        options = [*_flag("--part=test", test), *_flag("--latest", latest)]
        return _only(["eval", str(self.folder), *options], "evaluation")

    def predict(
        self, inputs: PathLike | Iterable[PathLike], *, top: int | None = None, latest: bool = False
    ) -> list[dict[str, Any]]:
        """Predictions of its best checkpoint for files and folders, an object for each sample."""
        paths = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        options = [*_flag(f"--top={top}", top is not None), *_flag("--latest", latest)]
        words = ["predict", *options, "--", str(self.folder), *(os.fspath(path) for path in paths)]
        return [row["prediction"] for row in stream(words) if row["type"] == "prediction"]

    def export(self, path: PathLike, *, latest: bool = False, overwrite: bool = False) -> list[Path]:
        """Writes the weights (``.safetensors``) or the model (``.onnx``); returns all files."""
        options = [*_flag("--latest", latest), *_flag("--overwrite", overwrite)]
        words = ["checkpoint", "export", str(self.folder), os.fspath(path), *options]
        return [Path(file["path"]) for file in stream(words) if file["type"] == "file"]

    def resume(self, values: Values | None = None, *, on_event: Callable[[dict[str, Any]], Any] | None = None) -> Run:
        """Goes on from its newest checkpoint, and returns when it ends."""
        self.info = _train(["resume", str(self.folder), *_overrides(values)], on_event).info
        return self


class Runs(list[Run]):
    """Runs, the oldest first."""

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each run, with a column for each metric."""
        rows = [{**run.info, "best": (run.best or {}).get("value"), **run.metrics} for run in self]
        frame = _pandas().DataFrame(rows)
        return frame.drop(columns=["format", "type", "metrics"], errors="ignore")


def train(
    experiment: PathLike,
    values: Values | None = None,
    *,
    on_event: Callable[[dict[str, Any]], Any] | None = None,
) -> Run:
    """Trains what an experiment file describes, and returns when the run ends.

    ``values`` stand for ``key=value`` on the command line. ``on_event`` gets each event as it
    happens, as they are in ``events.jsonl``; if it raises, the run is stopped with a checkpoint, and
    so it is by Ctrl-C.
    """
    return _train([os.fspath(experiment), *_overrides(values)], on_event)


def sweep(
    experiment: PathLike,
    values: Values | None = None,
    *,
    on_event: Callable[[dict[str, Any]], Any] | None = None,
) -> dict[str, Any]:
    """Runs a sweep to its end; returns the table of its trials."""
    words = ["sweep", os.fspath(experiment), *_overrides(values)]
    result: dict[str, Any] = {}
    with closing(stream(words)) as rows:
        for row in rows:
            if row["type"] == "event" and on_event is not None:
                on_event(row)
            elif row["type"] in ("sweep", "range_test"):
                result = row
    return result


def plan(experiment: PathLike, values: Values | None = None) -> dict[str, Any]:
    """Every value that a run would use; nothing is started."""
    return _only(["plan", os.fspath(experiment), *_overrides(values)], "plan")


def runs(folder: PathLike = "logs", *, tag: str | None = None, state: str | None = None) -> Runs:
    """The runs below a folder, those of sweeps included if it is the sweep's."""
    options = [*_flag(f"--tag={tag}", tag is not None), *_flag(f"--state={state}", state is not None)]
    words = ["ls", os.fspath(folder), *options]
    return Runs(Run(row) for row in stream(words) if row["type"] == "run")


def load(run: PathLike) -> Run:
    """The run of this name (its newest), id or folder."""
    found = runs(run)
    if not found:
        raise Error(2, [{"message": f"there is no run `{os.fspath(run)}`", "help": None}])
    return found[-1]


def stream(words: Sequence[str]) -> Generator[dict[str, Any], None, None]:
    """Runs the program, and yields what it prints with ``--json`` as it comes.

    Once the iterator is closed, or an exception passes through it, the program is stopped; it saves
    what it was training.
    """
    command = [program(), *words]
    command.insert(command.index("--") if "--" in command else len(command), "--json")
    # In a session of its own, so that Ctrl-C reaches it once, from here.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    assert child.stdout is not None
    problems = []
    try:
        for line in child.stdout:
            row = json.loads(line)
            if row["format"] != _FORMAT:
                raise RuntimeError(f"`{command[0]}` is of another version than this package")
            if row["type"] == "error":
                problems.append(row)
            else:
                yield row
    except BaseException:
        child.send_signal(signal.SIGINT)
        raise
    finally:
        child.stdout.close()
        code = _wait(child)
    if code != 0:
        raise Error(code, problems)


def _wait(child: subprocess.Popen[str]) -> int:
    """Waits for the program; Ctrl-C meanwhile is passed on, and ends it at once."""
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)


def program() -> str:
    """Path of the program: the one that was installed with this package, else that of ``PATH``."""
    installed = Path(sysconfig.get_path("scripts")) / "ddprun"
    found = str(installed) if installed.is_file() else shutil.which("ddprun")
    if found is None:
        raise FileNotFoundError("the program `ddprun` is not installed: `pip install ddprun`")
    return found


def _train(words: Sequence[str], on_event: Callable[[dict[str, Any]], Any] | None) -> Run:
    run = ""
    try:
        with closing(stream(words)) as rows:
            for row in rows:
                if row["type"] != "event":
                    continue
                if row["event"] == "started":
                    run = row["run"]
                if on_event is not None:
                    on_event(row)
    except Error as error:
        error.run = load(run) if run else None
        raise
    return load(run)


def _only(words: Sequence[str], kind: str) -> dict[str, Any]:
    return next(row for row in list(stream(words)) if row["type"] == kind)


def _overrides(values: Values | None) -> list[str]:
    """Values as the command line takes them: strings as they are, all else as TOML writes it."""

    def toml(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(toml, value)) + "]"
        return json.dumps(os.fspath(value) if isinstance(value, os.PathLike) else value, ensure_ascii=False)

    return [f"{key}={toml(value)}" for key, value in (values or {}).items()]


def _flag(word: str, is_set: bool) -> list[str]:
    return [word] if is_set else []


def _sentence(problem: Mapping[str, Any]) -> str:
    place = [str(problem[key]) for key in ("file", "line", "column") if problem.get(key) is not None]
    name = f"`{problem['key']}`: " if problem.get("key") else ""
    advice = f" ({problem['help']})" if problem.get("help") else ""
    return f"{':'.join(place)}{': ' if place else ''}{name}{problem['message']}{advice}"


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("this needs pandas: `pip install pandas`") from None
    return pandas
