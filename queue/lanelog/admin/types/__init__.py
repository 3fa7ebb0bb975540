"""The values that administration returns.

Owns their fields and units. No SQL; only behaviour that follows from the fields. Import them from `lanelog.admin`.
"""
