"""A kubelet for tests: runs the container of each pod as a process in namespaces of its own."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_SETUP = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
_SCHEDULING = 0.3  # seconds until a pod has a machine
_PULL = 0.3  # seconds between two states of a pod that waits
_BACK_OFF = 0.3  # seconds until a container is restarted


def now(digits=0):
    """Return the time as Kubernetes writes it."""
    moment = datetime.datetime.now(datetime.timezone.utc)
    fraction = f".{moment.microsecond:06}000" if digits else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def expand(text, values):
    """Replace `$(NAME)` and `$$` as the kubelet does."""
    return re.sub(
        r"\$(?:\$|\((\w+)\))",
        lambda m: "$" if m[1] is None else str(values.get(m[1], m[0])),
        text,
    )


class ContainerLog:
    """What a container has written."""

    def __init__(self):
        self.lines = []  # time stamp, text
        self.is_ended = False
        self._changed = threading.Condition()

    def write(self, line):
        with self._changed:
            self.lines.append((now(9), line))
            self._changed.notify_all()

    def end(self):
        with self._changed:
            self.is_ended = True
            self._changed.notify_all()

    def follow(self, since, is_followed):
        """Yield the log, each line after its time stamp, until the container has ended."""
        first = time.time() - since if since is not None else 0
        oldest = datetime.datetime.fromtimestamp(first, datetime.timezone.utc)
        oldest = f"{oldest:%Y-%m-%dT%H:%M:%S}"
        place = 0
        while True:
            with self._changed:
                if is_followed:
                    while len(self.lines) == place and not self.is_ended:
                        self._changed.wait()
                lines = self.lines[place:]
                is_ended = self.is_ended
            place += len(lines)
            yield from (f"{s} ".encode() + line for s, line in lines if s >= oldest)
            if not lines and (is_ended or not is_followed):
                return


class Pod:
    """A pod and its container.

    Args:
        cluster: has `objects`, `images`, `root_images`, `lock`, `wait_for_list()` and
            `hosts_of(pod)`.
        manifest: the pod as the API returns it; its status is updated.
        within: the command prefix of the pod's network.
        folder: the working folder of the container.
    """

    def __init__(self, cluster, manifest, within, folder):
        self.cluster, self.manifest, self._within, self._folder = cluster, manifest, within, folder
        self.log = None  # of the container that runs, or ran last
        self.is_ended = False
        self.restarts = 0
        self._last_state = {}
        self._process = None
        self._is_stopping = threading.Event()
        self._grace = manifest["spec"].get("terminationGracePeriodSeconds", 30)
        self.thread = threading.Thread(target=self._run, daemon=True)

    @property
    def name(self):
        return self.manifest["metadata"]["name"]

    @property
    def code(self):
        statuses = self.manifest["status"].get("containerStatuses", [])
        return next(
            (each["state"].get("terminated", {}).get("exitCode") for each in statuses), None
        )

    def set_state(self, phase, **state):
        status = {"name": "node", "state": state, "restartCount": self.restarts}
        with self.cluster.lock:
            self.manifest["status"] = {
                "phase": phase,
                "containerStatuses": [{**status, "lastState": self._last_state}],
            }

    def _container(self):
        return next(c for c in self.manifest["spec"]["containers"] if c["name"] == "node")

    def _run(self):
        try:
            self._is_stopping.wait(_SCHEDULING)
            while True:
                argv, env = self._wait_for_start()
                if argv is None:
                    return self._end(128 + signal.SIGKILL, has_run=False)
                ended = self._run_container(argv, env)
                is_restarted = self.manifest["spec"]["restartPolicy"] == "OnFailure"
                if not ended["exitCode"] or not is_restarted or self._is_stopping.is_set():
                    return self._end(**ended)
                self._last_state = {"terminated": ended}
                waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting"}
                self.set_state("Running", waiting=waiting)
                self.cluster.wait_for_list()  # the real delay is much longer
                self._is_stopping.wait(_BACK_OFF)
                if self._is_stopping.is_set():
                    return self._end(**ended)
                self.restarts += 1
                self.cluster.container_restarts(self)
        except Exception as error:
            self.log = self.log or ContainerLog()
            self.log.write(f"fake kubelet: {error!r}\n".encode())
            self._end(128)
            raise

    def _run_container(self, argv, env):
        """Run the container to its end; return the state of a container that has ended."""
        if shutil.which(argv[0], path=env["PATH"]) is None:
            text = f'exec: "{argv[0]}": executable file not found in $PATH'
            return {
                "exitCode": 128, "finishedAt": now(), "reason": "StartError",
                "message": f"failed to create containerd task: {text}\nunknown",
            }  # fmt: skip
        hosts = Path(self._folder, f"hosts-{self.name}")
        hosts.write_text(self.cluster.hosts_of(self))
        log = ContainerLog()
        self._process = subprocess.Popen(
            [
                *self._within, "unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc",
                "--kill-child=SIGKILL", "sh", "-c", _SETUP, "sh", env["HOSTNAME"], hosts, *argv,
            ],
            cwd=self._folder, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.log = log
        self.set_state("Running", running={"startedAt": now()})
        for line in self._process.stdout:
            log.write(line)
        self._process.stdout.close()
        code = self._process.wait()
        log.end()
        code = code if code >= 0 else 128 - code
        reason = "Completed" if not code else "Error" if code != 137 else "OOMKilled"
        return {"exitCode": code, "finishedAt": now(), "reason": reason}

    def _wait_for_start(self):
        """Return the command and the environment, once they are known; None if it is stopped."""
        while not self._is_stopping.is_set():
            container = self._container()
            if container["image"] not in self.cluster.images:
                for reason in ("ErrImagePull", "ImagePullBackOff"):
                    text = f"pull of {container['image']}: not found"
                    self.set_state("Pending", waiting={"reason": reason, "message": text})
                    self._is_stopping.wait(_PULL)
                continue
            forbids_root = self.manifest["spec"].get("securityContext", {}).get("runAsNonRoot")
            if forbids_root and container["image"] in self.cluster.root_images:
                text = "container has runAsNonRoot and image will run as root"
                waiting = {"reason": "CreateContainerConfigError", "message": text}
                self.set_state("Pending", waiting=waiting)
                self._is_stopping.wait(_PULL)
                continue
            try:
                env = self._environment(container)
            except KeyError as error:
                waiting = {"reason": "CreateContainerConfigError", "message": error.args[0]}
                self.set_state("Pending", waiting=waiting)
                self._is_stopping.wait(_PULL)
                continue
            words = [*container["command"], *container.get("args", [])]
            return [expand(word, env) for word in words], env
        return None, {}

    def _environment(self, container):
        metadata, spec = self.manifest["metadata"], self.manifest["spec"]
        own = {**metadata["labels"], **metadata["annotations"]}
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOSTNAME": spec["hostname"],
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "PYTHONUNBUFFERED": "1",
            "PLAUNCH_TEST_CLUSTER": str(self._folder),
        }
        for entry in container.get("env", []):
            if "value" in entry:
                env[entry["name"]] = expand(entry["value"], env)
                continue
            source = entry["valueFrom"]
            if "fieldRef" in source:
                key = re.fullmatch(r"metadata\.\w+\['(.*)'\]", source["fieldRef"]["fieldPath"])[1]
                env[entry["name"]] = own[key]
            else:
                ref = source["secretKeyRef"]
                secret = self.cluster.get("secrets", ref["name"])
                if secret is None:
                    raise KeyError(f'secret "{ref["name"]}" not found')
                env[entry["name"]] = secret["stringData"][ref["key"]]
        return env

    def _end(self, exitCode, has_run=True, **ended):
        if has_run:
            state = {"exitCode": exitCode, "finishedAt": now(), **ended}
            self.set_state("Failed" if exitCode else "Succeeded", terminated=state)
        if self.log is not None:
            self.log.end()
        self.is_ended = True
        self.cluster.pod_ended(self)

    def stop(self):
        """Send SIGTERM, and SIGKILL after the grace; returns at once."""
        if not self._is_stopping.is_set():
            self._is_stopping.set()
            threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self):
        self.signal(signal.SIGTERM)
        self.thread.join(self._grace)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def signal(self, signum):
        """Send a signal to the first process of the container."""
        if self._process is None:
            return
        pid = self._process.pid
        with contextlib.suppress(OSError, IndexError):  # it has ended
            child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            os.kill(int(child), signum)

    def kill_container(self):
        """Kill all processes of the container, as when memory runs out."""
        self._process.kill()

    def kill(self):
        """End the pod without grace, and wait for it."""
        self._is_stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self.thread.join(10)
