"""The Python frontend on a port, with an engine that is there already."""

from __future__ import annotations

import gc
import socket
import sys
from pathlib import Path

from zerokl.cli.run_folder import await_config
from zerokl.server.run import serve

config = await_config(Path(sys.argv[1]))
gc.freeze()
serve(config, Path(sys.argv[1]), socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=4096))
