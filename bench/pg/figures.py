"""What is said of a log that was gone through."""

import time


def log_figures(
    seen: int, count: int, began: float, cpu_began: float, memory: int = 0, subscriber_count: int = 1
) -> dict[str, float]:
    """Events a second and their cost in µs, unless not all were seen; *memory* in bytes above the start."""
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    if seen != count * subscriber_count:
        raise AssertionError(f"{seen} of {count * subscriber_count} events were delivered")
    return {
        "rate": count / seconds,
        "deliveries": seen / seconds,
        "cost": seconds / count * 1e6,
        "cpu": cpu_seconds / seen * 1e6,
        "memory": memory / 2**20,
    }
