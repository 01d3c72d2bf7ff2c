"""Callbacks that record a training inside the frameworks that own its loop; each is one line of the user's script.

`tlkit.integrations.lightning`, `.transformers`, `.accelerate`, `.ray` and `.deepspeed` import the framework of their name, so
each is imported by itself.  All of them begin what `tlkit.instrument()` begins; what they know is when: after the ranks have
met, and before the framework wraps the model.
"""
