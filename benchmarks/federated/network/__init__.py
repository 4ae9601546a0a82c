"""Rounds between machines: storms of faults, and what a round costs."""
