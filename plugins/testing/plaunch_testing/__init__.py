"""For the tests of plugins: the conformance suites, and what runs them for `--check-plugin`.

Everything but `plaunch_testing.check.run_check` needs pytest.
"""
