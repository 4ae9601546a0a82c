"""What every room stands on: errors with numbers, value types, randomness, canonical JSON."""
