"""Where an engine and its frontends meet, and how long they give each other at the end."""

from __future__ import annotations

ENGINE_SOCKET = "engine.sock"
"""Its name in the run folder."""
DRAIN_S = 30
"""How long open requests may go on after a signal."""
