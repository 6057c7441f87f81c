"""`wandb sync ARGUMENTS` against a server of this program that answers as W&B's does.

Prints what the client said, and as JSON what the server then has of each run. Written for wandb
0.31.0.
"""

import gzip
import json
import math
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

runs = {}


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer({})

    def do_PUT(self):
        self.content()
        self.answer({})

    def do_POST(self):
        content = self.content()
        if self.path.endswith("/graphql"):
            request = json.loads(content)
            self.answer({"data": self.query(request["query"], request.get("variables") or {})})
        elif match := re.search(r"/([^/]+)/file_stream$", self.path):
            stream(runs[match[1]], json.loads(content))
            self.answer({"exitcode": None, "limits": {}})
        else:
            self.answer({})

    def query(self, query, words):
        if "upsertBucket" in query:
            run = runs.setdefault(words["name"], {"rows": [], "summary": {}, "exit_code": None})
            run.update({key: value for key, value in words.items() if value is not None})
            entity = {"id": "e", "name": words.get("entity") or "me"}
            project = {"id": "p", "name": words["project"], "entity": entity}
            bucket = {"id": "b", "name": words["name"], "displayName": run.get("displayName")}
            bucket.update(config=run["config"], historyLineCount=0, project=project)
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            host, port = self.server.server_address[:2]
            files = [{"name": name, "uploadUrl": f"http://{host}:{port}/{name}"} for name in words["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "viewer" in query:
            teams = {"edges": []}
            me = {"id": "u", "username": "me", "entity": "me", "name": "me", "email": "", "flags": "{}"}
            return {"viewer": {**me, "teams": teams, "apiKeys": teams}, "serverInfo": {"features": []}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": [], "cliVersionInfo": {}}}
        return {"model": {"bucket": None}}

    def content(self):
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        is_packed = self.headers.get("content-encoding") == "gzip"
        return gzip.decompress(content) if is_packed else content

    def answer(self, value):
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def stream(run, message):
    """Files of a run are lists of lines, which a message overwrites from `offset` on."""
    files = message.get("files") or {}
    history = files.get("wandb-history.jsonl")
    if history:
        lines = [json.loads(line) for line in history["content"]]
        run["rows"][history["offset"] : history["offset"] + len(lines)] = lines
    summary = files.get("wandb-summary.json")
    if summary:
        run["summary"] = json.loads(summary["content"][-1])
    if message.get("complete"):
        run["exit_code"] = message["exitcode"]


def plain(value):
    """A value whose JSON every reader takes."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
server.handle_error = lambda *_: None  # The client breaks connections off.
threading.Thread(target=server.serve_forever, daemon=True).start()
environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
environment.update(WANDB_BASE_URL=f"http://127.0.0.1:{server.server_address[1]}")
environment.update(WANDB_API_KEY="0" * 40, WANDB_ERROR_REPORTING="false")
command = [sys.executable, "-m", "wandb", "sync", *sys.argv[1:]]
ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
for run in runs.values():
    run["config"] = json.loads(run["config"])
said = ended.stdout + ended.stderr
print(json.dumps(plain({"code": ended.returncode, "said": said, "runs": runs})))
