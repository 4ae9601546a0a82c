"""Can somebody tell whether a person took part?"""
