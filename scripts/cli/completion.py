"""Tab completion: the scripts that a shell sources, and the candidates for a half-typed line.

Standard library only: `./inv` prints the scripts before there is an environment. They call the very `inv` that was
typed (`./inv`, `~/slipway/inv`, or plain `inv`), so that no program of that name needs to be on the PATH.
"""

from collections.abc import Mapping, Sequence
from typing import Any

BASH = r"""_slipway_complete() {
    local inv=${COMP_WORDS[0]/#\~/$HOME}
    local found
    found=$("$inv" --complete -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null </dev/null)
    COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _slipway_complete inv
"""
ZSH = r"""_slipway_complete() {
    local -a found
    found=(${(f)"$(${~words[1]} --complete -- "${(@)words[1,CURRENT]}" 2>/dev/null </dev/null)"})
    (( $#found )) && compadd -a found || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i -D }
compdef _slipway_complete inv
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}


def candidates(words: Sequence[str], tasks: Mapping[str, Any], names: Sequence[str], core: Any) -> list[str]:
    """Return completions of the last of `words`; [] leaves it to the shell, which offers files.

    words: the line without the program. tasks: invoke's parser context of each command. names: how commands may be
    called. core: the context of the flags that stand before any command.
    """
    *before, current = words or [""]
    if "--" in before:
        return []  # the rest is for another program
    context, is_value = core, False
    for word in before:
        if is_value or word == "=":  # bash takes `--flag=value` for three words
            is_value = word == "="
        elif word in tasks:
            context = tasks[word]
        else:
            flag = context.flags.get(word)
            is_value = flag is not None and flag.takes_value and not flag.optional
    if is_value or current == "=":
        return []
    if current.startswith("-"):
        return sorted({*(one for one in context.flags if one not in before), *context.inverse_flags})
    return sorted(names)
