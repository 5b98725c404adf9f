from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch.rendezvous import RendezvousConnectionError, RendezvousParameters
from plaunch_example_backend.backend import create_handler
from plaunch_example_backend.store import SqliteStore
from plaunch_testing.conformance import RendezvousConformance, RendezvousStoreConformance


class TestSqliteStore(RendezvousStoreConformance):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = str(tmp_path / "store.db")

    def connect(self):
        return SqliteStore(self.path)


class TestSqliteBackend(RendezvousConformance):
    backend = "sqlite"

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.endpoint = str(tmp_path / "store.db")

    def create(self, params):
        return create_handler(params)


def test_a_path_is_needed():
    with pytest.raises(UsageError, match="give it with --rdzv-endpoint"):
        create_handler(RendezvousParameters("sqlite", "", "job", 1, 1))


def test_the_folder_must_exist(tmp_path):
    endpoint = str(tmp_path / "missing" / "store.db")
    with pytest.raises(UsageError, match=r"missing/store\.db.* does not exist"):
        create_handler(RendezvousParameters("sqlite", endpoint, "job", 1, 1))


def test_an_unknown_option_is_refused(tmp_path):
    params = RendezvousParameters("sqlite", str(tmp_path / "store.db"), "job", 1, 1, busy_timout=1)
    with pytest.raises(UsageError, match="did you mean 'busy_timeout'"):
        create_handler(params)


def test_a_file_that_is_not_a_database_is_named(tmp_path):
    path = tmp_path / "store.db"
    path.write_text("this text is long enough for SQLite to read it as a database")
    with pytest.raises(RendezvousConnectionError, match=r"store\.db' does not answer"):
        SqliteStore(str(path))
