"""These tests need Lightning, Transformers, Accelerate and Ray: `make test-clients` has them, other environments go without."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("lightning", "transformers", "accelerate", "ray", "torch"))) else ["*"]
