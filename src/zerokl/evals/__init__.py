"""Evaluations with honest error bars: GSM8K, multiple choice, perplexity; gates with their power; paired comparison.

cli ─▶ gsm8k, choice, perplexity (what to ask, what counts) ─▶ run ─▶ asking (a server), results (one file, resumable)
   └─▶ compare (two files, paired) ─▶ statistics ─▶ report (terminal, JSON, HTML)
"""
