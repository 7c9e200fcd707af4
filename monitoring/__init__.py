"""What is seen of a running flow: the live line of the command line (`progress`), and jobs in a table (`jobs`).

A room that is handed numbers and shows them; it imports nothing of the engine, and the engine imports it in one file.
"""

__all__ = ["Progress", "Status", "job_details", "job_table"]

from .jobs import job_details, job_table
from .progress import Progress, Status
