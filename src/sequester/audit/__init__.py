"""Attack what was built: ε lower bounds, membership, inversion and uniqueness.

Every result names the attacker it models, an interval, and what it could not have found.
"""
