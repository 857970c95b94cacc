"""What several papers are tried again with: programs that serve requests, who asks them, where results go, how they are
shown.
"""
