"""Analyse models: traces, drawings, films, tree metrics, nearest sentences and curves."""
