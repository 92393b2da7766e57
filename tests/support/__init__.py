"""Real servers, real processes and functions that wait for a moment, which the tests use."""
