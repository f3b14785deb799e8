"""Ranks of one model: how they are started, what they are told, and how they meet over a sum.

rank 0 (the engine's process) ── plan ──▶ rank 1 .. n - 1          channel.py: one way, integers
rank i ◀── parts of sums, in shared memory ──▶ rank j              shared.py: all see all; on GPUs peers.py
"""

from zerokl.parallel.groups import group_of, meeting_store
from zerokl.parallel.launch import Ranks, launch
from zerokl.parallel.shared import SharedGroup

__all__ = ["Ranks", "SharedGroup", "group_of", "launch", "meeting_store"]
