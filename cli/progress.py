"""Progress on stderr: a bar with the time left on a terminal, a line per event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from draftsmith.cli.output import escape, make_console, ratio_text, say
from draftsmith.tuner.duration import format_duration
from draftsmith.tuner.progress import Phase, TrialNews
from draftsmith.tuner.space import config_text

QUIET_S = 10.0  # least time between two lines of a counted task that is not on a terminal


class _Deadline(ProgressColumn):
    """Time left until the task's field ``deadline`` (monotonic seconds), counted down live."""

    def render(self, task: Task) -> Text:
        left = max(0.0, float(task.fields["deadline"]) - time.monotonic())
        return Text(f"{format_duration(left)} left")


class TuneProgress:
    """Draws a tuning run: the budget as a bar, the phase, and a line for each trial that ended."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._console = make_console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> TuneProgress:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), _Deadline())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(
                "starting", total=self._budget_s, deadline=time.monotonic() + self._budget_s
            )
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_phase(self, phase: Phase, note: str, seconds_left: float) -> None:
        text = f"{phase}: {note}" if note else phase
        if self._bar is None:
            self._line(f"{text} ({format_duration(seconds_left)} left)")
        self._move(text, seconds_left)

    def on_trial(self, news: TrialNews, seconds_left: float) -> None:
        result = (
            ratio_text(news.ratio, news.low, news.high) if news.ratio is not None else news.state
        )
        if news.reason:
            result += f", {news.reason}"
        elif not news.feasible:
            result += ", not feasible"
        self._line(f"  #{news.number} {config_text(news.config)}: {result}")
        self._move(None, seconds_left)

    def _line(self, text: str) -> None:
        console = self._bar.console if self._bar is not None else self._console
        say(console, text)

    def _move(self, text: str | None, seconds_left: float) -> None:
        if self._bar is None or self._task is None:
            return
        self._bar.update(
            self._task,
            description=None if text is None else escape(text),
            completed=max(0.0, self._budget_s - seconds_left),
            deadline=time.monotonic() + seconds_left,
        )


@contextmanager
def counted(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Progress over ``total`` equal steps; call the function that is given once a step."""
    console = make_console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(escape(label), total=total)
            yield lambda: bar.advance(task)
        return
    began = told = time.monotonic()
    done = 0

    def step() -> None:
        nonlocal done, told
        done += 1
        now = time.monotonic()
        if now - told >= QUIET_S and done < total:
            told = now
            left = (now - began) / done * (total - done)
            console.print(f"{label}: {done} of {total}, {format_duration(left)} left", markup=False)

    yield step
