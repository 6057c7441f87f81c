"""Folders of runs for tests of the page, as ddprun writes them."""

import datetime
import json
import math
import os
import random

HEAD = (
    "step,epoch,train/loss,train/accuracy,lr,grad_norm,loss_scale,samples_per_second,"
    "val/loss,val/accuracy,val/mse,val/mae,test/loss,test/accuracy,test/mse,test/mae,test/success\n"
)
START = datetime.datetime(2026, 11, 20, 13)


class Run:
    """One run folder that grows."""

    def __init__(self, root, name, number, lr=0.1, total=1000, extra="", run=None):
        self.start = START + datetime.timedelta(minutes=7 * number)
        self.id = run or self.start.strftime("%Y%m%d-%H%M%S-") + f"{number:04x}"
        self.folder = os.path.join(root, name.replace("/", "_"), self.id)
        os.makedirs(self.folder)
        self.name, self.total, self.per_epoch = name, total, max(total // 10, 1)
        self.lr, self.step, self.random = lr, 0, random.Random(number)
        self.write("metrics.csv", HEAD)
        self.event(
            0, "started", format=1, version="0.1.0", name=name, run=self.id,
            arithmetic=["64 = 32 x 2 ranks x 1 pass"], devices=["cpu", "cpu"],
            steps_per_epoch=self.per_epoch, total_steps=total, resumed_from=0,
        )
        toml = (
            f"schema = 1\n[experiment]\nname = {json.dumps(name)}\n[model]\nname = \"mlp\"\n"
            f"[optimizer]\nlr = {lr}\n{extra}"
        )
        self.write("resolved.toml", toml)
        plan = {
            "name": name, "length": {"steps_per_epoch": self.per_epoch, "total_steps": total},
            "checkpoint": {"monitor": "val/loss", "mode": "min"},
            "distributed": {"devices": ["cpu", "cpu"]},
        }
        run = {"id": self.id, "logs": self.folder, "checkpoints": "none"}
        self.write("run.json", json.dumps({"format": 1, "run": run, "plan": plan}))
        machine = {
            "time": self.start.isoformat() + "Z", "ddprun": "0.1.0", "target": "x86_64-linux-gnu", "profile": "release",
            "git_revision": None, "host": "a", "system": "Linux 6.1", "cpu": None, "cores": 2 + number % 2,
            "folder": "/home/a", "command_line": ["ddprun", "x.toml"],
        }
        self.write("environment.json", json.dumps({"format": 1, "starts": [machine]}))

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "a", encoding="utf-8") as file:
            file.write(text)

    def event(self, step, event, **fields):
        time = (self.start + datetime.timedelta(seconds=0.05 * step)).isoformat(timespec="milliseconds")
        line = {"time": time + "Z", "step": step, "event": event, **fields}
        self.write("events.jsonl", json.dumps(line, separators=(",", ":")) + "\n")

    def tell(self, ranks=2, gpus=False):
        """What each rank has done so far; the last one is late, and its GPU unknown."""
        seconds = 0.05 * self.step
        shares = dict(data=0.06, forward=0.24, backward=0.5, communication=0.08, optimizer=0.04, evaluation=0.06, checkpoint=0.02)
        phases = {name: [share * seconds * (1 + 0.1 * math.sin(rank)) for rank in range(ranks)] for name, share in shares.items()}
        phases["communication"][-1] = 0
        own = sum(each[-1] for each in phases.values())
        late = [0.0] * (ranks - 1) + [0.1 * own]
        cpu = [seconds * (1 + 0.5 * min(rank, 3)) for rank in range(ranks)]
        memory = [400_000_000 + 1_000_000 * rank for rank in range(ranks)]
        gpu = dict(gpu_memory=[6_000_000_000] * ranks, gpu_utilization=[0.9] * (ranks - 1) + [None]) if gpus else {}
        self.event(self.step, "rank_stats", phase_seconds=phases, late_seconds=late, cpu_seconds=cpu, memory=memory, **gpu)
        return self

    def train(self, steps):
        """Goes on for some steps."""
        rows, lines = [], []
        for _ in range(min(steps, self.total - self.step)):
            self.step += 1
            step, epoch = self.step, (self.step - 1) // self.per_epoch + 1
            best = 0.2 + 0.2 * abs(math.log10(self.lr / 0.03))
            loss = best + 2 * math.exp(-6 * step / self.total) + self.random.gauss(0, 0.05)
            rows.append(f"{step},{epoch},{loss},{max(0, 1 - loss / 3)},{self.lr},1.5,,5000.0,,,,,,,,,\n")
            lines.append((step, "step_done", {
                "epoch": epoch, "step_in_epoch": 1, "loss": loss, "accuracy": None, "lr": self.lr,
                "grad_norm": 1.5, "loss_scale": None, "samples_per_second": 5000.0,
            }))
            if step % self.per_epoch == 0:
                metrics = {"val/loss": loss + 0.05, "val/accuracy": max(0, 1 - loss / 3)}
                rows.append(f"{step},{epoch},,,,,,,{metrics['val/loss']},{metrics['val/accuracy']},,,,,,,\n")
                lines.append((step, "evaluated", {"epoch": epoch, "metrics": metrics, "samples": 10}))
        self.write("metrics.csv", "".join(rows))
        for step, event, fields in lines:
            self.event(step, event, **fields)
        return self

    def finish(self):
        phases = dict(data=3, forward=12, backward=25, communication=4, optimizer=2, evaluation=3, checkpoint=1)
        self.event(
            self.step, "finished", reason="completed", best=None, seconds=50.0,
            samples_per_second=5000.0, phase_seconds=phases, peak_memory=480000000,
        )
        return self

    def straggle(self):
        self.event(self.step, "straggler", rank=1, lag_seconds=0.01, data_seconds=0.008, step_seconds=0.05)
        return self

    def fail(self, message):
        failure = {
            "format": 1, "run": self.id, "rank": 1, "pid": 3, "host": "a", "exit": None, "phase": "forward",
            "step": self.step, "place": None, "message": message, "causes": ["overflow"],
            "help": "use a smaller `optimizer.lr`", "code": 4, "log": "x", "log_tail": [],
            "secondary": [], "history": [],
        }
        self.write("failure.json", json.dumps(failure))
        return self

    def log(self, rank, lines):
        self.write(f"rank-{rank}.log", "".join(f"2026-11-20T13:00:00Z  {line}\n" for line in lines))
        return self

    def evaluate(self, picture, start):
        """What `ddprun eval --out` leaves: of a mistake, and of a right answer whose picture is named from the folder of the start."""
        with open(os.path.join(self.folder, "environment.json"), encoding="utf-8") as file:
            environment = json.load(file)
        environment["starts"][-1]["folder"] = start
        with open(os.path.join(self.folder, "environment.json"), "w", encoding="utf-8") as file:
            json.dump(environment, file)
        kinds = ["cat", "dog", "<b>owl</b>"]
        classes = [dict(zip(["class", "samples", "precision", "recall", "f1"], [kind, 10, 0.9, 0.8, 0.85])) for kind in kinds]
        worst = [
            {"sample": picture, "loss": 4.2, "class": "cat", "answer": "dog"},
            {"sample": os.path.basename(picture), "loss": 0.6, "class": "dog", "answer": "dog"},
        ]
        details = [{"split": "val", "classes": classes, "confusion": [[8, 2, 0], [1, 9, 0], [0, 0, 10]], "worst": worst}]
        os.makedirs(os.path.join(self.folder, "eval"))
        self.write("eval/eval.json", json.dumps({"step": 5, "metrics": {"val/loss": 0.4}, "details": details}))
        return self


def many(root, runs, points):
    """So many runs of so many points; their records are links to those of the first."""
    first = Run(root, "first", 0, total=points).train(points).finish()
    for number in range(1, runs):
        run = Run(root, f"model{number % 7}", number, lr=0.001 * number, total=points)
        for name in ["metrics.csv", "events.jsonl"]:
            path = os.path.join(run.folder, name)
            os.remove(path)
            os.link(os.path.join(first.folder, name), path)


def sweep(root, trials):
    """A sweep over the learning rate and the width."""
    folder = os.path.join(root, "tune")
    os.makedirs(folder)
    parameters = [
        {"key": "optimizer.lr", "distribution": "log_uniform", "min": 0.001, "max": 1.0},
        {"key": "model.width", "distribution": "categorical", "values": [32, 64, "wide"]},
    ]
    subject = {
        "name": "tune", "base": "x.toml", "metric": "val/loss", "goal": "min", "trials": trials,
        "search": {"method": "random", "parameters": parameters}, "experiment": {},
    }
    lines = [{"record": "opened", "format": 1, "ddprun": "0.1.0", **subject}]
    draw = random.Random(5)
    for number in range(1, trials + 1):
        lr, width = 10 ** draw.uniform(-3, 0), draw.choice([32, 64, "wide"])
        length = {"steps_per_epoch": 10, "total_steps": 100}
        values = {"optimizer.lr": lr, "model.width": width}
        lines.append({"record": "started", "trial": number, "values": values, **length})
        value = 0.3 + abs(math.log10(lr / 0.03)) * 0.3 + (0.1 if width == 32 else 0)
        state = "pruned" if number % 4 == 0 else "finished"
        lines.append({"record": "ended", "trial": number, "state": state, "value": value, "seconds": 5.0, "reports": [[100, value]]})
        run = Run(root, "tune", 500 + number, lr=lr, total=100, run=f"trial-{number:04}")
        run.train(100).finish()
    with open(os.path.join(folder, "journal.jsonl"), "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps({"time": "2026-11-20T13:00:00Z", **line}) + "\n")
    importance = {"optimizer.lr": 0.8, "model.width": 0.15}
    with open(os.path.join(folder, "sweep.json"), "w", encoding="utf-8") as file:
        json.dump({"format": 1, "importance": importance}, file)
