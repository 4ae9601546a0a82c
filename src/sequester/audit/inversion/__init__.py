"""Can somebody rebuild a client's windows from its update?"""
