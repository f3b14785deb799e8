"""Frontend to engine: messages over a Unix stream socket (docs/design/0002-wire.md).

schema.toml ─▶ messages.py   what is said          frames.py    how it stands in the stream
records.py                   a step as records     client.py    the frontend's end, asyncio
                                                   server.py    the engine's end, threads
"""
