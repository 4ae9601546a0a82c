"""sequester trains models on people's sequences with a guarantee about the person."""

__version__ = "0.1.0"
