"""KV-cache pooling plugin for Huawei MindIE-LLM.

Importing this package changes nothing; only ``host.activate`` does, and the installed .pth file calls it.
"""

__version__ = "0.1.0"
