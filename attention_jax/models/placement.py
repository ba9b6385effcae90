"""Which axes of a model's parameters are spread over which axes of a mesh: lines of (pattern of a path, partition).

A partition names the mesh's axes for a parameter's last axes. Vocabularies, which come from data and divide by nothing,
are whole; a matrix that makes features is cut into them over `tensor`, one that reads features along them (Shoeybi et
al. 2019, §3). `fsdp` cuts rows, never columns alone: a TPU adds gradients up to such parts in one go. What no line
names is small.
"""

WIDE = ("fsdp", "tensor")

EMBEDDINGS = ((r"embedding/embedding$", (None, WIDE)), (r"^logits/kernel$", (WIDE, None)), (r"^logits/bias$", (None,)))
LAYERS = (
    *EMBEDDINGS,
    (r"(attention/(query|key|value)|mixer/(query|key|value|gate))$", ("fsdp", "tensor")),
    (r"(attention|mixer)/out$", (("tensor", "fsdp"), None)),
    (r"feed_forward/(hidden|gate)/kernel$", ("fsdp", "tensor")),
    (r"feed_forward/(hidden|gate)/bias$", ("tensor",)),
    (r"feed_forward/out/kernel$", (("tensor", "fsdp"), None)),
)
RECURRENT = (
    *EMBEDDINGS,
    (r"/(w_i|w_h)$", ("fsdp", "tensor")),
    (r"^(readout|bridge_\w+)/kernel$", ("fsdp", "tensor")),
)
PLACEMENTS = {"recurrent": RECURRENT, "transformer": LAYERS}  # of TRANSLATORS
