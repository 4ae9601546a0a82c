"""Glucose of 443 people at 8 real sites: will it be ≥ 140 mg/dl in 30 minutes?"""
