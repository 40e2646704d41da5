"""A small server that speaks the Hub's protocol, on the standard library, with faults that a test can order.

It knows models, Spaces (stored as `spaces/org/name`) and datasets (`datasets/org/name`). Every commit is a full copy of
the tree. Large files are those that end in .safetensors or .arrow.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

WRITER = "hf_" + "w" * 34
READER = "hf_" + "r" * 34
SHARED = "org"  # the namespace that WRITER may write to


@dataclass
class Repo:
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, tree: dict[str, bytes], message: str) -> str:
        sha = hashlib.sha1(f"{len(self.commits)}{branch}".encode()).hexdigest()
        self.commits[sha], self.branches[branch] = tree, sha
        self.messages.append(message)
        return sha

    def tree(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        sha = self.branches.get(revision, revision)
        return (sha, self.commits[sha]) if sha in self.commits else None


@dataclass
class Fault:
    """What goes wrong with the next `times` requests whose `METHOD path` matches a regular expression.

    `cut` closes the connection after half of the body, `refuse` answers with `status` and `message`, `quota` refuses
    large files one by one.
    """

    pattern: str
    kind: str
    times: int = 1
    status: int = 403
    message: str = ""


class FakeHub(ThreadingHTTPServer):
    """The server and what it stores; `requests` counts `METHOD path`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.headers_seen: list[str] = []
        self.faults: list[Fault] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self, home: Path) -> dict[str, str]:
        """Variables of a process that talks to this Hub as one who may write to `org`."""
        variables = {"HF_ENDPOINT": self.url, "HF_TOKEN": WRITER, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        return {**os.environ, **variables, "HF_HOME": str(home / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}

    def count(self, pattern: str) -> int:
        return sum(number for name, number in self.requests.items() if re.search(pattern, name))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


class Refusal(Exception):
    def __init__(self, status: int, message: str, code: str = "", **more: str) -> None:
        self.status, self.message, self.code, self.more = status, message, code, more


class Cut(Exception):
    """The connection is to be closed without an answer."""


def is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".arrow"))


def object_id(path: str, content: bytes) -> str:
    if is_large(path):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    REPO = r"(?P<repo>(?:(?:spaces|datasets)/)?[^/]+/[^/]+)"
    REV = r"(?P<rev>refs/convert/parquet|[^/]+)"
    API = r"/api/(?:models/)?" + REPO
    ROUTES = (
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("POST", API + r"/preupload/(?P<rev>.+)", "preupload"),
        ("POST", API + r"/commit/(?P<rev>.+)", "commit"),
        ("POST", API + r"/branch/(?P<rev>.+)", "branch"),
        ("GET", API + r"/tree/" + REV + r"/?(?P<folder>.*)", "tree"),
        ("GET", API + r"/revision/(?P<rev>.+)", "info"),
        ("GET", API, "info"),
        ("POST", r"/" + REPO + r"\.git/info/lfs/objects/batch", "batch"),
        ("PUT", r"/lfs/(?P<oid>\w+)", "store"),
        ("GET", r"/" + REPO + r"/resolve/" + REV + r"/(?P<path>.+)", "resolve"),
    )

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        name = f"{self.command} {path}"
        with self.server.lock:
            self.server.requests[name] += 1
            self.server.headers_seen.append(self.headers.get("Authorization") or "")
            due = [fault for fault in self.server.faults if fault.times and re.search(fault.pattern, name)]
            fault = due[0] if due else None
            if fault:
                fault.times -= 1
        try:
            body = self.body(fault)
            if fault and fault.kind == "refuse":
                raise Refusal(fault.status, fault.message)
            for method, pattern, action in self.ROUTES:
                match = re.fullmatch(pattern, path)
                if method == self.command.replace("HEAD", "GET") and match:
                    getattr(self, action)(body, fault=fault, **match.groupdict())
                    return
            raise Refusal(404, f"no such route: {name}")
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message, **({"X-Error-Code": refusal.code} if refusal.code else {})}
            self.send_json({"error": refusal.message, **refusal.more}, refusal.status, headers)
        except Cut:
            self.close_connection = True
            self.connection.close()

    do_GET = do_POST = do_PUT = do_HEAD = answer

    def body(self, fault: Fault | None) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if fault and fault.kind == "cut":
            self.rfile.read(length // 2)
            raise Cut
        return self.rfile.read(length)

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    # ------------------------------------------------------------------------------------------------------- access

    @property
    def token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def require_writer(self, namespace: str) -> None:
        if self.token not in (WRITER, READER):
            raise Refusal(401, "Invalid username or password.")
        if self.token == READER or namespace != SHARED:
            raise Refusal(403, f"You don't have the rights to create a model under the namespace {namespace!r}.")

    def find(self, repo: str) -> Repo:
        found = self.server.repos.get(repo)
        if found is None:
            raise Refusal(401 if not self.token else 404, "Repository not found", "RepoNotFound")
        return found

    def find_tree(self, repo: str, rev: str) -> tuple[str, dict[str, bytes]]:
        tree = self.find(repo).tree(rev)
        if tree is None:
            raise Refusal(404, "Invalid rev id: " + rev, "RevisionNotFound")
        return tree

    # ------------------------------------------------------------------------------------------------------ writing

    def create(self, body: bytes, fault: Fault | None) -> None:
        asked = json.loads(body)
        namespace = asked.get("organization") or SHARED
        self.require_writer(namespace)
        repo_id = f"{namespace}/{asked['name']}"
        kind = asked.get("type") or "model"
        if kind == "space" and not asked.get("sdk"):
            raise Refusal(400, "a Space needs an sdk")
        repo_id = repo_id if kind == "model" else f"{kind}s/{repo_id}"
        if repo_id in self.server.repos:
            raise Refusal(409, "You already created this model repo", url=f"{self.server.url}/{repo_id}")
        repo = Repo(private=asked.get("visibility") == "private" or bool(asked.get("private")))
        repo.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        self.server.repos[repo_id] = repo
        self.send_json({"url": f"{self.server.url}/{repo_id}", "name": repo_id, "id": repo_id})

    def validate(self, body: bytes, fault: Fault | None) -> None:
        self.send_json({"errors": [], "warnings": []})

    def preupload(self, body: bytes, repo: str, rev: str, fault: Fault | None) -> None:
        self.require_writer(repo.split("/")[-2])
        _, tree = self.find_tree(repo, rev)
        files = []
        for path in (file["path"] for file in json.loads(body)["files"]):
            files.append({"path": path, "uploadMode": "lfs" if is_large(path) else "regular", "shouldIgnore": False})
            if path in tree:
                files[-1]["oid"] = object_id(path, tree[path])
        self.send_json({"files": files})

    def batch(self, body: bytes, repo: str, fault: Fault | None) -> None:
        self.require_writer(repo.split("/")[-2])
        self.find(repo)
        objects = []
        for wanted in json.loads(body)["objects"]:
            if fault and fault.kind == "quota":
                wanted["error"] = {"code": 403, "message": fault.message}
            elif wanted["oid"] not in self.server.blobs:
                wanted["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{wanted['oid']}"}}
            objects.append(wanted)
        self.send_json({"transfer": "basic", "objects": objects})

    def store(self, body: bytes, oid: str, fault: Fault | None) -> None:
        self.server.blobs[oid] = body
        self.send_json({})

    def commit(self, body: bytes, repo: str, rev: str, fault: Fault | None) -> None:
        self.require_writer(repo.split("/")[-2])
        tree, message = dict(self.find_tree(repo, rev)[1]), ""
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            match entry["key"]:
                case "header":
                    message = value["summary"]
                case "file":
                    tree[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    if value["oid"] not in self.server.blobs:
                        raise Refusal(400, f"LFS object {value['oid']} is missing")
                    tree[value["path"]] = self.server.blobs[value["oid"]]
                case "deletedFile":
                    tree.pop(value["path"])
        new = self.find(repo).commit(rev, tree, message)
        url = f"{self.server.url}/{repo}/commit/{new}"
        self.send_json({"success": True, "commitOid": new, "commitUrl": url, "hookOutput": ""})

    def branch(self, body: bytes, repo: str, rev: str, fault: Fault | None) -> None:
        self.require_writer(repo.split("/")[-2])
        found = self.find(repo)
        if rev in found.branches:
            raise Refusal(409, "Reference already exists")
        found.branches[rev] = found.branches["main"]
        self.send_json({})

    # ------------------------------------------------------------------------------------------------------ reading

    def info(self, body: bytes, repo: str, fault: Fault | None, rev: str = "main") -> None:
        sha, tree = self.find_tree(repo, rev)
        facts = {"id": "/".join(repo.split("/")[-2:]), "sha": sha, "private": self.find(repo).private, "tags": []}
        self.send_json({**facts, "siblings": [{"rfilename": path} for path in tree]})

    def tree(self, body: bytes, repo: str, rev: str, folder: str, fault: Fault | None) -> None:
        """Lists all files of a folder, however deep, or without `recursive` its files and folders."""
        _, tree = self.find_tree(repo, rev)
        below = f"{folder}/" if folder else ""
        if below and not any(path.startswith(below) for path in tree):
            raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
        entries: list[dict[str, Any]] = []
        for path, content in tree.items():
            child, inside, _ = path.removeprefix(below).partition("/")
            if not path.startswith(below):
                continue
            if inside and "recursive=false" in self.path.lower():
                directory = {"type": "directory", "path": below + child, "oid": object_id(child, b""), "size": 0}
                entries += [directory] if directory not in entries else []
                continue
            facts = {"oid": object_id(path, content), "size": len(content)}
            large = {"lfs": {**facts, "pointerSize": 134}} if is_large(path) else {}
            entries.append({"type": "file", "path": path, **facts, **large})
        self.send_json(entries)

    def resolve(self, body: bytes, repo: str, rev: str, path: str, fault: Fault | None) -> None:
        sha, tree = self.find_tree(repo, rev)
        headers = {"X-Repo-Commit": sha}
        if path not in tree:
            self.send_json({"error": "Entry not found"}, 404, {**headers, "X-Error-Code": "EntryNotFound"})
            return
        content = tree[path]
        etag = object_id(path, content)
        headers |= {"ETag": f'"{etag}"', "X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{etag}"'}
        self.send_head(200, len(content), "application/octet-stream", headers)
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_json(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(content).encode()
        self.send_head(status, len(text), "application/json", headers or {})
        if self.command != "HEAD":
            self.wfile.write(text)

    def send_head(self, status: int, length: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
