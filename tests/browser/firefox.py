"""The page in Firefox, driven by its own protocol (Marionette): playwright needs a Firefox of its own.

    python tests/browser/firefox.py target/debug/ddprun EMPTY_FOLDER [SCREENSHOTS]
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

FLAGS = {"marionette.port": 0, "app.normandy.enabled": False, "browser.shell.checkDefaultBrowser": False, "datareporting.policy.dataSubmissionEnabled": False}


class Firefox:
    """A Firefox without a window, with one page."""

    def __init__(self):
        self.profile = tempfile.mkdtemp()
        with open(os.path.join(self.profile, "user.js"), "w", encoding="utf-8") as file:
            file.writelines(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in FLAGS.items())
        program = shutil.which("firefox") or shutil.which("firefox-esr")
        command = [program, "--headless", "--marionette", "--no-remote", "--profile", self.profile, "--width", "1440", "--height", "900"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = os.path.join(self.profile, "MarionetteActivePort")
        until = time.monotonic() + 60
        while not os.path.exists(port) or not open(port, encoding="utf-8").read():
            assert time.monotonic() < until, "Firefox does not start"
            time.sleep(0.1)
        self.stream = socket.create_connection(("127.0.0.1", int(open(port, encoding="utf-8").read())), timeout=60).makefile("rwb")
        self.number = 0
        self.read()
        self.ask("WebDriver:NewSession")

    def read(self):
        length = b""
        while not length.endswith(b":"):
            length += self.stream.read(1)
        return json.loads(self.stream.read(int(length[:-1])))

    def ask(self, name, **words):
        self.number += 1
        text = json.dumps([0, self.number, name, words]).encode()
        self.stream.write(b"%d:%s" % (len(text), text))
        self.stream.flush()
        _, _, error, value = self.read()
        assert error is None, error
        return value

    def open(self, address):
        self.ask("WebDriver:Navigate", url=address)

    def run(self, script, *words):
        return self.ask("WebDriver:ExecuteScript", script=script, args=list(words))["value"]

    def wait(self, script, *words):
        """Waits until a script gives something true."""
        until = time.monotonic() + 15
        while not (found := self.run(f"return {script}", *words)):
            assert time.monotonic() < until, script
            time.sleep(0.1)
        return found

    def keys(self, text):
        actions = [{"type": step, "value": key} for key in text for step in ("keyDown", "keyUp")]
        self.ask("WebDriver:PerformActions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def drag(self, start, *places):
        at = lambda x, y: {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 40}
        actions = [at(*start), {"type": "pointerDown", "button": 0}, *(at(*place) for place in places), {"type": "pointerUp", "button": 0}]
        self.ask("WebDriver:PerformActions", actions=[{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}])

    def shot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.ask("WebDriver:TakeScreenshot", full=False)["value"]))

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.profile, ignore_errors=True)


DRAWN = """(() => {
    const canvas = document.querySelector(".panel canvas.lines");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 3; i < data.length; i += 4) count += data[i] > 60;
    return count > 500;
})()"""
BOX = "const { x, y, width, height } = document.querySelector(arguments[0]).getBoundingClientRect(); return [x, y, width, height];"


def everything(server, run, shots=None):
    """Every tab, a live run under a dragged slider, a zoom, the keyboard, Back."""
    firefox = Firefox()
    try:
        firefox.open(server.address)
        firefox.run("window.wrong = []; addEventListener('error', (event) => wrong.push(event.message)); addEventListener('unhandledrejection', (event) => wrong.push(String(event.reason)));")
        firefox.wait("document.documentElement.dataset.ready")
        firefox.wait(DRAWN)
        if shots:
            firefox.shot(os.path.join(shots, "firefox-curves.png"))
        # A slider that is dragged while a run goes on.
        x, y, width, height = firefox.run(BOX, "input[type=range]")
        before = firefox.run("return performance.getEntriesByType('resource').filter((each) => each.name.includes('overview')).length")
        run.train(5)
        firefox.wait(f"performance.getEntriesByType('resource').filter((each) => each.name.includes('overview')).length > {before}")
        firefox.drag((x + 10, y + height / 2), (x + 0.4 * width, y + height / 2), (x + 0.7 * width, y + height / 2))
        assert 0.55 < float(firefox.run("return document.querySelector('input[type=range]').value")) < 0.85
        # A zoom, and back.
        x, y, width, height = firefox.run(BOX, ".panel canvas.over")
        firefox.drag((x + 0.3 * width, y + 0.5 * height), (x + 0.5 * width, y + 0.52 * height), (x + 0.7 * width, y + 0.5 * height))
        firefox.wait("document.body.innerText.includes('Reset zoom')")
        firefox.run("document.activeElement.blur()")
        firefox.keys("r")
        firefox.wait("!document.body.innerText.includes('Reset zoom')")
        for key, what in [("2", "tbody tr[data-run]"), ("3", ".scroll td.wrap"), ("4", ".curve"), ("5", ".facts dd"), ("1", ".panel canvas.over")]:
            firefox.keys(key)
            firefox.wait("document.querySelector(arguments[0])", what)
            if shots:
                time.sleep(0.7)
                firefox.shot(os.path.join(shots, f"firefox-{key}.png"))
        firefox.ask("WebDriver:Back")
        firefox.wait("document.querySelector('[aria-selected=true]').textContent === 'Run'")
        assert firefox.run("return window.hacked ?? null") is None
        assert firefox.run("return window.wrong") == []
    finally:
        firefox.close()


def main():
    from harness import FOLDER, SHOTS, Server
    from runs import Run, sweep
    logs = os.path.join(FOLDER, "logs")
    sweep(logs, 12)
    run = Run(logs, "goes_on", 600).train(300)
    Run(logs, "<img src=x onerror='window.hacked=1'>", 601, lr=0.02).train(500).finish()
    if SHOTS:
        os.makedirs(SHOTS, exist_ok=True)
    with Server(logs) as server:
        everything(server, run, SHOTS)
    print("the page works in Firefox")


if __name__ == "__main__":
    sys.exit(main())
