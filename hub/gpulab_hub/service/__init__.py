"""The lab's service, a process of its own at /services/gpulab/: page, REST, and the reconcile loop."""
