"""`ddprun serve` and a browser that looks at it, for the tests of the page."""

import os
import signal
import struct
import subprocess
import sys
import urllib.error
import urllib.request
import zlib

DDPRUN, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SHOTS = sys.argv[3] if len(sys.argv) > 3 else None
WIDE = {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"}
# The address of the run that has everything.
PLAIN = "#focus=plain%2F20261120-130700-0001"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": "dark"}


class Server:
    """`ddprun serve`, on a free port unless one is given."""

    def __init__(self, folder, *words, cwd=None, port=0):
        command = [DDPRUN, "serve", folder, "--port", str(port), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd)
        self.address = self.process.stdout.readline().strip()
        self.root = self.address.split("/?")[0]

    def __enter__(self):
        return self

    @property
    def port(self):
        return int(self.root.rsplit(":", 1)[1])

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(5) == 0, "Ctrl-C ends it cleanly"


def status(address, **headers):
    """The status of a plain request that follows no redirection."""
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None
    try:
        request = urllib.request.Request(address, headers=headers)
        return urllib.request.build_opener(Stay).open(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code


def opened(browser, address, **options):
    """A page that notes what must not happen."""
    page = browser.new_context(**options).new_page()
    page.wrong = []
    page.on("console", lambda said: said.type == "error" and page.wrong.append(said.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("dialog", lambda dialog: page.wrong.append("dialog") or dialog.dismiss())
    page.goto(address)
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def shot(page, name):
    if SHOTS:
        os.makedirs(SHOTS, exist_ok=True)
        page.screenshot(path=os.path.join(SHOTS, name + ".png"))


def unharmed(page):
    assert page.evaluate("window.hacked") is None, "a name became a script"
    assert page.wrong == [], page.wrong


def png(path):
    """Two white pixels by two."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)
    bytes = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\xff\xff" * 2)) + chunk(b"IEND", b"")
    with open(path, "wb") as file:
        file.write(bytes)
    return path
