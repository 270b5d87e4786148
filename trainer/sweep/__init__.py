"""Several runs as one: each in a process of its own, several at a time, recorded so that nothing is made twice."""
