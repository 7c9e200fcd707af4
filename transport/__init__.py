"""Bytes between processes. Empty so far: a flow runs in one process, and nothing has to travel.

What moves in here knows bytes, and neither batches nor schemas.
"""
