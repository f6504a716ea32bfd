"""How a model is spread over ranks.

Apart from the bootstrap, which makes the ranks meet, and from training code, which stays plain PyTorch.
"""
