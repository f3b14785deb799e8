"""The Python frontend: HTTP, JSON and server-sent events on one side, the wire to the engine on the other.

app.py        which handler answers which request; errors become bodies here
connection.py uvicorn's connection: one write per answer or frame, and a call when the client is gone
exchange.py   one HTTP exchange: body in, answer or stream out
validate.py   request bytes -> checked values, by the table in fields.json
generate.py, completions.py, chat.py, control.py    one file per family of routes
engine.py     the connection to the engine, admission, who is in flight
run.py        the process: uvicorn around the app
"""
