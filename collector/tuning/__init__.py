"""tl-tune: tries the remedies that are settings, and keeps those that gain something and change no results.

Drives jobs as processes and reads what they leave behind (timeline/trials.py): nothing of the runtime is imported here.
"""
