#!/bin/sh
# Runs a command before everything else on a shared machine (as root, Linux): benchmarks/llama_cpp/first.sh COMMAND ...
#
# Priorities count within a scheduling group, and a session is a group of its own; so it needs a session, the group's
# priority and the process's. What can't be set is left as it is.
exec setsid --wait sh -c '
    echo -20 > /proc/self/autogroup 2>/dev/null
    exec nice -n -20 "$@"
' first "$@"
