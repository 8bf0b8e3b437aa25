"""Settings of the systems that the paper compares itself with in Tables 1 and 2."""

# encoders of sequences

# encoders that follow trees of the data, and fixed trees

# encoders that find their own trees

# heads
