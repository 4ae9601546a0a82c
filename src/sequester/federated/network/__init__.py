"""Rounds between machines, whatever carries the bytes: frames, the node's office, the server's.

Nothing here knows Flower; `federated/flower/` carries these frames as its messages.
"""
