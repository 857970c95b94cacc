# Bash completes the words of runlist. bash-completion finds it beside the program: share/bash-completion/completions.
_runlist() {
    local IFS=$'\n'
    COMPREPLY=($(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" _RUNLIST_COMPLETE=complete_bash "$1" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace  # its value comes next
    return 0
}
complete -o default -F _runlist runlist
