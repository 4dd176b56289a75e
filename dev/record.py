# /// script
# requires-python = ">=3.10"
# dependencies = ["pyte==0.8.2"]
# ///
"""Record the README's terminal: run the two commands in a fresh clone, and write what was seen as one moving SVG.

Run: uv run dev/record.py. Everything in the picture was printed by a real run; only its playback is faster, so that
each command takes the seconds that SCENES gives it. Where nothing moves (a printer, `prefers-reduced-motion`), the
picture is its last frame.
"""

import argparse
import html
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

import pyte

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 100, 27
FRAMES_PER_S = 5
END_S = 6.0  # the last frame stays for so long
KEY_S = 0.06  # between two keys that are typed
SILENCE_S = 1200.0  # a command that says nothing for so long has failed


@dataclass(frozen=True)
class Scene:
    """One command: what is typed, how many seconds it takes to play, and what is answered at its `> ` prompts."""

    command: str
    play_s: float
    answers: tuple[str, ...] = ()


SCENES = (
    Scene("./inv launch --phase sft", 16.0),
    Scene("./inv chat", 8.0, ("Who are you?", "What does os.path.join do?", "/exit")),
)
Frame = tuple[str, ...]  # one line of markup for each row of the screen

COLOURS = {
    "default": "#d8dee9", "black": "#4c566a", "red": "#ee7a82", "green": "#a3d07c", "brown": "#ebcb8b",
    "blue": "#81a1c1", "magenta": "#c594c5", "cyan": "#88c0d0", "white": "#eceff4", "brightblack": "#7b869c",
}  # fmt: skip
GROUND, BAR = "#20242d", "#2b303b"
LETTER, LINE, SIZE, PAD, TOP = 8.4, 19.0, 14.0, 16.0, 36.0
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def markup(row: dict[int, pyte.screens.Char]) -> str:
    """Return the text elements of one row: a run of equal letters is one element, in its place on the grid."""
    parts, at = [], 0
    while at < COLUMNS:
        end, like = at, row[at]
        while end < COLUMNS and (row[end].fg, row[end].bold, row[end].reverse) == (like.fg, like.bold, like.reverse):
            end += 1
        text = "".join(row[number].data for number in range(at, end))
        for found in re.finditer(r"\S+(?: \S+)*", text):  # gaps are places, not spaces
            colour = COLOURS.get(like.fg, f"#{like.fg}" if re.fullmatch("[0-9a-f]{6}", like.fg) else COLOURS["default"])
            x, wide = PAD + (at + found.start()) * LETTER, len(found[0]) * LETTER
            weight = ' font-weight="bold"' if like.bold else ""
            parts.append(
                f'<text x="{x:g}" textLength="{wide:g}" fill="{colour}"{weight}>{html.escape(found[0])}</text>'
            )
        at = end
    return "".join(parts)


def frame(screen: pyte.Screen) -> Frame:
    return tuple(markup(screen.buffer[number]) for number in range(ROWS))


class Recorder:
    """A terminal, and the frames that it showed, each with the seconds at which it is played."""

    def __init__(self, checkout: Path, environ: dict[str, str]) -> None:
        self.checkout, self.environ = checkout, environ
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.frames: list[tuple[float, Frame]] = []
        self.now_s = 0.0

    def show(self) -> None:
        now = frame(self.screen)
        if not self.frames or self.frames[-1][1] != now:
            self.frames.append((self.now_s, now))

    def type(self, text: str) -> None:
        for letter in text:
            self.stream.feed(letter.encode())
            self.now_s += KEY_S
            self.show()

    def play(self, scene: Scene) -> None:
        """Run a command to its end. Raises SystemExit when it fails."""
        self.stream.feed(b"\x1b[0;32m$\x1b[0m ")
        self.type(scene.command)
        self.now_s += 0.5
        self.stream.feed(b"\r\n")
        seen = self._run(scene)
        begin_s, took_s = self.now_s, max(seen[-1][0], 0.001)
        speed = max(1.0, took_s / scene.play_s)
        due_s = 0.0
        for at_s, data in seen:
            self.stream.feed(data)
            self.now_s = begin_s + at_s / speed
            if self.now_s >= due_s:
                self.show()
                due_s = self.now_s + 1 / FRAMES_PER_S
        self.now_s += 1.2
        self.show()
        print(f"{scene.command}: {took_s:.0f} s, played in {took_s / speed:.0f} s", file=sys.stderr)

    def _run(self, scene: Scene) -> list[tuple[float, bytes]]:
        """Return the output of the command on its terminal, with times. The keys of an answer come one by one."""
        answers, seen, begin = list(scene.answers), list[tuple[float, bytes]](), time.monotonic()
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.checkout)
            os.execvpe("bash", ["bash", "-c", scene.command], self.environ)
        ioctl(terminal, TIOCSWINSZ, pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            while True:
                if not select.select([terminal], [], [], SILENCE_S)[0]:
                    raise SystemExit(f"{scene.command}: silent for {SILENCE_S:.0f} s")
                try:
                    data = os.read(terminal, 65536)
                except OSError:  # its end, as Linux tells it
                    data = b""
                if not data:
                    break
                seen.append((time.monotonic() - begin, data))
                said = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", b"".join(one for _, one in seen[-3:]))
                if answers and said.endswith(b"> "):
                    time.sleep(0.8)
                    for letter in answers.pop(0) + "\n":
                        os.write(terminal, letter.encode())
                        time.sleep(KEY_S)
        except BaseException:
            os.kill(child, signal.SIGTERM)
            raise
        finally:
            _, status = os.waitpid(child, 0)
            os.close(terminal)
        if status:
            raise SystemExit(f"{scene.command}: exit code {os.waitstatus_to_exitcode(status)}")
        return seen


def svg(frames: list[tuple[float, Frame]], whole_s: float) -> str:
    """Return the picture: each line of the screen once for each time that it stood there, shown for just that time."""
    width, height = 2 * PAD + COLUMNS * LETTER, TOP + ROWS * LINE + PAD
    times = [at_s / whole_s * 100 for at_s, _ in frames]
    rules, lines = dict[str, str](), []
    for number in range(ROWS):
        begin = 0
        for index in range(1, len(frames) + 1):
            if index < len(frames) and frames[index][1][number] == frames[begin][1][number]:
                continue
            text = frames[begin][1][number]
            name = f"k{begin}" if index == len(frames) else f"k{begin}-{index}"
            if text:
                shown = f"{times[begin]:.3f}%{{visibility:visible}}"
                rules[name] = "0%{visibility:hidden}" * (begin > 0) + shown
                if index < len(frames):
                    rules[name] += f"{times[index]:.3f}%{{visibility:hidden}}"
                last = " class='end'" if index == len(frames) else ""
                lines.append(
                    f'<g{last} transform="translate(0 {TOP + (number + 0.75) * LINE:g})"'
                    f' style="animation-name:{name}">{text}</g>'
                )
            begin = index
    style = "".join(f"@keyframes {name}{{{steps}}}" for name, steps in rules.items())
    dots = "".join(
        f'<circle cx="{22 + 18 * at}" cy="17" r="5.5" fill="{fill}"/>'
        for at, fill in enumerate(("#ee7a82", "#ebcb8b", "#a3d07c"))
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" \
height="{height:g}" font-family="{FONT}" font-size="{SIZE:g}" role="img">
<title>A terminal: ./inv launch --phase sft trains a model, ./inv chat talks to it</title>
<style>g[style]{{visibility:hidden;animation:{whole_s:.1f}s step-end infinite}}g.end{{visibility:visible}}\
@media (prefers-reduced-motion:reduce){{g[style]{{animation:none!important}}}}{style}</style>
<rect width="100%" height="100%" rx="9" fill="{GROUND}"/>
<path d="M0 34V9a9 9 0 0 1 9-9H{width - 9:g}a9 9 0 0 1 9 9V34z" fill="{BAR}"/>{dots}
{chr(10).join(lines)}
</svg>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "launch-and-chat.svg")
    out = parser.parse_args().out
    checkout = Path(tempfile.gettempdir()) / "slipway"  # a path that reads well, since commands print it
    if checkout.exists():
        raise SystemExit(f"{checkout} is there already; the clone that is recorded would lie there")
    with tempfile.TemporaryDirectory() as folder:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("SLIPWAY_", "VIRTUAL_ENV"))}
        environ = {**ours, "TERM": "xterm-256color", "SLIPWAY_STATE_FILE": f"{folder}/journal.sqlite"}
        recorder = Recorder(checkout, environ)
        try:
            subprocess.run(["git", "clone", "-q", "--local", ROOT, checkout], check=True)
            subprocess.run(["./inv", "--list"], cwd=checkout, env=environ, stdout=subprocess.DEVNULL, check=True)
            for scene in SCENES:
                recorder.play(scene)
            subprocess.run(["./inv", "down", "--all"], cwd=checkout, env=environ, check=True)
        except BaseException:
            subprocess.run(["./inv", "down", "--all"], cwd=checkout, env=environ)
            raise
        finally:
            shutil.rmtree(checkout, ignore_errors=True)
    recorder.stream.feed(b"\x1b[0;32m$\x1b[0m ")
    recorder.show()
    text = svg(recorder.frames, recorder.now_s + END_S)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(
        f"{out}: {len(recorder.frames)} frames, {recorder.now_s + END_S:.0f} s, {len(text) // 1000} kB", file=sys.stderr
    )


if __name__ == "__main__":
    main()
