"""What the compiled kernels are made of: registers, spills, load widths, inner-loop instructions.

Compiles for a device that need not be here. Counts, no times: a static table says what changed in
the code, never what it is worth.
"""
