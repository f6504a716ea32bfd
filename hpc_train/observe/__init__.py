"""What a run tells about itself while it goes on.

Apart from training code, which only calls `Progress.step`.
"""
