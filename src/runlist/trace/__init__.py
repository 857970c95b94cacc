"""Traces for the Perfetto viewer: who held each GPU, turn by turn.

`writer` turns residencies into a trace file; `recorder` reads them from the GPUs' switch logs.
"""
