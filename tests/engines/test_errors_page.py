"""The page of errors lists what `--on` can say, in these words."""

import ast
import re
from pathlib import Path

import plaunch_engines
import pytest

PAGE = Path(__file__).parents[2] / "docs/errors.md"


def rows():
    section = PAGE.read_text().partition("## When nodes do not start\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| .+ \| .+ \|$", section, re.MULTILINE)
    return [row for row in found if row != "the message contains"]


def texts():
    """Return all texts in the code, in which each value is a mark."""
    for path in Path(plaunch_engines.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    part.value if isinstance(part, ast.Constant) else "\0" for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


TEXTS = list(texts())


@pytest.mark.parametrize("row", rows())
def test_a_message_of_the_page_is_in_the_code(row):
    # "..." stands for one value or several, also at the ends.
    pattern = ".*".join(re.escape(part) for part in row.split("..."))
    assert any(re.search(pattern, text, re.DOTALL) for text in TEXTS), row


def test_there_are_such_messages():
    assert len(rows()) > 30
