#!/usr/bin/env bash
# Record two variants in turns (A B B A A B …), so that whatever the machine does meanwhile meets both of them.
#
#   abba.sh [-n RUNS] [-o FOLDER] A_COMMAND B_COMMAND
#
# Each command is run by bash with RUN set to the run directory that it is to make: FOLDER/A1, FOLDER/B1, …
#
#   abba.sh -n 5 'efaprof bench dispatch --channels 4 -o "$RUN"' 'efaprof bench dispatch --channels 8 -o "$RUN"'
#   efaprof diff runs/A* -- runs/B* --allow channels
set -euo pipefail
count=3 folder=runs
usage() { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while getopts n:o:h option; do
  case $option in
    n) count=$OPTARG ;;
    o) folder=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# = 2 ] && [[ $count =~ ^[1-9][0-9]*$ ]] || usage
if compgen -G "$folder/[AB][0-9]*" >/dev/null; then
  echo "abba.sh: $folder already holds runs; remove them or choose another -o" >&2
  exit 2
fi

record() { # SIDE NUMBER COMMAND
  echo "── $1$2" >&2
  RUN=$folder/$1$2 bash -c "$3" >&2
  [ -f "$folder/$1$2/manifest.json" ] || { echo "abba.sh: the command made no run at \$RUN ($folder/$1$2)" >&2; exit 1; }
}

mkdir -p "$folder"
for ((number = 1; number <= count; number++)); do
  if ((number % 2)); then
    record A "$number" "$1"
    record B "$number" "$2"
  else
    record B "$number" "$2"
    record A "$number" "$1"
  fi
done
