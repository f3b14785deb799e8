"""The consistency checker: asks a server the same thing in different circumstances and compares the answers' bits.

It talks HTTP only and knows nothing of the engine behind the URL:

    cli ─▶ checking ─▶ cases/* ─▶ lab ─▶ targets/* ─▶ wire ── HTTP ──▶ any server
                                   └──▶ ledger (every value by what it is a function of) ─▶ report, diagnose
"""
