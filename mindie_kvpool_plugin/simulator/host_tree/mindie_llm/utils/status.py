"""Answers of the host's own functions, and the threads that end the process when they fail."""

import os
import threading
import traceback
from enum import Enum

from mindie_llm.utils.log.error_code import convert_exception_to_error_code


class CoreThread(threading.Thread):
    """What it cannot report to the daemon ends the process at once."""

    def run(self):
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - as the host does
            if isinstance(error, RuntimeError) and convert_exception_to_error_code(str(error)) is not None:
                return
            traceback.print_exc()
            os._exit(1)


class MindieLlmStatusCode(Enum):
    SUCCESS = 0
    TEXT_GENERATOR_PD_RETRY_QUERY = 1
    TEXT_GENERATOR_PD_ALREADY_LINK = 2
