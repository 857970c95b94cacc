# Fish completes the words of runlist: share/fish/vendor_completions.d, or ~/.config/fish/completions.
complete --command runlist --no-files \
    --arguments "(env _RUNLIST_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp) runlist)" \
    --condition "env _RUNLIST_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args _TYPER_COMPLETE_ARGS=(commandline -cp) runlist"
