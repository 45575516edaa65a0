"""How it is served: layouts over GPUs, memory, pipelines, prefill and decode steps by part."""
