"""The conformance suite for engines that connect each agent with the command."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import TYPE_CHECKING, ClassVar

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError

from plaunch_testing.conformance.plugin_suite import PluginSuite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.engines import AgentHandle, Engine
    from plaunch.plugin import EngineFactory

_ECHO = "import sys; [print(line, end='', flush=True) for line in sys.stdin]"
_BOTH = "import sys; print('out', flush=True); print('err', file=sys.stderr, flush=True)"
_LINE = 200_000  # bytes, more than a pipe holds


class EngineConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    The engine must be usable: the suite starts small programs on its nodes, with this Python. One
    of them writes into the folder of the request.

    Attributes:
        where: the text after the colon of `--on`.
        nodes: the number of nodes that the suite uses, at least 2.
        seconds: for each call, which must not block.
        end: seconds for an agent to start or to end.
    """

    where: ClassVar[str] = ""
    nodes: ClassVar[int] = 2
    end: ClassVar[float] = 20.0
    options: ClassVar[Mapping[str, object]] = {}

    def plugin(self) -> EngineFactory:
        """Return the object that the engine's name refers to; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _end_engines(self, _surroundings: None) -> Iterator[None]:
        self._engines: list[Engine] = []
        self._handles: list[AgentHandle] = []
        yield
        for engine in self._engines:
            engine.close()
        for handle in self._handles:
            handle.close()

    def request(self) -> EngineRequest:
        """Return the request of a job of `nodes` nodes."""
        return EngineRequest(
            where=self.where,
            min_nodes=self.nodes,
            max_nodes=self.nodes,
            folder=self.folder,
            options=self.options,
            job="plaunch-conformance",
        )

    def engine(self) -> Engine:
        """Create the engine; it is closed after the test."""
        try:
            engine: Engine = self.thing(self.request())
        except UsageError as error:
            pytest.skip(f"it cannot be used here: {error}")
        if not hasattr(engine, "start"):
            pytest.skip("it is a BatchEngine, which starts no agents itself")
        self._engines.append(engine)
        return engine

    def start(self, program: str, indices: Sequence[int] = (0,)) -> list[AgentHandle]:
        """Start a program on nodes."""
        engine = self.engine()
        command = [sys.executable, "-c", program]
        handles = list(self.call("start()", engine.start, command, indices))
        self._handles += handles
        return handles

    def use_once(self) -> object:
        """Start one agent, and read it to its end."""
        (handle,) = self.start(_BOTH)
        return handle, self.read(handle, handle.stdout), self.exit_of(handle)

    def end_use(self) -> None:
        """Close the engine."""
        for engine in self._engines:
            engine.close()

    def read(
        self, handle: AgentHandle, fd: int, until: Callable[[bytes], bool] | None = None
    ) -> str:
        """Read a descriptor to its end, or until a condition holds."""
        data = b""
        deadline = time.monotonic() + self.end
        while until is None or not until(data):
            handle.poll()  # writes what has not fitted into a pipe
            ready = select.select([fd], [], [], 0.1)[0]
            if ready:
                with contextlib.suppress(BlockingIOError):
                    part = os.read(fd, 65536)
                    if not part:
                        break
                    data += part
            if time.monotonic() > deadline:
                pytest.fail(f"after {self.end:g} s, {handle.node} has written {data[-300:]!r}")
        return data.decode()

    def exit_of(self, handle: AgentHandle) -> int:
        """Wait for the exit of an agent, and return its code."""
        deadline = time.monotonic() + self.end
        while (code := self.call("poll()", handle.poll)) is None:
            if time.monotonic() > deadline:
                pytest.fail(f"the agent on {handle.node} has not ended within {self.end:g} s")
            time.sleep(0.02)
        return code

    # --- tests ------------------------------------------------------------------------------------

    def test_its_attributes_are_valid(self) -> None:
        """`nodes` is a number of nodes or None, `can_replace` is a bool."""
        engine = self.engine()
        assert engine.nodes is None or engine.nodes >= self.nodes, f"nodes is {engine.nodes!r}"
        assert isinstance(engine.can_replace, bool), f"can_replace is {engine.can_replace!r}"

    def test_each_index_has_its_own_agent(self) -> None:
        """The handles are in the order of the indices, with different names."""
        handles = self.start("import os; print(os.getpid())", range(self.nodes))
        assert len(handles) == self.nodes
        assert len({handle.node for handle in handles}) == self.nodes, "nodes share a name"
        for handle in handles:
            assert isinstance(handle.address, str)
            assert self.read(handle, handle.stdout).strip().isdigit()
            assert self.exit_of(handle) == 0

    def test_the_streams_are_separate(self) -> None:
        """Output and errors of the agent arrive at the descriptors of the handle."""
        (handle,) = self.start(_BOTH)
        assert self.read(handle, handle.stdout) == "out\n"
        assert "err\n" in self.read(handle, handle.stderr)

    @pytest.mark.parametrize("code", [0, 3, 115])
    def test_the_exit_code_is_that_of_the_agent(self, code: int) -> None:
        """Any code arrives."""
        (handle,) = self.start(f"raise SystemExit({code})")
        assert self.exit_of(handle) == code

    def test_what_is_written_arrives(self) -> None:
        """In order and at once, also if it is more than a pipe holds."""
        (handle,) = self.start(_ECHO)
        self.call("write()", handle.write, b"one\n")
        self.read(handle, handle.stdout, lambda data: data == b"one\n")
        self.call("write()", handle.write, b"x" * _LINE + b"\ntwo\n")
        text = self.read(handle, handle.stdout, lambda data: data.endswith(b"\ntwo\n"))
        assert len(text) == _LINE + 5

    def test_much_output_arrives_whole(self) -> None:
        """Nothing is lost between the exit of the agent and the end of its streams."""
        count = 50_000
        (handle,) = self.start(f"[print(i) for i in range({count})]")
        assert self.read(handle, handle.stdout).split() == [str(i) for i in range(count)]
        assert self.exit_of(handle) == 0

    def test_stop_ends_an_agent(self) -> None:
        """Even one that ignores signals; the others continue."""
        program = (
            "import signal, sys\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('ready', flush=True)\n"
            "for line in sys.stdin: print(line, end='', flush=True)\n"
        )
        first, second = self.start(program, (0, 1))
        for handle in (first, second):
            self.read(handle, handle.stdout, lambda data: data == b"ready\n")
        self.call("stop()", first.stop)
        self.call("a second stop()", first.stop)
        assert self.exit_of(first) != 0
        self.call("write() to an agent that has ended", first.write, b"late\n")
        second.write(b"here\n")
        self.read(second, second.stdout, lambda data: data == b"here\n")

    def test_standard_input_ends_with_the_handle(self) -> None:
        """That is how an agent learns that the command has ended."""
        path = os.path.join(self.folder, "ended")
        program = f"import sys; sys.stdin.read(); open({path!r}, 'w').close()"
        (handle,) = self.start(f"print('ready', flush=True)\n{program}")
        self.read(handle, handle.stdout, lambda data: data == b"ready\n")
        self._handles.remove(handle)
        self.call("close()", handle.close)
        deadline = time.monotonic() + self.end
        while not os.path.exists(path):
            if time.monotonic() > deadline:
                pytest.fail(
                    "the agent did not see the end of its standard input, or could not create "
                    f"{path}: nodes must have the folder of the request"
                )
            time.sleep(0.05)

    def test_closing_the_engine_ends_all_agents(self) -> None:
        """And may be repeated."""
        handles = self.start("import sys; print('ready', flush=True); sys.stdin.read()", (0, 1))
        for handle in handles:
            self.read(handle, handle.stdout, lambda data: data == b"ready\n")
        (engine,) = self._engines
        self.call("close()", engine.close)
        self.call("a second close()", engine.close)
        for handle in handles:
            self.exit_of(handle)

    def test_a_program_that_does_not_exist_ends_with_a_reason(self) -> None:
        """The code is not 0, and stderr names it; or `start` raises an OSError or UsageError."""
        engine = self.engine()
        try:
            handles = engine.start([os.path.join(self.folder, "missing")], (0,))
        except (OSError, ValueError):
            return
        self._handles += handles
        (handle,) = handles
        text = self.read(handle, handle.stderr)
        assert self.exit_of(handle) != 0
        assert "missing" in text, f"stderr has {text!r}"
