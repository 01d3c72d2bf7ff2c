"""`import horovod` without Horovod: an import hook, and the modules that Horovod's scripts import beside the API."""
