"""Ranks of one model: how they are started, what they are told, and how they meet over a sum.

rank 0 (the engine's process) ── plan ──▶ rank 1 .. n - 1          channel.py: one way, integers
rank i ◀── parts of sums ──▶ rank j                                host_group.py: all see all; on GPUs peers.py

launch.py      processes of this machine, which meet in shared memory (shared.py)
machines.py    processes that torchrun started, on any machines, which meet over TCP (tcp.py)
"""

from zerokl.parallel.groups import group_of, meeting_store
from zerokl.parallel.host_group import HostGroup
from zerokl.parallel.launch import launch
from zerokl.parallel.ranks import Ranks

__all__ = ["HostGroup", "Ranks", "group_of", "launch", "meeting_store"]
