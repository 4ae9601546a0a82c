"""Flower's messages as our transport: the only folder that knows Flower.

Six public names are used, of `flwr.app`, `flwr.clientapp` and `flwr.serverapp`; a test holds this
folder to them, in every version of Flower that it is run with.
"""
