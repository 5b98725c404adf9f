"""The agent as the child of an actor."""

import os
import signal
import sys

from plaunch_engines.ray_actor import AgentActor, clean_environment


def test_the_environment_of_a_ray_worker_is_cleaned():
    assert clean_environment(
        {
            "RAY_JOB_ID": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
            "CUDA_VISIBLE_DEVICES": "",
            "HIP_VISIBLE_DEVICES": "2,3",
            "PATH": "/bin",
        }
    ) == {"HIP_VISIBLE_DEVICES": "2,3", "PATH": "/bin"}


def test_output_is_read_in_bounded_parts_to_its_end():
    agent = AgentActor()
    agent.start_process(
        [sys.executable, "-c", "import sys; print('x' * 200_000); sys.stderr.write(input())"]
    )
    agent.write(b"told\n")
    out, err, code, is_over = b"", b"", None, False
    while not is_over:
        more_out, more_err, code, is_over = agent.read()
        assert len(more_out) <= 32 << 10
        out, err = out + more_out, err + more_err
    assert (out, err, code) == (b"x" * 200_000 + b"\n", b"told", 0)
    agent.write(b"it has ended\n")


def test_an_agent_that_is_stopped():
    agent = AgentActor()
    agent.start_process(["sleep", "600"])
    agent.stop()
    while not (found := agent.read())[3]:
        pass
    assert found[2] == 128 + signal.SIGKILL


def test_a_process_that_holds_the_streams_does_not_hold_up_the_end():
    agent = AgentActor()
    agent.start_process(["sh", "-c", "sleep 600 & echo $!; exit 3"])
    out, is_over = b"", False
    while not is_over:
        more, _, code, is_over = agent.read()
        out += more
    os.kill(int(out), signal.SIGKILL)
    assert code == 3
