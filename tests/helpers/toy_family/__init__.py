"""A kernel family of the tests: one thread an element of out. It is slow, and it is right."""
