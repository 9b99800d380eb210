"""The pretended machine under the stand-in: devices, their memory, their streams.

Nothing here has the shape of the library; `cupy` and `cupy.cuda` give it that.
"""
