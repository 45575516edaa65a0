"""How it is served: layouts over GPUs, memory, decode steps by part."""
