"""The conformance suites for tests of plugins, and the code of `--check-plugin`.

Everything but `plaunch_testing.check.run_check` needs pytest.
"""
