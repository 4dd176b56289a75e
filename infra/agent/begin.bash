# Bash reads this file before the script of a job (BASH_ENV): the script finds what an interactive shell of the user finds.
if [ -n "${SLIPWAY_BASH_ENV:-}" ]; then
  export BASH_ENV="$SLIPWAY_BASH_ENV"
else
  unset BASH_ENV
fi
unset SLIPWAY_BASH_ENV
PATH="$HOME/.local/bin:$PATH"
if [ -r ~/.bashrc ]; then
  # Many a ~/.bashrc returns at once unless $- has an i.
  PS1='$ '
  . /dev/stdin <<< "$(sed 's/\$-/himBHs/g' ~/.bashrc)"
  unset PS1
fi
if [ "$(type -t conda)" != function ]; then
  for slipway_conda in "$(type -P conda)" ~/{miniforge3,miniconda3,anaconda3,conda}/bin/conda /opt/{conda,miniforge3,miniconda3}/bin/conda; do
    if [ -x "$slipway_conda" ]; then
      eval "$("$slipway_conda" shell.bash hook 2> /dev/null)"
      break
    fi
  done
  unset slipway_conda
fi
if [ "$(type -t micromamba)" = file ]; then
  eval "$(micromamba shell hook --shell bash 2> /dev/null)"
  [ -n "$(type -t conda)" ] || conda() { micromamba "$@"; }
fi
