"""Is the mechanism what it says? Lower bounds on ε, and tests of the noise itself."""
