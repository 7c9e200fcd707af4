"""What is seen of a running flow. So far: the live line of the command line (`progress`).

A room that is handed numbers and shows them; it imports nothing of the engine, and the engine imports it in one file.
"""

__all__ = ["Progress", "Status"]

from .progress import Progress, Status
