"""What happens after something went wrong, or is about to: policy, evidence, stop requests.

Apart because decisions about a run must not depend on which scheduler or program brought it down.
"""
