"""The commands of ``python -m ms_lossscale``, one file each."""
