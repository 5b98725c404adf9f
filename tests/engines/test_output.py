"""`MergedOutput` writes the lines of all nodes."""

import os

from plaunch_engines.output import STDERR, STDOUT, MergedOutput


def test_lines_of_workers_go_to_the_given_descriptor():
    """Descriptor 1 of a command is a copy of stderr."""
    reader, writer = os.pipe()
    output = MergedOutput(lambda text, level: text, stdout=writer)
    output.write(STDOUT, "node1", b"trained\n")
    output.write(STDOUT, "node2", b"50 %")
    output.write(STDOUT, "node1", b"saved\n")
    assert output.finish(20)
    assert os.read(reader, 100) == b"[node1] trained\n[node2] 50 %\n[node1] saved\n"
    for fd in (reader, writer):
        os.close(fd)


def test_messages_go_to_stderr(capfd):
    output = MergedOutput(lambda text, level: f"{level} {text}")
    output.say("node1 is lost", "WARNING")
    output.write(STDERR, "node1", b"careful\n")
    assert output.finish(20)
    assert capfd.readouterr().err == "WARNING node1 is lost\n[node1] careful\n"
