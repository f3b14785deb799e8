"""One small adapter per kind of server, and the table of what each can be asked."""
