"""Whether a step overflowed, one file per way a device reports it; table.py picks."""
