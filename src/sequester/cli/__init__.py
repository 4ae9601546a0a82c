"""The door: one file per verb; arguments, progress and exit codes, no logic."""
