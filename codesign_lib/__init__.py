"""Hardware-friendly LLM design, computed: what a model's shape costs on the machine that serves it.

Nothing is re-exported. Import the concept you need from its wing, lowest first::

    from codesign_lib.specs import formats, hardware, models, published
    from codesign_lib.cost import ops, roofline
    from codesign_lib.report import claims, plotting     # plotting alone needs matplotlib
"""
