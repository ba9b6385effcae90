"""An object store on this machine, in memory: as much of Google Cloud Storage's JSON API as runs use.

python tests/object_store.py PORT
"""

import base64
import hashlib
import http.server
import itertools
import json
import re
import sys
import threading
import urllib.parse

OBJECTS = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/(.+)")
COPIES = re.compile(r"/storage/v1/b/[^/]+/o/([^/]+)/(?:rewriteTo|copyTo)/b/[^/]+/o/([^/]+)")
MISSING = {"error": {"code": 404, "message": "No such object"}}
CHANGED = {"error": {"code": 412, "message": "conditionNotMet"}}


class Server(http.server.ThreadingHTTPServer):
    """Objects by name, whichever bucket they are asked of, each with the generation that its last write made."""

    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.objects, self.uploads, self.numbers = {}, {}, itertools.count(1)
        self.lock = threading.RLock()

    @property
    def environment(self):
        """What leads gcsfs and TensorStore here, and lets them find no credentials at once."""
        address = f"http://127.0.0.1:{self.server_port}"
        return {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GCE_METADATA_ROOT": f"127.0.0.1:{self.server_port}",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def handle_error(self, request, client_address):
        """A client that was killed."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *message):
        pass

    def _handle(self):
        url = urllib.parse.urlsplit(self.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        body = self._body()
        with self.server.lock:
            if url.path.endswith("/o") and "upload/" in url.path:
                self._upload(query, body)
            elif copied := COPIES.fullmatch(url.path):
                self._copy(*map(urllib.parse.unquote, copied.groups()))
            elif found := OBJECTS.fullmatch(url.path):
                self._object(urllib.parse.unquote(found[2]), query)
            elif url.path.endswith("/o"):
                self._list(query)
            elif not url.path.startswith("/storage/"):
                self._answer(404, MISSING)
            else:
                self._answer(200, {"name": url.path.rpartition("/")[2], "locationType": "region"})

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status, content=b"", headers=()):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (*headers, ("Content-Type", "application/json"), ("Content-Length", len(content))):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def _about(self, name):
        generation, content = self.server.objects[name]
        digest = base64.b64encode(hashlib.md5(content).digest()).decode()
        known = {"name": name, "bucket": "bucket", "size": str(len(content)), "md5Hash": digest}
        return {**known, "generation": str(generation), "updated": "2026-01-01T00:00:00.000Z"}

    def _list(self, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        names, folders = [], set()
        for name in sorted(self.server.objects):
            inside, is_folder, _ = name.removeprefix(prefix).partition(delimiter or "\0")
            if name.startswith(prefix) and is_folder:
                folders.add(prefix + inside + delimiter)
            elif name.startswith(prefix):
                names.append(name)
        self._answer(200, {"items": list(map(self._about, names)), "prefixes": sorted(folders)})

    def _object(self, name, query):
        if name not in self.server.objects:
            return self._answer(404, MISSING)
        generation, content = self.server.objects[name]
        if query.get("ifGenerationMatch", str(generation)) != str(generation):
            return self._answer(412, CHANGED)
        if self.command == "DELETE":
            del self.server.objects[name]
            return self._answer(204)
        if query.get("ifGenerationNotMatch") == str(generation):
            return self._answer(304)
        if query.get("alt") != "media":
            return self._answer(200, self._about(name))
        headers = [("X-Goog-Generation", generation), ("X-Goog-Stored-Content-Length", len(content))]
        first, last = self._range(len(content))
        if (first, last) == (0, len(content) - 1):
            return self._answer(200, content, headers)
        headers.append(("Content-Range", f"bytes {first}-{last}/{len(content)}"))
        self._answer(206, content[first : last + 1], headers)

    def _range(self, size):
        """The first and last byte that are asked for."""
        first, last = (re.findall(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")) or [("", "")])[0]
        if first:
            return int(first), min(int(last or size), size - 1)
        return (size - int(last), size - 1) if last else (0, size - 1)

    def _put(self, name, content, query):
        generation = self.server.objects.get(name, (0,))[0]
        if query.get("ifGenerationMatch", str(generation)) != str(generation):
            return self._answer(412, CHANGED)
        self.server.objects[name] = next(self.server.numbers), content
        self._answer(200, self._about(name))

    def _copy(self, source, target):
        if source not in self.server.objects:
            return self._answer(404, MISSING)
        self.server.objects[target] = next(self.server.numbers), self.server.objects[source][1]
        self._answer(200, {"done": True, "resource": self._about(target)})

    def _upload(self, query, body):
        if query["uploadType"] == "media":
            return self._put(query["name"], body, query)
        if query["uploadType"] == "multipart":
            _, about, content, _ = body.split(b"--" + re.findall(rb"^--(.+?)\r?$", body, re.MULTILINE)[0])
            about, content = (part.replace(b"\r\n", b"\n", 3).partition(b"\n\n")[2] for part in (about, content))
            return self._put(json.loads(about)["name"], content.removesuffix(b"\n").removesuffix(b"\r"), query)
        if "upload_id" not in query:
            number = str(next(self.server.numbers))
            self.server.uploads[number] = query.get("name") or json.loads(body)["name"], b""
            to = f"http://{self.headers['Host']}/upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id={number}"
            return self._answer(200, {}, [("Location", to)])
        name, before = self.server.uploads[query["upload_id"]]
        self.server.uploads[query["upload_id"]] = name, before + body
        size = self.headers.get("Content-Range", "*").rpartition("/")[2]
        if size == "*" or int(size) > len(before + body):
            return self._answer(308, b"", [("Range", f"bytes=0-{len(before + body) - 1}")])
        self._put(name, before + body, query)


if __name__ == "__main__":
    Server(int(sys.argv[1])).serve_forever()
