"""Failures by code; those of a device that can be repaired are told by their text."""

from __future__ import annotations

from enum import Enum


class ErrorCode(str, Enum):
    TEXT_GENERATOR_HBM_MULTI_BIT_ECC_ERROR = "HBM MULTI BIT ECC ERROR"
    TEXT_GENERATOR_PD_BLOCK_ID_OUT_OF_RANGE = "MIE05E010017"
    TEXT_GENERATOR_PD_MODEL_INSTANCE_ID_ERROR = "MIE05E010018"
    TEXT_GENERATOR_PD_PULL_KV_ERROR = "MIE05E01001A"


class ErrorCodeException(RuntimeError):
    """Reported to the scheduler, which ends all requests and has the device repaired."""

    def __init__(self, error_code: ErrorCode):
        super().__init__(f"device fault {error_code.name}")
        self.error_code = error_code


def convert_exception_to_error_code(exception_str: str) -> ErrorCode | None:
    return next((code for code in ErrorCode if code.value in exception_str), None)
