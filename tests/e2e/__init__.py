"""The whole chain on real parts: submit, crash, requeue, resume."""
