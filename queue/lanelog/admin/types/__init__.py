"""The values that administration returns.

Owns their fields and units. No SQL, and no behaviour but what follows from the fields. Import them from
`lanelog.admin`.
"""
