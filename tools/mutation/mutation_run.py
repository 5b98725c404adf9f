"""The changes that one command chooses, and what became of them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mutator import Result

if TYPE_CHECKING:
    from pathlib import Path

    from mutations import Mutation


@dataclass
class MutationRun:
    """The changes that one command chooses, and what became of them; kept in a file.

    Args:
        path: the file, with JSON lines.
        chosen: the changes, in the order in which they run.
        results: of those that have run, by key.
        survivors: those that have survived at least once, by key.
    """

    path: Path
    chosen: list[Mutation]
    results: dict[tuple[str, ...], Result] = field(default_factory=dict)
    survivors: set[tuple[str, ...]] = field(default_factory=set)

    @classmethod
    def choose(cls, path: Path, all_of_them: list[Mutation], lines: int, seed: int) -> MutationRun:
        """Choose random lines, and a random change of each."""
        by_line: dict[tuple[str, int], list[Mutation]] = {}
        for mutation in all_of_them:
            by_line.setdefault((mutation.module, mutation.number), []).append(mutation)
        chance = random.Random(seed)  # noqa: S311 - not for secrets
        chosen = chance.sample(sorted(by_line), min(lines, len(by_line)))
        run = cls(path, [chance.choice(by_line[line]) for line in chosen])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([each.key for each in run.chosen]) + "\n")
        return run

    @classmethod
    def resume(cls, path: Path, all_of_them: list[Mutation]) -> MutationRun:
        """Read the changes that were chosen, as far as their lines still exist."""
        by_key = {each.key: each for each in all_of_them}
        first, *others = path.read_text().splitlines()
        keys = [tuple(key) for key in json.loads(first)]
        run = cls(path, [by_key[key] for key in keys if key in by_key])
        for record in map(json.loads, others):
            key = tuple(record.pop("key"))
            run.note(key, Result(**record))
        return run

    def waiting(self) -> list[Mutation]:
        """Return the changes that have not run or have survived; the former first."""
        done = {key for key, result in self.results.items() if result.outcome == "killed"}
        open_ones = [each for each in self.chosen if each.key not in done]
        return sorted(open_ones, key=lambda each: each.key in self.results)

    def note(self, key: tuple[str, ...], result: Result) -> None:
        """Take a result."""
        self.results[key] = result
        if result.outcome != "killed":
            self.survivors.add(key)

    def add(self, mutation: Mutation, result: Result) -> None:
        """Keep a result."""
        self.note(mutation.key, result)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": mutation.key, **vars(result)}) + "\n")
