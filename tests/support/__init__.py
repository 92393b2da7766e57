"""Real servers, real processes and waiting for named moments, which the tests use."""
