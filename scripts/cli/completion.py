"""Tab completion: the shell scripts to source, and the candidates for a partial command line.

Standard library only, because `./inv` prints the scripts before an environment exists. The scripts call `inv` by the
typed path (`./inv`, `~/slipway/inv` or plain `inv`), so `inv` does not have to be on the PATH.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

BASH = r"""_slipway_complete() {
    local inv=${COMP_WORDS[0]/#\~/$HOME}
    local found
    found=$("$inv" --complete -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null </dev/null)
    COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]#=}"))
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


def candidates(
    words: Sequence[str],
    tasks: Mapping[str, Any],
    names: Sequence[str],
    core: Any,
    word_of: Callable[[str], str],
    values: Callable[[str, str, Sequence[str]], Sequence[str]],
) -> list[str]:
    """Return completions of the last word; an empty list makes the shell complete file names.

    words: the line without the program. tasks: invoke's parser context by command. names: command names and aliases.
    core: the context of the flags before the first command. word_of: the flag for the bare words of a command, or "".
    values: the known values of a flag that begin with a text, given the earlier words.
    """
    *before, current = words or [""]
    if "--" in before:
        return []  # arguments of the wrapped program
    context, bare, flag, is_value = core, "", "", False
    for word in before:
        if is_value or word == "=":  # bash splits `--flag=value` into three words
            is_value = word == "="
        elif word in tasks:
            context, bare = tasks[word], word_of(word)
        elif word in context.flags:
            flag, argument = word, context.flags[word]
            is_value = argument.takes_value and not argument.optional
        elif not word.startswith("-") and bare and context.args[bare].kind is not list:
            bare = ""  # the single bare word is given
    head, equals, value = current.partition("=")
    if is_value or current == "=":
        return sorted(values(context.flags[flag].name, value if current == "=" else current, before)) if flag else []
    if equals and head in context.flags:  # zsh keeps `--flag=value` together
        return sorted(f"{head}={one}" for one in values(context.flags[head].name, value, before))
    if current.startswith("-"):
        return sorted({*(one for one in context.flags if one not in before), *context.inverse_flags})
    own = values(context.args[bare].name, current, before) if bare else ()
    return sorted({*own, *(names if current or not own else ())})
