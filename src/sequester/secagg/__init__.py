"""Secure aggregation: the server learns the sum of the members' vectors and nothing else."""
