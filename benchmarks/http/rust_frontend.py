"""The Rust frontend on a port, with an engine that is there already."""

from __future__ import annotations

import socket
import sys

from zerokl._native import HttpServer

listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=4096)
HttpServer(sys.argv[1], listener.detach()).run(signals=True)
