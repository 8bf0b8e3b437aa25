"""What models did: traces, figures, films, metrics of trees, nearest sentences, curves."""
