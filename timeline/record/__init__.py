"""Recording a rank: spans, the shard that they are written to, the flight recorder, NVTX."""
