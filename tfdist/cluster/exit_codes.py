"""The exit codes by which a task tells what should happen next to the program that started it."""

from __future__ import annotations

RESTART_CODE = 75
"""A task ends with this code to ask for a restart: it has saved its state, and goes on from there when started again.

The number is EX_TEMPFAIL of sysexits.h: the failure is temporary, and the caller is invited to try again.
"""
