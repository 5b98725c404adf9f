"""The engine: one container on this machine for each agent."""

from __future__ import annotations

import logging
import shlex
import signal
import subprocess
from collections.abc import Sequence

from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch_engines import AgentProcess, parse_count

ANSWER_TIMEOUT = 20.0  # seconds for podman to look up an image
REMOVAL_TIMEOUT = 10.0  # seconds for containers to be removed at the end of the job
REMOVE = ("rm", "--force", "--ignore", "--time=0")
KILLED = 128 + signal.SIGKILL


class Container(AgentProcess):
    """An agent in a container, and the process `podman run` that is connected to it.

    Args:
        node: the name of the node, for messages.
        name: the name of the container.
        words: the options of `podman run`, the image and the agent's command.
    """

    def __init__(self, node: str, name: str, words: Sequence[str]) -> None:
        run = ("podman", "run", "--rm", "--interactive", f"--name={name}")
        super().__init__(node, [*run, *words], address="127.0.0.1")
        self.name = name
        self._removal: subprocess.Popen[bytes] | None = None

    def poll(self) -> int | None:
        """Return the exit code of the agent, which is that of `podman run`.

        If `podman run` itself was killed, as by `stop`, the container may still run: remove it.
        """
        code = super().poll()
        if code == KILLED and self._removal is None:
            self._removal = subprocess.Popen(
                ["podman", *REMOVE, self.name],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        return code


class PodmanEngine:
    """Starts containers that share the network and the working folder of this machine.

    Args:
        request: `where` is the number of containers; by default that of `--nnodes`.

    Raises:
        UsageError: the number or an option is invalid, or podman or the image is missing.
    """

    can_replace = True

    def __init__(self, request: EngineRequest) -> None:
        self.nodes = parse_count("podman", request.where)
        self._job = request.job
        self._words = [
            *("--network=host", "--pull=never", "--log-driver=none"),
            f"--volume={request.folder}:{request.folder}",
            *parse_options(request.options.get("podman_options") or ()),
            find_image(request.options.get("podman_image")),
        ]
        self._containers: list[Container] = []

    def start(self, command: Sequence[str], indices: Sequence[int]) -> list[Container]:
        """Start a container for each index."""
        for i in indices:
            words = [*self._words, *command]
            self._containers.append(Container(f"podman{i}", f"{self._job}-{i}", words))
        return self._containers[-len(indices) :]

    def close(self) -> None:
        """Remove the containers that are left."""
        containers, self._containers = self._containers, []
        if not containers:
            return
        for container in containers:
            container.stop()
        try:
            ask_podman(REMOVAL_TIMEOUT, *REMOVE, *(container.name for container in containers))
        except subprocess.TimeoutExpired:
            logging.getLogger("plaunch").warning(
                "podman has not removed the containers %s-*; check with podman ps", self._job
            )


def parse_options(texts: Sequence[str]) -> list[str]:
    """Return the words of `--podman-options`.

    Raises:
        UsageError: they cannot be split.
    """
    try:
        return [word for text in texts for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(f"--podman-options: {error}") from None


def find_image(image: str | None) -> str:
    """Return the image, if podman has it.

    Raises:
        UsageError: it does not, or podman is missing or does not answer.
    """
    if not image:
        raise UsageError("--on=podman needs an image with plaunch: --podman-image=IMAGE")
    try:
        found = ask_podman(ANSWER_TIMEOUT, "image", "exists", image)
    except FileNotFoundError:
        raise UsageError("--on=podman needs the program podman, which is not in PATH") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"podman has not answered within {ANSWER_TIMEOUT:g} s") from None
    if found.returncode == 1:
        raise UsageError(
            f"--podman-image: podman has no image {image!r} on this machine; get it with "
            f"podman pull {shlex.quote(image)}"
        )
    if found.returncode:
        raise UsageError(f"podman does not work here: {found.stderr.strip()}")
    return image


def ask_podman(timeout: float, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of podman to its end."""
    return subprocess.run(
        ["podman", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
