"""The API server of a cluster for tests: answers requests, and refuses some of them."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class ApiHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster = None

    def log_message(self, *args):
        pass

    def do_GET(self):
        self._answer("get")

    def do_POST(self):
        self._answer("create")

    def do_DELETE(self):
        self._answer("delete")

    def _answer(self, method):
        cluster = self.cluster
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        match = re.fullmatch(
            r"/apis?/(?:([\w.-]+)/)?\w+/namespaces/([^/]+)/(\w+)(?:/([^/]+))?(/log)?", url.path
        )
        group, namespace, plural, name, log = match.groups()
        verb = method if method != "get" or name else "list"
        resource = plural + (log or "")
        cluster.requests.append((verb, resource, name, query))
        cluster.rights_used.add((group or "", resource, verb))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            try:
                if cluster.fails > 0:
                    cluster.fails -= 1
                    raise Refused(503, "the server is busy")
                if cluster.is_locked:
                    raise Refused(401, "Unauthorized")
                if f"{verb} {resource}" in cluster.forbidden:
                    raise Refused(
                        403,
                        f'{plural} is forbidden: User "u" cannot {verb} resource "{resource}" in '
                        f'API group "{group or ""}" in the namespace "{namespace}"',
                    )
                if plural in cluster.missing:
                    return self._send(404, b"404 page not found\n")
                if log:
                    return self._send_log(name, query)
                reply = self._reply(verb, namespace, plural, name, query, body)
                self._send(200, json.dumps(reply).encode())
            except Refused as error:
                status = {"kind": "Status", "code": error.status, "message": str(error)}
                self._send(error.status, json.dumps(status).encode())
        return None

    def _reply(self, verb, namespace, plural, name, query, body):
        cluster = self.cluster
        if verb == "create":
            assert query["fieldValidation"] == "Strict"
            return cluster.create(plural, namespace, json.loads(body), "dryRun" in query)
        with cluster.lock:
            if verb == "delete":
                cluster.delete(plural, name)
                return {"kind": "Status", "status": "Success"}
            if plural == "pods":
                cluster.listed.notify_all()
                wanted = dict(part.split("=") for part in query["labelSelector"].split(","))
                return {
                    "items": [
                        copy.deepcopy(pod.manifest)
                        for pod in cluster.pods
                        if wanted.items() <= pod.manifest["metadata"]["labels"].items()
                    ]
                }
            if plural == "events":
                name = re.search(r"involvedObject.name=([^,]+)", query["fieldSelector"])[1]
                return {"items": [e for e in cluster.events if re.fullmatch(e["about"], name)]}
            found = cluster.get(plural, name)
            if found is None:
                raise Refused(404, f'{plural} "{name}" not found')
            return copy.deepcopy(found)

    def _send(self, status, data):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_log(self, name, query):
        with self.cluster.lock:
            pod = next((pod for pod in self.cluster.pods if pod.name == name), None)
        if pod is None:
            raise Refused(404, f'pods "{name}" not found')
        if pod.log is None and pod.code is None:
            raise Refused(400, f'container "node" in pod "{name}" is waiting to start')
        if pod.log is None:  # the kubelet has no file
            return self._send(200, b"unable to retrieve container logs for containerd://1")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        since = query.get("sinceSeconds")
        lines = pod.log.follow(None if since is None else int(since), query.get("follow") == "true")
        for number, line in enumerate(lines):
            if number == self.cluster.cut_logs_after:
                self.cluster.cut_logs_after = None
                self.close_connection = True
                return None
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")
        return None
