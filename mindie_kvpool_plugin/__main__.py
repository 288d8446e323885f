"""``python -m mindie_kvpool_plugin`` is ``mindie-kvpool``."""

from __future__ import annotations

from mindie_kvpool_plugin.cli.main import main

if __name__ == "__main__":
    main(prog_name="mindie-kvpool")
