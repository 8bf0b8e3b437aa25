"""What a model did with a sentence, and what its trees are like."""
